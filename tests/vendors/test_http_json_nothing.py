"""A vendor that only a file describes, with no key and nothing to read back: one send, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from outbox import Settings, WriteTool
from outbox.errors import SettingsError
from tests.vendors.recipe_calls import contracts_as_before
from tests.vendors.recipe_floor import RecipeFloor, delivered, files_of, hooks, open_recipe_floor
from vendors.sandbox.client import Sandbox

HELLO = {"channel": "ops", "text": "the invoice is paid", "invoice": "in_1"}


def _post() -> WriteTool:
    return WriteTool(
        "tell_ops",
        vendor="messages",
        operation="messages.post",
        identity=("invoice",),
        # It changes nothing here: what cannot be read back can never be proved absent.
        resend_when_absent=True,
    )


@pytest.fixture
def floor(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    with open_recipe_floor(database, sandbox, "messages", tmp_path) as opened:
        yield opened


def _sent_with(floor: RecipeFloor, fault: str, **fields: object) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, times=1, **fields)
    intent_id = floor.ask(_post(), **HELLO)
    floor.drain()
    return intent_id


def test_a_message_is_posted_with_our_marks_and_the_identity_in_its_metadata(
    floor: RecipeFloor,
) -> None:
    intent_id = floor.ask(_post(), **HELLO)
    floor.drain()
    row = floor.row(intent_id)
    (posted,) = floor.sandbox.objects(floor.account, "posted")
    assert (row["status"], row["receipt_id"]) == ("succeeded", posted["ts"])
    assert posted["metadata"] == {
        "invoice": "in_1",
        "outbox_id": str(intent_id),
        "outbox_key": bytes(row["key"]).hex(),
    }


@pytest.mark.parametrize(
    "fault",
    ["lost_ack", "lost_request", "stored_500_no_object", "bad_gateway_before", "half_body"],
)
def test_what_is_in_doubt_is_asked_of_a_person_and_never_sent_again(
    floor: RecipeFloor, fault: str
) -> None:
    intent_id = _sent_with(floor, fault)
    assert floor.status(intent_id) == "unknown"
    for _ in range(8):
        floor.until_due(intent_id)
    assert floor.status(intent_id) == "unknown"
    assert len(floor.posts()) == 1
    (escalation,) = floor.escalations()
    assert escalation["reasons"] == ["ttl"]
    assert floor.reads() == [], "there is nothing to read"


def test_its_webhook_closes_the_doubt(floor: RecipeFloor) -> None:
    with hooks(floor) as answered:
        intent_id = _sent_with(floor, "lost_ack")
        delivered(floor)
    row = floor.row(intent_id)
    assert (answered, row["status"], row["settled_by"]) == ([200], "succeeded", "webhook")
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)


def test_a_redelivery_is_told_by_its_second_webhook(floor: RecipeFloor) -> None:
    floor.provoked = {"more_than_one_effect"}
    with hooks(floor):
        intent_id = _sent_with(floor, "redelivery")
        delivered(floor)
    assert floor.row(intent_id)["contradicted_at"] is not None
    (escalation,) = floor.escalations()
    objects = {one["ts"] for one in floor.sandbox.objects(floor.account, "posted")}
    assert {*escalation["detail"]["objects"], floor.row(intent_id)["receipt_id"]} == objects
    assert len(objects) == 2


@pytest.mark.parametrize("twist", ["wrong_secret", "old_timestamp", "future_timestamp"])
def test_a_delivery_that_is_not_genuine_settles_nothing(floor: RecipeFloor, twist: str) -> None:
    floor.sandbox.webhook_fault(twist, account=floor.account)
    floor.sandbox.set_account(floor.account, webhook_retry_s=[])
    with hooks(floor) as answered:
        intent_id = _sent_with(floor, "lost_ack")
        delivered(floor)
    assert (answered, floor.status(intent_id)) == ([400], "unknown")


def test_a_200_that_says_no_is_a_refusal(floor: RecipeFloor) -> None:
    intent_id = floor.ask(_post(), **{**HELLO, "channel": "nowhere"})
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["failure_code"]) == ("failed_poison", "channel_not_found")
    assert floor.effects(intent_id) == 0


def test_a_200_with_a_word_that_no_rule_names_is_in_doubt(floor: RecipeFloor) -> None:
    intent_id = floor.ask(
        WriteTool(
            "tell",
            vendor="messages",
            operation="messages.post",
            identity=("invoice",),
            request=lambda args: {"channel": "ops", "text": ""},
        ),
        invoice="in_1",
    )
    floor.drain()
    assert (floor.status(intent_id), floor.outcomes(intent_id)) == ("unknown", ["lost"])


def test_a_throttled_message_was_not_processed_and_goes_out_later(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "rate_limited_429", after_s=1)
    assert (floor.status(intent_id), floor.outcomes(intent_id)) == ("pending", ["not_sent"])
    floor.until_due(intent_id)
    assert floor.status(intent_id) == "succeeded"
    assert floor.effects(intent_id) == 1


def test_a_200_that_says_who_are_you_pauses_the_account(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "unauthorized_401")
    floor.advance(3600)
    floor.drain()
    assert (floor.status(intent_id), len(floor.posts())) == ("pending", 1)


def test_an_account_of_a_vendor_that_cannot_say_whose_it_is_must_be_told(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    files = files_of(sandbox, "messages", tmp_path, vendor_account="")
    with contracts_as_before(), pytest.raises(SettingsError) as refused:
        Settings.from_env({**files, "STRIPE_API_KEY": "sk_test_x"})
    ((where, problem),) = refused.value.problems
    assert where == "OUTBOX_ACCOUNTS [messages.default]"
    assert problem.startswith("vendor_account is missing")

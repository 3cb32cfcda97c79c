"""A vendor that only a file describes and that honours keys, from enqueue to the webhook."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import rfc8785

from outbox import Settings, WriteTool
from outbox.errors import Invalid
from outbox.outcomes import NotSent
from tests.vendors.recipe_floor import (
    RecipeFloor,
    delivered,
    files_of,
    hooks,
    open_recipe_floor,
    post,
)
from vendors.sandbox import RECIPES
from vendors.sandbox.client import Sandbox

PAY = {"amount": 4900, "currency": "eur", "recipient": "ann", "memo": "Größe €", "invoice": "in_1"}

OTHER = {"amount": 4900, "currency": "eur", "recipient": "ann"}


def _pay() -> WriteTool:
    return WriteTool(
        "pay_out",
        vendor="payments",
        operation="payments.create",
        side_effect="payout",
        identity=("invoice",),
        guard=("amount", "currency", "recipient"),
        money=("amount", "currency"),
    )


@pytest.fixture
def floor(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as opened:
        yield opened


def _sent_with(floor: RecipeFloor, fault: str, **fields: object) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, times=1, **fields)
    intent_id = floor.ask(_pay(), **PAY)
    floor.drain()
    return intent_id


def test_a_payment_lands_with_the_frozen_bytes_under_the_rows_key(floor: RecipeFloor) -> None:
    intent_id = floor.ask(_pay(), **PAY)
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["business_status"]) == ("succeeded", "paid")
    (post,) = floor.posts()
    assert post["key"] == bytes(row["key"]).hex()
    params = floor.sent(intent_id)["params"]
    assert "invoice" not in params, "the vendor knows no such field"
    assert post["body_sha256"] == hashlib.sha256(rfc8785.dumps(params)).hexdigest()
    assert row["receipt_id"] == floor.sandbox.objects(floor.account, "payments")[0]["id"]
    assert floor.effects(intent_id) == 1


def test_a_lost_ack_is_closed_by_the_list_without_a_second_post(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "lost_ack")
    assert floor.status(intent_id) == "unknown"
    floor.until_due(intent_id)
    assert floor.status(intent_id) == "succeeded"
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)
    assert "idempotency_key" not in floor.reads()[0]["path"], "an argument never lies in a path"


def test_a_lost_request_goes_out_again_under_the_same_key_and_bytes(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "lost_request")
    for _ in range(3):
        if floor.status(intent_id) == "unknown":
            floor.until_due(intent_id)
    assert floor.status(intent_id) == "succeeded"
    first, second = floor.posts(intent_id)
    assert first["body_sha256"] == second["body_sha256"]
    assert floor.effects(intent_id) == 1


def test_a_late_commit_after_the_resend_is_one_payment(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "late_commit", after_s=3600)
    for _ in range(3):
        if floor.status(intent_id) == "unknown":
            floor.until_due(intent_id)
    floor.sandbox.release(floor.account)
    assert floor.status(intent_id) == "succeeded"
    assert (len(floor.posts()), floor.effects(intent_id)) == (2, 1)


def test_a_redelivered_request_is_one_payment(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "redelivery")
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.sandbox.requests(floor.account, key=floor.posts()[0]["key"])) == 2
    assert floor.effects(intent_id) == 1


def test_a_stored_500_is_never_sent_again_and_its_late_object_settles_it(
    floor: RecipeFloor,
) -> None:
    intent_id = _sent_with(floor, "stored_500_object_later", after_s=3600)
    assert (floor.status(intent_id), floor.row(intent_id)["veto"]) == ("unknown", "never_again")
    for _ in range(3):
        floor.until_due(intent_id)
    assert floor.status(intent_id) == "unknown"
    floor.sandbox.release(floor.account, "object_later")
    floor.until_due(intent_id)
    assert floor.status(intent_id) == "succeeded"
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)


def test_a_stored_500_without_an_object_ends_at_a_person(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "stored_500_no_object")
    for _ in range(12):
        floor.until_due(intent_id)
    assert floor.status(intent_id) == "unknown"
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 0)
    assert floor.escalations()[0]["reasons"] == ["ttl"]


def test_a_429_is_not_sent_and_goes_out_again(floor: RecipeFloor) -> None:
    intent_id = _sent_with(floor, "rate_limited_429", after_s=2)
    assert floor.outcomes(intent_id) == ["not_sent"]
    assert floor.status(intent_id) == "pending"
    floor.until_due(intent_id)
    assert floor.status(intent_id) == "succeeded"
    assert (len(floor.posts()), floor.effects(intent_id)) == (2, 1)


def test_a_webhook_closes_a_lost_ack_before_any_look(floor: RecipeFloor) -> None:
    with hooks(floor) as answered:
        intent_id = _sent_with(floor, "lost_ack")
        delivered(floor)
    assert answered == [200]
    row = floor.row(intent_id)
    assert (row["status"], row["settled_by"]) == ("succeeded", "webhook")
    assert floor.reads() == []
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)


@pytest.mark.parametrize("twist", ["wrong_secret", "old_timestamp", "future_timestamp"])
def test_a_delivery_that_is_not_genuine_settles_nothing(floor: RecipeFloor, twist: str) -> None:
    floor.sandbox.webhook_fault(twist, account=floor.account)
    floor.sandbox.set_account(floor.account, webhook_retry_s=[])
    with hooks(floor) as answered:
        intent_id = _sent_with(floor, "lost_ack")
        delivered(floor)
    assert answered == [400]
    assert floor.status(intent_id) == "unknown"


def test_two_signatures_of_rotating_secrets_are_taken(floor: RecipeFloor) -> None:
    floor.sandbox.webhook_fault("two_signatures", account=floor.account)
    with hooks(floor) as answered:
        intent_id = _sent_with(floor, "lost_ack")
        delivered(floor)
    assert (answered, floor.status(intent_id)) == ([200], "succeeded")


def test_a_later_webhook_moves_the_business_status(floor: RecipeFloor) -> None:
    with hooks(floor):
        intent_id = _sent_with(floor, "status:pending")
        assert floor.row(intent_id)["business_status"] == "pending"
        floor.advance(60)
        floor.sandbox.move(floor.row(intent_id)["receipt_id"], "succeeded")
        delivered(floor)
    assert floor.row(intent_id)["business_status"] == "paid"


def test_what_can_never_be_read_is_not_asked_for_again_and_again(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    text = (RECIPES / "payments.toml").read_text()
    begin, end = text.index('[operations."payments.cancel"]'), text.index("[key]")
    look, who = text.index("[look_up]"), text.index("[whoami]")
    changes = {text[begin:end]: "", text[look:who]: ""}
    with open_recipe_floor(database, sandbox, "payments", tmp_path, changes=changes) as floor:
        with hooks(floor):
            intent_id = _sent_with(floor, "status:pending")
            floor.sandbox.move(floor.row(intent_id)["receipt_id"], "rejected")
            delivered(floor)
        assert floor.row(intent_id)["verify_at"] is not None
        assert floor.look() == 1
        assert floor.row(intent_id)["verify_at"] is None


def test_a_rejected_payment_is_refused_with_its_object(floor: RecipeFloor) -> None:
    intent_id = floor.ask(_pay(), **{**PAY, "recipient": "blocked"})
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["failure_code"]) == ("failed_poison", "recipient_blocked")


def test_a_refusal_is_told_in_the_vendors_word(floor: RecipeFloor) -> None:
    intent_id = floor.ask(_pay(), **{**PAY, "recipient": "unknown"})
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["failure_code"]) == ("failed_poison", "recipient_unknown")


@pytest.mark.parametrize("kind", ["unauthorized_401", "forbidden_403"])
def test_refused_credentials_pause_the_account_and_send_nothing_more(
    floor: RecipeFloor, kind: str
) -> None:
    intent_id = _sent_with(floor, kind)
    assert floor.status(intent_id) == "pending"
    floor.advance(3600)
    floor.drain()
    assert len(floor.posts()) == 1
    (switch,) = floor.sql("SELECT kind FROM outbox.switches WHERE kind = 'pause'")
    assert switch["kind"] == "pause"


@pytest.mark.parametrize(
    "kind", ["half_body", "empty_200", "bad_gateway_after", "redirect_302", "unavailable_503"]
)
def test_what_no_rule_can_read_is_in_doubt_and_never_failed(floor: RecipeFloor, kind: str) -> None:
    intent_id = _sent_with(floor, kind)
    assert (floor.status(intent_id), floor.outcomes(intent_id)) == ("unknown", ["lost"])
    for _ in range(4):
        if floor.status(intent_id) == "unknown":
            floor.until_due(intent_id)
    assert (floor.status(intent_id), floor.effects(intent_id)) == ("succeeded", 1)


def test_a_key_that_was_used_for_something_else_is_never_sent_again(floor: RecipeFloor) -> None:
    intent_id = floor.ask(_pay(), **PAY)
    key = bytes(floor.row(intent_id)["key"]).hex()
    assert post(floor, "/payments", {**OTHER, "amount": 1}, key) == 200
    floor.provoked = {"body_changed"}
    floor.drain()
    assert (floor.status(intent_id), floor.row(intent_id)["veto"]) == ("unknown", "never_again")
    for _ in range(4):
        floor.until_due(intent_id)
    assert len(floor.posts(intent_id)) == 2, "ours, and what was there before it"
    assert floor.escalations()[0]["reasons"] == ["another_amount"]


def test_a_cancellation_is_settled_by_the_state_of_its_payment(floor: RecipeFloor) -> None:
    paid = floor.ask(_pay(), **PAY)
    floor.drain()
    cancel = WriteTool(
        "cancel_payment",
        vendor="payments",
        operation="payments.cancel",
        side_effect="refund",
        identity=("payment_id",),
        guard=("reason",),
    )
    payment_id = floor.row(paid)["receipt_id"]
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    intent_id = floor.ask(cancel, payment_id=payment_id, reason="asked")
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    floor.until_due(intent_id)
    row = floor.row(intent_id)
    assert (row["status"], row["business_status"]) == ("succeeded", "reversed")
    assert row["receipt_id"] == payment_id
    assert len(floor.posts(intent_id)) == 1


def test_a_file_that_changes_its_rendering_never_gives_a_row_a_second_key(
    floor: RecipeFloor, sandbox: Sandbox
) -> None:
    intent_id = _sent_with(floor, "lost_ack")
    changes = {'rendering = "hex64"': 'rendering = "uuid"'}
    env = files_of(sandbox, "payments", floor.folder, changes)
    Settings.from_env({**env, "STRIPE_API_KEY": sandbox.api_key(floor.account)})
    fresh = floor.ask(_pay(), **{**PAY, "invoice": "in_new"})
    floor.perform(intent_id)
    # This adapter's file is the one of before: what was recorded since is not its to send.
    assert isinstance(floor.perform(fresh), NotSent)
    first, again = floor.posts()
    assert first["key"] == again["key"] == bytes(floor.row(intent_id)["key"]).hex()
    assert floor.effects(intent_id) == 1


def test_a_field_that_the_file_does_not_list_is_refused_at_enqueue(floor: RecipeFloor) -> None:
    tool = WriteTool(
        "pay_more",
        vendor="payments",
        operation="payments.create",
        identity=("invoice",),
        request=lambda args: {"amount": 1, "currency": "eur", "iban": "DE00 SECRET"},
    )
    with pytest.raises(Invalid) as refused:
        floor.ask(tool, invoice="in_1")
    assert (refused.value.field, "iban" in refused.value.problem) == ("request", True)
    assert "SECRET" not in str(refused.value)


def test_a_credential_of_another_account_sends_nothing(
    floor: RecipeFloor, sandbox: Sandbox
) -> None:
    intent_id = floor.ask(_pay(), **PAY)
    known = floor.directory.account("payments", "default")
    assert known is not None
    assert known.vendor_account == f"acct_{floor.account}", "the vendor was asked"
    floor.directory.learn("payments", replace(known, credential=sandbox.api_key("somebody")))
    floor.drain()
    assert floor.outcomes(intent_id) == ["not_sent"]
    assert floor.sandbox.effects("somebody") == []

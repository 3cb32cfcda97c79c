"""Answers that are neither a success nor a refusal: a 503 that asks to be repeated, a redirect, and
a replay that speaks another API version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox.doorbell import Doorbell
from resolvers.directory import Directory
from tests.workers.floor import CARD, READS, Floor
from vendors.sandbox.layers import OTHER_VERSION
from vendors.stripe import StripeVendor
from workers.sender import Sender

HOUR = 3600.0
POSTS = "POST /v1/*"


def _sent(floor: Floor, fault: str, **fields: Any) -> UUID:
    """A charge whose answers are like that."""
    floor.sandbox.fault(fault, account=floor.account, endpoint=POSTS, **fields)
    intent_id = floor.one()
    floor.drain()
    return intent_id


def _triggers(floor: Floor) -> list[str]:
    return [page["body"]["reason"] for page in floor.pages() if page["action"] == "trigger"]


# -- 503 that says Stripe-Should-Retry: true ------------------------------------------------------


def test_a_503_that_asks_for_a_retry_is_doubt_and_no_order_to_send_at_once(floor: Floor) -> None:
    """It says nothing of whether the write happened: look first, then the same key."""
    intent_id = _sent(floor, "unavailable_503", attempts=[1])
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["veto"]) == ("unknown", 1, None)
    (attempt,) = floor.attempts(intent_id)
    assert (attempt["outcome"], attempt["http_status"]) == ("lost", 503)
    assert attempt["should_retry"] is True
    floor.drain()
    assert len(floor.posts()) == 1
    floor.advance(11)
    floor.look()
    assert floor.reads()
    floor.drain()
    assert floor.status(intent_id) == "succeeded"
    first, second = floor.posts()
    assert (first["key"], first["body_sha256"]) == (second["key"], second["body_sha256"])
    assert floor.effects(intent_id) == 1
    assert floor.escalations() == []


def test_a_vendor_that_answers_503_all_day_is_asked_nine_times_and_one_person_once(
    floor: Floor,
) -> None:
    intent_id = _sent(floor, "unavailable_503")
    passed = 0.0
    while passed < 5 * HOUR:
        passed += floor.jump(intent_id)
        floor.round()
    assert floor.status(intent_id) == "unknown"
    assert len(floor.posts()) == 1 + floor.settings.policy.max_resends
    assert _triggers(floor) == ["ttl"]
    assert floor.effects(intent_id) == 0
    floor.sandbox.clear_faults(floor.account)
    floor.jump(intent_id)
    floor.round()
    assert floor.status(intent_id) == "unknown", "absent is not proved, and the re-sends are spent"


# -- a redirect -----------------------------------------------------------------------------------


def _of_somebody_else(floor: Floor) -> str:
    """A charge that is there already, to which a redirect leads."""
    planted = floor.sandbox.plant(floor.account, "payment_intents.create", dict(CARD))
    return str(planted["id"])


def test_a_redirect_of_a_write_is_never_followed_and_is_doubt(floor: Floor) -> None:
    """Followed as a GET it shows somebody else's charge, which reads like a success."""
    other = _of_somebody_else(floor)
    intent_id = _sent(floor, "redirect_302", attempts=[1])
    assert [(r["method"], r["status"]) for r in floor.posts()] == [("POST", 302)]
    assert floor.reads() == []
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["receipt_id"]) == ("unknown", 1, None)
    (attempt,) = floor.attempts(intent_id)
    assert (attempt["outcome"], attempt["http_status"]) == ("lost", 302)
    floor.advance(11)
    floor.round()
    row = floor.row(intent_id)
    assert row["status"] == "succeeded"
    assert row["receipt_id"] != other
    assert len(floor.posts(intent_id)) == 2
    assert floor.effects(intent_id) == 1
    assert [r for r in floor.reads() if r["path"].endswith(other)] == []


def test_a_vendor_that_redirects_for_ever_ends_in_one_question(floor: Floor) -> None:
    other = _of_somebody_else(floor)
    intent_id = _sent(floor, "redirect_302")
    passed = 0.0
    while passed < 5 * HOUR:
        passed += floor.jump(intent_id)
        floor.round()
    assert floor.status(intent_id) == "unknown"
    assert _triggers(floor) == ["ttl"]
    assert [r for r in floor.reads() if r["path"].endswith(other)] == []
    assert floor.effects(intent_id) == 0


def test_a_redirected_look_up_is_not_followed_and_proves_nothing(floor: Floor) -> None:
    _of_somebody_else(floor)
    intent_id = _sent(floor, "lost_request", attempts=[1])
    floor.sandbox.fault("redirect_302", account=floor.account, endpoint=READS)
    floor.advance(3 * HOUR)
    floor.look()
    row = floor.row(intent_id)
    assert (row["absent_looks"], row["absent_first_at"]) == (0, None)
    assert {r["status"] for r in floor.reads()} == {302}
    assert all("/pi_" not in r["path"] for r in floor.reads())


# -- a replay in another API version --------------------------------------------------------------


def test_a_replay_that_speaks_another_version_is_read_as_the_same_charge(floor: Floor) -> None:
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    floor.sandbox.fault("version_changed_replay", account=floor.account)
    intent_id = _sent(floor, "lost_ack", attempts=[1])
    floor.advance(11)
    floor.look()
    floor.drain()
    (charge,) = floor.sandbox.objects(floor.account, "payment_intents")
    row = floor.row(intent_id)
    assert (row["status"], row["business_status"]) == ("succeeded", "paid")
    assert (row["receipt_id"], row["settled_by"]) == (charge["id"], "replay")
    assert OTHER_VERSION in row["receipt"], "the other rendering was what the row was settled by"
    assert {post["api_version"] for post in floor.posts()} == {row["api_version"]}
    assert floor.effects(intent_id) == 1
    assert floor.escalations() == []


@pytest.mark.parametrize("word", ["processing", "requires_action"])
def test_such_a_replay_of_a_charge_that_is_not_paid_is_not_called_paid(
    floor: Floor, word: str
) -> None:
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    floor.sandbox.fault("version_changed_replay", account=floor.account)
    floor.sandbox.fault(f"status:{word}", account=floor.account)
    intent_id = _sent(floor, "lost_ack", attempts=[1])
    floor.advance(11)
    floor.look()
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["business_word"]) == ("succeeded", word)
    assert row["business_status"] != "paid"


def test_such_a_replay_of_a_declined_charge_is_the_decline(floor: Floor) -> None:
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    floor.sandbox.fault("version_changed_replay", account=floor.account)
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intent_id = floor.one(payment_method="pm_card_chargeDeclined")
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    floor.advance(11)
    floor.look()
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["failure_code"]) == ("failed_poison", "generic_decline")
    assert floor.effects(intent_id) == 0


def test_a_re_send_after_an_upgrade_speaks_the_version_of_the_first_send(floor: Floor) -> None:
    """The newer release pins another version; the row's own is part of what was frozen."""
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = _sent(floor, "lost_ack", attempts=[1])
    contract = floor.directory.contract("stripe")
    assert contract is not None
    newer = StripeVendor(replace(contract, api_version=OTHER_VERSION), connect_s=5.0, read_s=20.0)
    directory = Directory(floor.settings, {"stripe": newer})
    for account in floor.directory.accounts.values():
        directory.learn("stripe", account)
    sender = Sender(
        floor.store,
        directory,
        Doorbell("", timeout_s=0.1),
        owner="newer",
        stopping=lambda: False,
        jitter=lambda: 0.5,
    )
    floor.senders.append(sender)
    floor.advance(11)
    floor.look()
    sender.drain()
    directory.close()
    assert floor.status(intent_id) == "succeeded"
    posts = floor.posts()
    assert len(posts) == 2
    assert {post["api_version"] for post in posts} == {floor.row(intent_id)["api_version"]}
    assert OTHER_VERSION not in {post["api_version"] for post in posts}

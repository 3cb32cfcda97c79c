"""A vendor that forgets its keys, at their time and before it, and what of that may become two."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from tests.workers.floor import READS, Floor

HOUR = 3600.0
DAY = 24 * HOUR
MARGIN = 2 * HOUR
LIST = "/v1/payment_intents"


def _unseen(floor: Floor, fault: str, **fields: object) -> UUID:
    """A charge whose answers are lost, at a vendor whose reads fail: only a re-send can tell."""
    floor.sandbox.fault(fault, account=floor.account, **fields)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


def _bound_s(floor: Floor) -> float:
    """How long after its claim a re-send may still reach the vendor: lease, flight and slack."""
    contract = floor.directory.contract("stripe")
    assert contract is not None
    policy = floor.settings.policy
    return policy.lease_s + contract.in_flight_bound_s + policy.margin_slack_s


@pytest.mark.parametrize("forgets_after_s", [DAY, DAY - MARGIN + 481])
def test_the_last_re_send_of_the_window_is_a_replay_however_early_in_the_margin_keys_go(
    floor: Floor, forgets_after_s: float
) -> None:
    """At 24 h exactly, or as early as the margin allows: the very last second still replays."""
    assert forgets_after_s > DAY - MARGIN + _bound_s(floor)
    floor.sandbox.fault("pruned_early", account=floor.account, after_s=forgets_after_s)
    intent_id = _unseen(floor, "lost_ack", attempts=[1])
    floor.until(DAY - MARGIN - 20, intent_id)
    floor.expire()
    floor.look()
    assert floor.status(intent_id) == "retryable"
    floor.drain()
    assert [post["replayed"] for post in floor.posts()] == [0, 1]
    row = floor.row(intent_id)
    assert (row["status"], row["settled_by"]) == ("succeeded", "replay")
    assert floor.effects(intent_id) == 1


def test_a_re_send_that_the_network_holds_back_still_finds_its_key(floor: Floor) -> None:
    """It left a second before the window closed, and arrived as late as a request may."""
    floor.sandbox.set_account(floor.account, key_window_s=DAY - MARGIN + _bound_s(floor) + 1)
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intent_id = _unseen(floor, "late_commit", attempts=[2], after_s=10**6)
    floor.until(DAY - MARGIN - 20, intent_id)
    floor.expire()
    floor.look()
    floor.drain()
    floor.advance(_bound_s(floor))
    floor.sandbox.release(floor.account)
    late = [r for r in floor.sandbox.requests(floor.account) if r["origin"] == "transport"]
    assert [r["replayed"] for r in late] == [1]
    assert floor.effects(intent_id) == 1


@pytest.mark.parametrize("forgets_after_s", [DAY, DAY - MARGIN + 481])
def test_after_the_margin_began_nothing_asks_the_vendor_to_remember(
    floor: Floor, forgets_after_s: float
) -> None:
    """B04: whether the key is still there is not tried out; a person is asked."""
    floor.sandbox.fault("pruned_early", account=floor.account, after_s=forgets_after_s)
    intent_id = _unseen(floor, "lost_ack", attempts=[1])
    for age_s in (DAY - MARGIN + 1, forgets_after_s - 1, forgets_after_s, 3 * DAY):
        floor.until(age_s, intent_id)
        floor.round()
        assert floor.status(intent_id) == "unknown"
    assert len(floor.posts()) == 1
    assert floor.effects(intent_id) == 1
    (question,) = floor.escalations()
    assert question["reasons"] == ["ttl", "window"]


def test_a_landed_write_is_read_back_and_a_forgotten_key_costs_nothing(floor: Floor) -> None:
    floor.sandbox.fault("pruned_early", account=floor.account)
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    floor.advance(3600)
    floor.round()
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.posts()) == 1
    assert floor.effects(intent_id) == 1


def _by_webhooks(floor: Floor) -> None:
    assert floor.box.deliver_webhooks() > 0


def _by_a_look(floor: Floor) -> None:
    floor.advance(_bound_s(floor))


@pytest.mark.parametrize("shown", [_by_webhooks, _by_a_look])
def test_a_vendor_that_breaks_its_word_and_charges_again_is_found_out_and_asked_about(
    floor: Floor, shown: Callable[[Floor], None]
) -> None:
    """Keys kept for an hour, not for the day that was promised, and reads that failed all the
    while: nobody can prevent it, and nobody is told that all is well once it shows: by the second
    object's event, or by itself once the vendor can be read again."""
    floor.provoked.add("more_than_one_effect")
    floor.sandbox.fault("pruned_early", account=floor.account, after_s=HOUR)
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intent_id = _unseen(floor, "lost_request", attempts=[2, 3, 4])
    while floor.status(intent_id) != "succeeded":
        floor.advance(max(HOUR / 4, floor.jump(intent_id)))
        floor.expire()
        floor.look()
        floor.drain()
    assert floor.effects(intent_id) == 2
    assert len({bytes.fromhex(post["key"]) for post in floor.posts()}) == 1
    floor.sandbox.clear_faults(floor.account)
    shown(floor)
    floor.round()
    charges = {o["id"] for o in floor.sandbox.objects(floor.account, "payment_intents")}
    (question,) = [e for e in floor.escalations() if e["closed_at"] is None]
    assert set(question["detail"]["objects"]) == charges
    assert len(charges) == 2
    assert floor.row(intent_id)["contradicted_at"] is not None
    told = floor.sql("SELECT kind, told FROM outbox.settlements ORDER BY id")
    assert [(t["kind"], t["told"]) for t in told] == [
        ("settled", "settled"),
        ("contradiction", "unknown"),
    ]
    assert [p["action"] for p in floor.pages() if p["action"] == "trigger"] != []

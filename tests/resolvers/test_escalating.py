"""Escalation: nothing waits unseen, and nobody is asked the same question twice."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox.store import switches
from tests.workers.floor import READS, Floor, in_lane

HOUR = 3600.0


def _in_doubt(floor: Floor) -> UUID:
    """A charge that took effect and whose outcome nobody can see."""
    floor.sandbox.fault("lost_ack", account=floor.account)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    return intent_id


def _triggers(floor: Floor) -> list[str]:
    return [p["body"]["reason"] for p in floor.pages() if p["action"] == "trigger"]


def _pause(floor: Floor) -> None:
    with floor.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="key refused", by="sender")


def test_nobody_is_asked_before_the_ttl_and_somebody_is_after_it(floor: Floor) -> None:
    intent_id = _in_doubt(floor)
    floor.until(4 * HOUR - 5, intent_id)
    floor.escalate()
    assert floor.escalations() == []
    floor.until(4 * HOUR + 1, intent_id)
    floor.escalate()
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (intent_id, ["ttl"])
    assert question["detail"]["amount_minor"] == 4900
    assert _triggers(floor) == ["ttl"]


def test_fifty_ticks_ask_once(floor: Floor) -> None:
    """B20: one row past its TTL, looked at for hours."""
    intent_id = _in_doubt(floor)
    floor.until(4 * HOUR + 1, intent_id)
    for _ in range(50):
        floor.escalate()
        floor.advance(360)
    assert len(floor.escalations()) == 1
    assert _triggers(floor) == ["ttl"]


def test_the_window_that_closes_later_is_a_reason_and_a_page_of_its_own(floor: Floor) -> None:
    intent_id = _in_doubt(floor)
    floor.until(4 * HOUR + 1, intent_id)
    floor.escalate()
    floor.until(22 * HOUR - 5, intent_id)
    floor.escalate()
    assert _triggers(floor) == ["ttl"]
    floor.until(22 * HOUR + 1, intent_id)
    floor.escalate()
    (question,) = floor.escalations()
    assert question["reasons"] == ["ttl", "window"]
    assert _triggers(floor) == ["ttl", "window"]
    assert len({p["dedup_key"] for p in floor.pages()}) == 2


def test_a_row_that_was_never_sent_is_asked_about_from_its_enqueue_on(floor: Floor) -> None:
    floor.sandbox.fault("lock_timeout_429", account=floor.account)
    intent_id = floor.one()
    for _ in range(3):
        floor.drain()
        floor.advance(70)
    floor.advance(4 * HOUR - 250)
    floor.escalate()
    assert floor.escalations() == []
    floor.advance(60)
    floor.escalate()
    (question,) = floor.escalations()
    assert (question["reasons"], question["detail"]["why"]) == (["ttl"], "never sent")
    assert floor.status(intent_id) == "pending"


def test_late_evidence_closes_the_question_and_its_pages(floor: Floor) -> None:
    """B10: at most one question, which closes itself."""
    intent_id = _in_doubt(floor)
    floor.until(22 * HOUR + 1, intent_id)
    floor.escalate()
    floor.sandbox.clear_faults(floor.account)
    floor.advance(HOUR)
    floor.look()
    assert floor.status(intent_id) == "succeeded"
    (question,) = floor.escalations()
    assert question["closed_at"] is not None
    pages = [(p["action"], p["body"]["reason"]) for p in floor.pages()]
    assert sorted(pages) == [
        ("resolve", "ttl"),
        ("resolve", "window"),
        ("trigger", "ttl"),
        ("trigger", "window"),
    ]


def test_rows_that_a_paused_vendor_holds_share_its_question(floor: Floor) -> None:
    floor.enqueue(30)
    _pause(floor)
    floor.advance(5 * HOUR)
    for _ in range(5):
        floor.escalate()
        floor.advance(70)
    (question,) = floor.escalations()
    assert (question["holder"], question["reasons"]) == ("vendor:stripe/default", ["paused"])
    assert _triggers(floor) == ["paused"]


def test_a_row_in_doubt_at_a_paused_vendor_is_asked_about_by_itself(floor: Floor) -> None:
    intent_id = _in_doubt(floor)
    _pause(floor)
    floor.until(4 * HOUR + 1, intent_id)
    floor.escalate()
    asked = {(e["holder"], e["intent_id"]) for e in floor.escalations()}
    assert asked == {("vendor:stripe/default", None), (None, intent_id)}


def test_a_row_that_stays_unsent_after_the_pause_is_asked_about_within_a_few_ticks(
    floor: Floor,
) -> None:
    """Rule 9: the holder's question is closed, and the row may not fall between the two."""
    floor.sandbox.fault("lock_timeout_429", account=floor.account)
    floor.one()
    _pause(floor)
    floor.advance(5 * HOUR)
    floor.escalate()
    with floor.store.transaction() as tx:
        switches.resume(tx, "stripe", "default", by="jane", reason="new key")
    floor.drain()
    floor.advance(61)
    floor.escalate()
    assert [(e["holder"], e["reasons"]) for e in floor.escalations() if not e["closed_at"]] == [
        (None, ["ttl"])
    ]


def test_a_head_that_holds_its_lane_is_asked_about_once(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    head = floor.one(tool=in_lane(), customer="cus_lane")
    waiting = [floor.one(tool=in_lane(), customer="cus_lane") for _ in range(4)]
    alone = floor.one(tool=in_lane(), customer="cus_alone")
    floor.drain()
    floor.until(14 * 60, head)
    floor.escalate()
    assert floor.escalations() == []
    floor.until(16 * 60, head)
    for _ in range(3):
        floor.escalate()
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (head, ["lane_held"])
    # Past their own TTL the waiting rows share it.
    floor.until(5 * HOUR, head)
    for _ in range(3):
        floor.escalate()
        floor.advance(70)
    assert {e["intent_id"]: e["reasons"] for e in floor.escalations()} == {
        head: ["lane_held", "ttl"],
        alone: ["ttl"],
    }
    assert [floor.status(i) for i in waiting] == ["pending"] * 4


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "UTC"])
def test_a_ttl_is_seconds_and_knows_no_summer_time(floor: Floor, zone: str) -> None:
    """B43: on the night of the clock change it is as long as on any other."""
    floor.in_zone(zone, "2026-10-25 00:30:00+00")
    intent_id = _in_doubt(floor)
    (row,) = floor.sql(
        "SELECT EXTRACT(EPOCH FROM ttl_at - first_sent_at) AS ttl_s, "
        "EXTRACT(EPOCH FROM window_ends_at - first_sent_at) AS window_s FROM outbox.intents"
    )
    assert (row["ttl_s"], row["window_s"]) == (4 * HOUR, 22 * HOUR)
    floor.until(4 * HOUR - 5, intent_id)
    floor.escalate()
    assert floor.escalations() == []
    floor.until(4 * HOUR + 1, intent_id)
    floor.escalate()
    assert len(floor.escalations()) == 1


def test_five_hundred_rows_and_more_are_asked_about_in_one_tick(floor: Floor) -> None:
    """B20: a vendor's outage; how many pages that makes is for the paging to group."""
    floor.sandbox.fault("lock_timeout_429", account=floor.account)
    floor.enqueue(700)
    floor.advance(5 * HOUR)
    floor.escalate()
    assert len(floor.escalations()) == 700

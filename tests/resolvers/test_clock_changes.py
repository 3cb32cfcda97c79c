"""The two nights of the year on which a wall clock is set: no wait is longer or shorter for it."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox.store.connection import Transaction
from tests.workers.floor import READS, Floor

HOUR = 3600.0
# A row is sent shortly before the change, in zones that change then and in one that never does.
NIGHTS = [
    ("Europe/Paris", "2026-10-25 00:55:00+00"),
    ("Europe/Paris", "2026-03-29 00:55:00+00"),
    ("America/New_York", "2026-11-01 05:55:00+00"),
    ("America/New_York", "2026-03-08 06:55:00+00"),
    ("UTC", "2026-03-29 00:55:00+00"),
]


def _in_doubt(floor: Floor) -> UUID:
    floor.sandbox.fault("lost_request", account=floor.account, attempts=[1])
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


@pytest.mark.parametrize(("zone", "now"), NIGHTS)
def test_a_ttl_ends_within_a_tick_of_its_second(floor: Floor, zone: str, now: str) -> None:
    """B43: a question is asked four hours of real time after the send."""
    floor.in_zone(zone, now)
    floor.sandbox.fault("lost_ack", account=floor.account)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    floor.until(4 * HOUR - 5, intent_id)
    floor.escalate()
    assert floor.escalations() == []
    floor.until(4 * HOUR + floor.settings.policy.tick_escalate_s, intent_id)
    floor.escalate()
    assert [e["reasons"] for e in floor.escalations()] == [["ttl"]]


@pytest.mark.parametrize(("zone", "now"), NIGHTS)
def test_a_re_send_goes_in_its_seconds_and_a_window_ends_in_its_hours(
    floor: Floor, zone: str, now: str
) -> None:
    """B43: in spring an hour is missing and in autumn there is one more; neither moves a window."""
    floor.in_zone(zone, now)
    intent_id = _in_doubt(floor)
    (row,) = floor.sql(
        "SELECT EXTRACT(EPOCH FROM window_ends_at - first_sent_at)::float8 AS window_s, "
        "EXTRACT(EPOCH FROM due_at - outbox.clock())::float8 AS look_s FROM outbox.intents"
    )
    assert row["window_s"] == 22 * HOUR
    assert 0 < row["look_s"] <= floor.settings.policy.looks_s[0]
    floor.until(11, intent_id)
    floor.look()
    assert floor.status(intent_id) == "retryable"
    floor.drain()
    assert floor.status(intent_id) == "succeeded"
    assert floor.effects(intent_id) == 1


@pytest.mark.parametrize(("zone", "now"), NIGHTS)
def test_nothing_is_sent_in_the_hour_that_a_wall_clock_adds_to_a_window(
    floor: Floor, zone: str, now: str
) -> None:
    floor.in_zone(zone, now)
    intent_id = _in_doubt(floor)
    floor.until(22 * HOUR + 1, intent_id)
    floor.round()
    assert floor.status(intent_id) == "unknown"
    assert len(floor.posts()) == 1
    assert [e["reasons"] for e in floor.escalations()] == [["ttl", "window"]]


def test_our_own_sessions_compute_in_utc_whatever_the_zone_of_the_database(floor: Floor) -> None:
    floor.in_zone("Europe/Paris", "2026-03-29 00:55:00+00")

    def zone(tx: Transaction) -> str:
        row = tx.one("SHOW timezone")
        assert row is not None
        return str(row["TimeZone"])

    with floor.store.transaction() as tx:
        assert zone(tx) == "UTC"

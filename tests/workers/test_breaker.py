"""The breaker of one (vendor, account): trips on an outage, lets one row through, opens again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.floor import PRODUCTION, Floor, in_lane, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, PRODUCTION, OUTBOX_BATCH="4", OUTBOX_THREADS="4") as opened:
        yield opened
        sandbox.accept_connections(True)


def _due_now(floor: Floor) -> None:
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'pending'")


def _breaker(floor: Floor) -> dict[str, object] | None:
    rows = floor.sql(
        "SELECT kind, probe_after_s, probe_at > outbox.clock() AS later FROM outbox.switches"
    )
    return rows[0] if rows else None


def test_ten_of_twenty_trip_the_breaker_and_fewer_do_not(floor: Floor) -> None:
    floor.sandbox.fault("unavailable_503", account=floor.account, times=9)
    floor.enqueue(9)
    floor.drain()
    assert _breaker(floor) is None
    floor.sandbox.fault("unavailable_503", account=floor.account, times=1)
    floor.enqueue(1)
    floor.drain()
    assert _breaker(floor) == {"kind": "breaker", "probe_after_s": 15.0, "later": True}


def test_refusals_and_throttling_do_not_trip_it(floor: Floor) -> None:
    floor.sandbox.fault("lock_timeout_429", account=floor.account, attempts=[1])
    floor.enqueue(15)
    floor.enqueue(15, payment_method="nobody_knows")
    floor.drain()
    assert _breaker(floor) is None


def test_a_tripped_breaker_holds_all_rows_and_lets_one_through_at_its_time(
    floor: Floor,
) -> None:
    """Probes are twice as far apart each time the vendor is still away, and one that passes
    opens the gates."""
    floor.sandbox.accept_connections(False)
    floor.enqueue(12)
    floor.drain()
    assert _breaker(floor) is not None
    tried = len(floor.sql("SELECT id FROM outbox.attempts"))
    _due_now(floor)
    assert floor.drain() == 0
    for wait_s in (15.0, 30.0, 60.0):
        assert _breaker(floor) == {"kind": "breaker", "probe_after_s": wait_s, "later": True}
        floor.advance(wait_s + 1)
        _due_now(floor)
        assert floor.drain() == 1
        tried += 1
        assert len(floor.sql("SELECT id FROM outbox.attempts")) == tried
    floor.sandbox.accept_connections(True)
    floor.advance(121)
    _due_now(floor)
    assert floor.drain() == 12
    assert _breaker(floor) is None
    assert floor.statuses() == {"succeeded": 12}


def test_a_probe_does_not_get_lost_where_lanes_wait(floor: Floor) -> None:
    """Lanes are claimed by a statement of their own: one probe for both, and it is used."""
    floor.sandbox.accept_connections(False)
    floor.enqueue(12)
    floor.drain()
    for lane in range(3):
        floor.enqueue(1, tool=in_lane(), customer=f"cus_{lane}")
    floor.sandbox.accept_connections(True)
    floor.sandbox.fault("lock_timeout_429", account=floor.account, times=1)
    floor.advance(16)
    _due_now(floor)
    floor.drain()
    # The first one told that the vendor is back, and the gates opened for all others.
    assert _breaker(floor) is None
    assert len(floor.posts()) == 15


def test_a_silent_probe_does_not_open_the_gates(floor: Floor) -> None:
    floor.sandbox.accept_connections(False)
    floor.enqueue(12)
    floor.drain()
    floor.sandbox.accept_connections(True)
    floor.sandbox.fault("lost_request", account=floor.account, times=1)
    floor.advance(16)
    _due_now(floor)
    assert floor.drain() == 1
    assert _breaker(floor) == {"kind": "breaker", "probe_after_s": 30.0, "later": True}


def test_rows_that_a_breaker_holds_share_one_question(floor: Floor) -> None:
    floor.sandbox.accept_connections(False)
    floor.enqueue(12)
    floor.drain()
    floor.advance(floor.settings.policy.ttl_max_s + 1)
    floor.escalate()
    (question,) = floor.escalations()
    assert (question["holder"], question["reasons"]) == ("vendor:stripe/default", ["breaker"])

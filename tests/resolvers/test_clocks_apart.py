"""The database's clock and the vendor's: objects are sought by the vendor's."""

from __future__ import annotations

import pytest

from outbox import Unreachable
from resolvers import triage
from tests.workers.floor import Floor

AHEAD_S = 1200


def _drift(floor: Floor, seconds: float) -> None:
    """Time passes, and the database stays that much ahead of the vendor."""
    floor.advance(seconds)
    floor.sandbox.set_account(floor.account, clock_offset_s=floor.clock.offset - AHEAD_S)


def test_nothing_is_absent_where_the_databases_clock_is_far_ahead_of_the_vendors(
    floor: Floor,
) -> None:
    """What landed then was created, by the vendor's clock, before it was sent."""
    floor.clock.advance(AHEAD_S)
    floor.sandbox.fault("lost_ack", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    _drift(floor, 3600)
    floor.look()
    row = floor.row(intent_id)
    assert (row["absent_looks"], row["absent_first_at"]) == (0, None)
    with pytest.raises(Unreachable, match="clock"):
        triage.not_landed(floor.store, floor.directory, intent_id, by="jane", reason="looked")
    assert (floor.row(intent_id)["settled_at"], floor.effects(intent_id)) == (None, 1)


def test_what_landed_is_found_though_the_clocks_are_ten_minutes_apart(floor: Floor) -> None:
    floor.clock.advance(590)
    floor.sandbox.fault("lost_ack", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock()")
    floor.look()
    assert floor.status(intent_id) == "succeeded"


def test_what_an_attempt_made_that_was_proved_not_sent_is_found_by_the_look_for_a_later_one(
    floor: Floor,
) -> None:
    """A request that the limiter refused was delivered once more by the network."""
    floor.sandbox.fault("late_commit", account=floor.account, attempts=[1], after_s=3600)
    intent_id = floor.one()
    floor.drain()
    floor.sandbox.release(floor.account)
    # As if its answer had been a 429: the row was never sent, and is sent again much later.
    floor.sql(
        "UPDATE outbox.intents SET status = 'pending', doubt = 0, first_sent_at = NULL, "
        "window_ends_at = NULL, due_at = outbox.clock(), ttl_s = 86400"
    )
    floor.advance(7200)
    floor.sandbox.fault("lost_request", account=floor.account, attempts=[2])
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    floor.advance(6)
    floor.look()
    assert floor.status(intent_id) == "succeeded"

"""Sweeps: leases that ended, re-sends that may not go any more, turns that are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from outbox import Outbox, Scope
from outbox.store import doubt, switches
from outbox.store.claims import Claimer
from tests.workers.floor import CARD, CHARGE, Floor


def _claimed(floor: Floor, count: int = 1) -> list[UUID]:
    """Rows of a worker that is never heard of again."""
    floor.enqueue(count)
    claimer = Claimer(
        floor.store, floor.directory.sendable(), owner="lost", lease_s=floor.settings.policy.lease_s
    )
    return [row.id for row in claimer.claim(1000)]


def _approved(floor: Floor) -> UUID:
    """A row whose re-send is approved."""
    floor.sandbox.fault("lost_request", account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    floor.until(11, intent_id)
    floor.look()
    assert floor.status(intent_id) == "retryable"
    return intent_id


def test_a_lease_that_runs_is_left_alone_and_one_that_ended_is_doubt(floor: Floor) -> None:
    (intent_id,) = _claimed(floor)
    floor.advance(59)
    floor.expire()
    assert floor.status(intent_id) == "in_flight"
    lease_until = floor.row(intent_id)["lease_until"]
    floor.advance(2)
    floor.expire()
    floor.expire()
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["crashes"]) == ("unknown", 1, 1)
    assert (row["lease_token"], row["lease_until"]) == (None, None)
    # Until then it may have left: from there absence is reckoned.
    assert row["last_lease_end"] == lease_until
    assert floor.outcomes(intent_id) == ["lease_expired"]


def test_a_lost_workers_row_is_looked_up_when_a_lost_answer_of_its_call_would_be(
    floor: Floor,
) -> None:
    """Its call has ended 50 s after its claim at the latest, and a lost answer is looked up 5 s
    later: within the lease of 60 s."""
    (intent_id,) = _claimed(floor)
    floor.advance(61)
    floor.expire()
    (now,) = floor.sql("SELECT outbox.clock() AS at")
    assert floor.row(intent_id)["due_at"] <= now["at"]
    assert floor.look() == 1


def test_after_a_lease_as_short_as_it_may_be_the_first_look_waits(floor: Floor) -> None:
    (intent_id,) = _claimed(floor)
    lease_until = floor.row(intent_id)["lease_until"]
    floor.advance(61)
    with floor.store.transaction() as tx:
        doubt.expire_leases(tx, limit=1, look_after_s=3.0, max_crashes=3)
    assert floor.row(intent_id)["due_at"] == lease_until + timedelta(seconds=3)
    assert floor.look() == 0
    floor.advance(3)
    assert floor.look() == 1


def test_a_thousand_ended_leases_are_swept_in_one_go(floor: Floor) -> None:
    _claimed(floor, 1100)
    floor.advance(61)
    floor.expire()
    assert floor.statuses().get("unknown") == 1000


def _close_window(floor: Floor, intent_id: UUID) -> None:
    floor.until(22 * 3600 + 1, intent_id)


def _pause(floor: Floor, intent_id: UUID) -> None:
    with floor.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="looking into it", by="jane")


def _veto(floor: Floor, intent_id: UUID) -> None:
    floor.sql(
        "UPDATE outbox.intents SET veto = 'do_not_retry' WHERE id = %(id)s", {"id": intent_id}
    )


def _acknowledge(floor: Floor, intent_id: UUID) -> None:
    floor.until(4 * 3600 + 1, intent_id)
    floor.escalate()
    floor.sql("UPDATE outbox.escalations SET acked_until = outbox.clock() + INTERVAL '1 hour'")


def _doubt_the_clock(floor: Floor, intent_id: UUID) -> None:
    with floor.store.transaction() as tx:
        switches.doubt_clock(tx, "stepped by 3600 s")


@pytest.mark.parametrize("stop", [_close_window, _pause, _veto, _acknowledge, _doubt_the_clock])
def test_an_approved_re_send_is_withdrawn(
    floor: Floor, stop: Callable[[Floor, UUID], None]
) -> None:
    """B04, and the races between an approval and what forbids it."""
    intent_id = _approved(floor)
    stop(floor, intent_id)
    # The claim repeats every veto itself: it does not depend on the sweep.
    if stop is not _acknowledge:
        assert floor.drain() == 0
    floor.expire()
    assert floor.status(intent_id) == "unknown"
    assert floor.drain() == 0
    assert len(floor.posts()) == 1


def test_a_withdrawn_re_send_goes_once_the_pause_is_over(floor: Floor) -> None:
    intent_id = _approved(floor)
    _pause(floor, intent_id)
    floor.expire()
    with floor.store.transaction() as tx:
        switches.resume(tx, "stripe", "default", by="jane", reason="found it")
    floor.jump(intent_id)
    floor.advance(60)
    floor.look()
    floor.drain()
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.posts()) == 2


def test_an_approved_re_send_that_nothing_forbids_stays(floor: Floor) -> None:
    intent_id = _approved(floor)
    floor.expire()
    assert floor.status(intent_id) == "retryable"


def test_a_turn_that_is_over_cancels_what_was_never_sent_and_nothing_else(floor: Floor) -> None:
    tool = replace(CHARGE, name="charge_in_turn", once_per="epoch")
    outbox = Outbox(floor.settings)
    url = floor.settings.database_url.replace("+psycopg", "")

    def ask(epoch: str, invoice: str) -> UUID:
        scope = Scope(tenant="acme", run_id="chat", epoch=epoch)
        with psycopg.connect(url) as connection:
            args = {**CARD, "invoice_id": invoice}
            return outbox.enqueue(connection, tool, scope, args).intent_id

    floor.sandbox.fault("lost_request", account=floor.account, times=1)
    with psycopg.connect(url) as connection:
        outbox.advance_epoch(connection, "acme", "chat", "turn-1")
    sent = ask("turn-1", "in_sent")
    floor.drain()
    assert floor.status(sent) == "unknown"
    unsent = ask("turn-1", "in_unsent")
    # Whoever ends the turn by other means than our call (a restore, an older release).
    floor.sql("UPDATE outbox.epochs SET ended_at = outbox.clock() WHERE epoch = 'turn-1'")
    floor.sql(
        "INSERT INTO outbox.epochs (tenant, run_id, epoch, started_at) "
        "VALUES ('acme', 'chat', 'turn-2', outbox.clock())"
    )
    assert floor.drain() == 0, "the claim leaves it alone too"
    floor.expire()
    assert floor.status(unsent) == "cancelled"
    assert floor.status(sent) == "unknown"
    outbox.close()

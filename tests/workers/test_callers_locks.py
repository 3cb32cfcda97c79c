"""A caller's transaction that stays open holds its own row, and nobody else's answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from outbox.errors import Unreachable
from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.resolvers.deliveries import signed
from tests.workers.floor import PRODUCTION, SECRET, WAIT_S, Floor, open_floor, wait_until
from vendors.sandbox.client import Sandbox


@contextmanager
def _held(floor: Floor, intent_id: UUID) -> Iterator[psycopg.Connection[Any]]:
    """What a re-emit of a settled intent does in its caller's transaction."""
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as caller:
        caller.execute(
            "UPDATE outbox.intents SET told_at = outbox.clock() WHERE id = %s", (intent_id,)
        )
        yield caller


def _deliver_all(floor: Floor) -> None:
    for event in floor.sandbox.objects(floor.account, "events"):
        sent = signed(event, int(time.time()), SECRET)
        receive(
            floor.store,
            floor.directory,
            vendor="stripe",
            account="default",
            headers=sent.headers,
            body=sent.body,
        )


def test_answers_beside_a_row_that_a_caller_holds_are_recorded_at_once(floor: Floor) -> None:
    """They stayed in flight until the caller committed."""
    floor.sandbox.fault("slow", account=floor.account, after_s=0.3)
    held, *others = floor.enqueue(6)
    drain = floor.drain_beside()
    wait_until(lambda: len(floor.posts()) == 6)
    with _held(floor, held) as caller:
        wait_until(lambda: {floor.status(i) for i in others} == {"succeeded"})
        drain.join()
        assert floor.status(held) == "in_flight"
        assert floor.sender.has_late_answers(), "its answer is offered again by the next drain"
        more = floor.enqueue(2)
        floor.drain()
        assert {floor.status(i) for i in more} == {"succeeded"}
        caller.rollback()
    wait_until(lambda: floor.drain() == 0 and floor.status(held) == "succeeded")
    assert floor.outcomes(held) == ["receipt"]
    assert not floor.sender.has_late_answers()
    assert len(floor.posts()) == 8


def test_a_process_told_to_end_waits_for_a_row_that_a_caller_holds(floor: Floor) -> None:
    floor.sandbox.fault("slow", account=floor.account, after_s=0.3)
    held = floor.one()
    drain = floor.drain_beside()
    wait_until(floor.posts)
    with _held(floor, held) as caller:
        floor.told_to_stop.set()
        wait_until(floor.sender.has_late_answers)
        assert drain.is_alive()
        caller.rollback()
        drain.join()
    assert floor.status(held) == "succeeded"


def test_a_lock_that_all_answers_meet_holds_up_no_later_ones_for_good(floor: Floor) -> None:
    """A row that refusals ask for (the account's switch) in somebody's hands: each is written once
    it is free, and none is lost."""
    floor.sandbox.fault("unauthorized_401", account=floor.account, times=3)
    refused = floor.enqueue(3)
    holder = "vendor:stripe/default"
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as other:
        other.execute(
            "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
            "VALUES (%s, 'pause', 'stripe/default/', '', 'test', now())",
            (holder,),
        )
        thread = threading.Thread(target=_drain_once, args=(floor,))
        thread.start()
        wait_until(lambda: len(floor.posts()) == 3)
        other.rollback()
        thread.join()
    wait_until(lambda: floor.drain() == 0 and not floor.sender.has_late_answers())
    assert {floor.status(i) for i in refused} == {"pending"}
    assert all(floor.outcomes(i) == ["not_sent"] for i in refused)


def test_a_drain_whose_answers_cannot_be_written_sends_no_more_and_ends(
    database: str, sandbox: Sandbox
) -> None:
    """Somebody holds a table, as who builds an index does: each answer that is not written when
    its lease ends is doubt. And what waits for that must not spin."""
    with open_floor(
        database, sandbox, PRODUCTION,
        OUTBOX_THREADS="2", OUTBOX_BATCH="2", OUTBOX_LOCK_TIMEOUT_S="0.05",
    ) as floor:  # fmt: skip
        ids = floor.enqueue(60)
        with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE outbox.attempts IN SHARE MODE")
            drain = threading.Thread(target=floor.sender.drain, args=(600.0,), daemon=True)
            drain.start()
            drain.join(WAIT_S)
            assert not drain.is_alive()
            assert 16 <= len(floor.posts()) < 60
            other.rollback()
        wait_until(lambda: floor.drain() == 0 and not floor.sender.has_late_answers())
        assert floor.statuses() == {"succeeded": 60}
        assert all(floor.effects(i) == 1 for i in ids)


def _drain_once(floor: Floor) -> None:
    try:
        floor.drain()
    except Unreachable:
        return


def test_an_event_whose_intent_a_caller_holds_keeps_no_other_from_joining(floor: Floor) -> None:
    """The whole job was given up at the first of them."""
    floor.sandbox.fault("lost_ack", account=floor.account)
    held, other = floor.enqueue(2)
    floor.drain()
    _deliver_all(floor)
    with _held(floor, held) as caller:
        join_once(floor.store, floor.directory)
        assert (floor.status(held), floor.status(other)) == ("unknown", "succeeded")
        caller.rollback()
    floor.advance(2)
    join_once(floor.store, floor.directory)
    assert floor.status(held) == "succeeded"
    assert {r["state"] for r in floor.sql("SELECT state FROM outbox.webhook_inbox")} == {"joined"}

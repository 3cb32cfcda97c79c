"""Time limits of one call: who may start, who is cut, and what comes too late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from outbox.outcomes import Lost, Outcome, Receipt
from tests.workers.doubles import FirstHeld, Stalled
from tests.workers.floor import FAST, READS, Floor, open_floor, wait_until
from vendors.sandbox.client import Sandbox


def test_a_thread_that_starts_too_late_sends_nothing(database: str, sandbox: Sandbox) -> None:
    with open_floor(database, sandbox, OUTBOX_START_LIMIT_S="0") as floor:
        ids = floor.enqueue(3)
        floor.sender.drain(budget_s=0.3)
        assert floor.posts() == []
        for intent_id in ids:
            assert floor.status(intent_id) == "pending"
            assert set(floor.outcomes(intent_id)) == {"not_sent"}


def test_a_stall_after_the_start_is_caught_before_the_first_byte(
    database: str, sandbox: Sandbox
) -> None:
    """The last gate is at the socket: connecting may take longer than the claim allows."""
    stalled = threading.Event()

    def stall(_: object) -> None:
        if not stalled.is_set():
            stalled.set()
            threading.Event().wait(0.5)

    with open_floor(
        database,
        sandbox,
        vendor=lambda built: Stalled(built, before=stall),
        OUTBOX_START_LIMIT_S="0.3",
    ) as floor:
        intent_id = floor.one()
        floor.drain()
        assert floor.outcomes(intent_id)[0] == "not_sent"
        floor.settle()
        assert floor.outcomes(intent_id) == ["not_sent", "receipt"]
        assert len(floor.posts()) == 1


@pytest.mark.parametrize(("fault", "effects"), [("hang", 0), ("drip", 1)])
def test_a_vendor_that_does_not_finish_is_cut_at_the_deadline(
    floor: Floor, fault: str, effects: int
) -> None:
    floor.sandbox.fault(fault, account=floor.account, attempts=[1], after_s=20)
    intent_id = floor.one()
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"]) == ("unknown", 1)
    assert floor.effects(intent_id) == effects
    # The thread whose socket was shut adds no second loss.
    floor.drain()
    assert floor.outcomes(intent_id) == ["lost"]
    floor.settle()
    assert floor.effects(intent_id) == 1
    assert floor.row(intent_id)["doubt"] == 0


def test_an_answer_after_the_deadline_is_late_evidence_and_settles(
    database: str, sandbox: Sandbox
) -> None:
    held = FirstHeld()
    with open_floor(database, sandbox, vendor=held.wrap) as floor:
        intent_id = floor.one()
        floor.drain()
        assert (floor.row(intent_id)["status"], floor.row(intent_id)["doubt"]) == ("unknown", 1)
        held.go.set()
        wait_until(floor.sender.has_late_answers)
        floor.drain()
        row = floor.row(intent_id)
        assert (row["status"], row["settled_by"], row["doubt"]) == ("succeeded", "late_reply", 0)
        assert floor.outcomes(intent_id) == ["lost", "receipt (late)"]
        assert len(floor.posts()) == 1


def test_a_thread_that_does_not_come_back_keeps_no_place(database: str, sandbox: Sandbox) -> None:
    held = FirstHeld()
    with open_floor(database, sandbox, vendor=held.wrap, OUTBOX_THREADS="1") as floor:
        first, second = floor.one(), floor.one()
        floor.drain()
        # The second was sent by another thread, while the first one's still holds its answer.
        assert [floor.status(i) for i in (first, second)] == ["unknown", "succeeded"]
        assert not held.go.is_set()
        held.go.set()
        wait_until(floor.sender.has_late_answers)
        floor.drain()
        assert [floor.effects(i) for i in (first, second)] == [1, 1]


def test_a_refusal_after_the_deadline_answers_the_doubt_it_left(
    database: str, sandbox: Sandbox
) -> None:
    held = FirstHeld()
    with open_floor(database, sandbox, vendor=held.wrap) as floor:
        intent_id = floor.one(payment_method="nobody_knows")
        floor.drain()
        assert floor.row(intent_id)["doubt"] == 1
        held.go.set()
        wait_until(floor.sender.has_late_answers)
        floor.drain()
        row = floor.row(intent_id)
        assert (row["status"], row["doubt"]) == ("failed_poison", 0)


def _same(outcome: Outcome) -> Outcome:
    return outcome


def _nothing(_: Outcome) -> Outcome:
    return Lost("time-out")


def _another_object(outcome: Outcome) -> Outcome:
    assert isinstance(outcome, Receipt)
    return replace(outcome, reading=replace(outcome.reading, receipt_id="pi_another"))


@pytest.mark.parametrize(
    ("turn", "contradicts"), [(_same, False), (_nothing, False), (_another_object, True)]
)
def test_a_zombie_that_comes_back_after_its_lease_never_overwrites_newer_state(
    database: str, sandbox: Sandbox, turn: Callable[[Outcome], Outcome], contradicts: bool
) -> None:
    """B14: (a) the same object is a no-op, (b) a time-out is ignored, (c) another object is a
    contradiction for a person."""
    held = FirstHeld(turn)
    slow = {**FAST, "OUTBOX_CALL_DEADLINE_S": "20", "OUTBOX_LEASE_S": "60"}
    slow |= {"OUTBOX_SOFT_LIMIT_S": "90", "OUTBOX_HARD_LIMIT_S": "120"}
    slow |= {"OUTBOX_VISIBILITY_TIMEOUT_S": "300", "OUTBOX_WINDOW_OVERRIDE_S": "4000"}
    with open_floor(database, sandbox, slow, vendor=held.wrap) as floor:
        # The vendor's reads fail, so that only a re-send can settle it.
        sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
        intent_id = floor.one()
        zombie = floor.new_sender()
        draining = floor.drain_beside(zombie)
        assert held.came.wait(10)
        floor.advance(61)
        floor.expire()
        assert floor.row(intent_id)["doubt"] == 1

        def settled() -> bool:
            floor.look()
            floor.drain()
            return floor.status(intent_id) == "succeeded"

        wait_until(settled)
        before = floor.row(intent_id)
        held.go.set()
        draining.join(20)
        after = floor.row(intent_id)
        assert (after["status"], after["receipt_id"]) == ("succeeded", before["receipt_id"])
        assert floor.outcomes(intent_id)[0] == "lease_expired"
        assert len(floor.posts()) == 2
        assert [p["replayed"] for p in floor.posts()] == [False, True]
        reasons = [reason for e in floor.escalations() for reason in e["reasons"]]
        assert reasons == (["contradiction"] if contradicts else [])
        assert (after["contradicted_at"] is not None) == contradicts


@pytest.mark.parametrize("turn", [_nothing])
def test_a_zombie_cannot_end_the_attempt_that_is_in_the_air(
    database: str, sandbox: Sandbox, turn: Callable[[Outcome], Outcome]
) -> None:
    """B14: what is told of an attempt whose lease is over leaves the live lease alone."""
    held = FirstHeld(turn)
    slow = {**FAST, "OUTBOX_CALL_DEADLINE_S": "20", "OUTBOX_LEASE_S": "60"}
    slow |= {"OUTBOX_SOFT_LIMIT_S": "90", "OUTBOX_HARD_LIMIT_S": "120"}
    slow |= {"OUTBOX_VISIBILITY_TIMEOUT_S": "300", "OUTBOX_WINDOW_OVERRIDE_S": "4000"}
    with open_floor(database, sandbox, slow, vendor=held.wrap) as floor:
        sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
        sandbox.fault("slow", account=floor.account, attempts=[2], after_s=1.5)
        intent_id = floor.one()
        zombie = floor.drain_beside(floor.new_sender())
        assert held.came.wait(10)
        floor.advance(61)
        floor.expire()

        def approved() -> bool:
            floor.look()
            return floor.status(intent_id) == "retryable"

        wait_until(approved)
        second = floor.drain_beside()
        wait_until(lambda: len(floor.posts()) == 2)
        lease = floor.row(intent_id)["lease_token"]
        held.go.set()
        zombie.join(20)
        row = floor.row(intent_id)
        assert (row["status"], row["lease_token"]) == ("in_flight", lease)
        second.join(20)
        assert floor.status(intent_id) == "succeeded"
        assert len(floor.posts()) == 2

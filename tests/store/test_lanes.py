"""Ordered lanes: one at a time, oldest unsettled first, whatever its status."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from outbox.outcomes import Lost, NotSent, Outcome
from outbox.states import Event
from outbox.store import doubt, intents, overdue, records, vitals
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import CHARGE, LANED, PASSING, SCOPE, Book, charge, receipt

LOST = Lost("no reply")


def ids(rows: list[Intent]) -> list[UUID]:
    return [row.id for row in rows]


def end(book: Book, row: Intent, outcome: Outcome) -> None:
    held = True
    while held:  # a claim that looks at the row has it in hand
        with book.store.transaction() as tx:
            held = bool(records.record(tx, [Ended(row, outcome)]).held)


def approve(book: Book, intent_id: UUID, *, due_in_s: float = 0.0) -> None:
    with book.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        assert row is not None
        change = Change(actor="resolver", due_in_s=due_in_s)
        apply(tx, row, Event.RESEND_APPROVED, change)


def crash(book: Book, row: Intent) -> None:
    book.forward(61)
    with book.store.transaction() as tx:
        assert doubt.expire_leases(tx, limit=10, look_after_s=1.0, max_crashes=9)
    approve(book, row.id)


@contextmanager
def enqueued_earlier_and_not_committed(book: Book) -> Iterator[UUID]:
    """An intent with the lower number, whose transaction is still open."""
    with psycopg.connect(book.url) as connection:
        yield book.outbox.enqueue(connection, LANED, SCOPE, charge()).intent_id


def test_a_lane_sends_one_at_a_time_in_the_order_of_enqueue(book: Book) -> None:
    wanted = [book.enqueue(LANED).intent_id for _ in range(3)]
    claimer = book.claimer()
    for intent_id in wanted:
        (row,) = claimer.claim(64)
        assert row.id == intent_id
        assert claimer.claim(64) == []
        end(book, row, receipt(row, f"pi_{row.seq}"))


def test_lanes_do_not_wait_for_each_other(book: Book) -> None:
    for customer in ("cus_1", "cus_2", "cus_3"):
        for _ in range(2):
            book.enqueue(LANED, args=charge(customer=customer))
    assert len(book.claimer().claim(64)) == 3


def test_two_tools_that_name_the_same_lane_share_it(book: Book) -> None:
    first = book.enqueue(LANED).intent_id
    book.enqueue(replace(LANED, name="refund_in_order"))
    assert ids(book.claimer().claim(64)) == [first]


@pytest.mark.parametrize("approved", [False, True])
def test_an_intent_in_doubt_holds_its_lane(book: Book, approved: bool) -> None:
    first = book.in_flight(LANED)
    book.enqueue(LANED)
    end(book, first, LOST)
    if approved:
        approve(book, first.id, due_in_s=60.0)
    assert book.claimer().claim(64) == []


def test_an_intent_awaiting_approval_holds_its_lane(book: Book) -> None:
    first = book.enqueue(LANED)
    book.sql("UPDATE outbox.intents SET status = 'awaiting_approval'")
    second = book.enqueue(LANED)
    assert book.claimer().claim(64) == []
    book.sql(
        "UPDATE outbox.intents SET status = 'cancelled', settled_at = now() WHERE id = %(id)s",
        {"id": first.intent_id},
    )
    assert ids(book.claimer().claim(64)) == [second.intent_id]


def test_a_head_that_backs_off_holds_its_lane(book: Book) -> None:
    first = book.in_flight(LANED)
    book.enqueue(LANED)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(first, NotSent("refused"), back_off_s=30.0)])
    assert book.claimer().claim(64) == []
    book.forward(31)
    assert ids(book.claimer().claim(64)) == [first.id]


def test_a_tool_may_let_others_pass_an_intent_in_doubt(book: Book) -> None:
    first = book.in_flight(PASSING)
    second = book.enqueue(PASSING)
    assert book.claimer().claim(64) == []
    end(book, first, LOST)
    assert ids(book.claimer().claim(64)) == [second.intent_id]


def test_a_re_send_waits_for_the_one_that_passed_it(book: Book) -> None:
    first = book.in_flight(PASSING)
    second = book.enqueue(PASSING)
    elsewhere = book.enqueue(LANED, args=charge(customer="cus_2"))
    end(book, first, LOST)
    claimer = book.claimer()
    passed = [row for row in claimer.claim(64) if row.id == second.intent_id]
    approve(book, first.id)
    assert claimer.claim(64) == []
    assert book.row(elsewhere.intent_id).status == "in_flight"
    end(book, passed[0], receipt(passed[0]))
    assert ids(claimer.claim(64)) == [first.id]


def test_a_crashed_intent_is_claimed_alone_behind_one_that_lets_others_pass(book: Book) -> None:
    first = book.in_flight(PASSING)
    end(book, first, LOST)
    second = book.in_flight(PASSING)
    crash(book, second)
    claimer = book.claimer()
    assert claimer.claim(64) == []
    assert ids(claimer.claim_alone()) == [second.id]


def test_a_crashed_head_holds_its_lane_and_is_claimed_alone(book: Book) -> None:
    first = book.in_flight(LANED)
    second = book.enqueue(LANED)
    crash(book, first)
    claimer = book.claimer()
    assert claimer.claim(64) == []
    (row,) = claimer.claim_alone()
    assert row.id == first.id
    end(book, row, receipt(row))
    assert ids(claimer.claim(64)) == [second.intent_id]


def test_a_head_that_commits_late_waits_and_holds_up_no_other_lane(book: Book) -> None:
    with enqueued_earlier_and_not_committed(book) as late:
        second = book.in_flight(LANED)
    other = book.enqueue(LANED, args=charge(customer="cus_2"))
    assert ids(book.claimer().claim(64)) == [other.intent_id]
    end(book, second, LOST)
    third = book.enqueue(LANED, args=charge(customer="cus_3"))
    assert ids(book.claimer().claim(64)) == [third.intent_id]
    with book.store.transaction() as tx:
        row = intents.lock(tx, second.id)
        assert row is not None
        apply(tx, row, Event.RECEIPT_FOUND, Change(actor="t", reading=receipt(row).reading))
    assert ids(book.claimer().claim(64)) == [late]


def test_a_late_committed_crashed_head_does_not_break_the_claim_of_crashed_rows(
    book: Book,
) -> None:
    with enqueued_earlier_and_not_committed(book) as late:
        book.in_flight(LANED)
    book.sql("UPDATE outbox.intents SET crashes = 1 WHERE id = %(id)s", {"id": late})
    assert book.claimer().claim_alone() == []


def test_no_lane_starves_behind_those_that_sort_before_it(book: Book) -> None:
    wanted = {book.enqueue(LANED, args=charge(customer=f"cus_{n}")).intent_id for n in range(9)}
    claimer = book.claimer()
    # One claim may end with the last lane, short of two, and the next begins again at the first.
    got = [row.id for _ in range(9) for row in claimer.claim(2)]
    assert (set(got), len(got)) == (wanted, 9)


def test_rows_without_a_lane_are_claimed_beside_lanes_that_are_held(book: Book) -> None:
    book.in_flight(LANED)
    book.enqueue(LANED)
    free = book.enqueue(CHARGE)
    assert ids(book.claimer().claim(64)) == [free.intent_id]


def test_never_two_of_a_lane_are_in_flight_whoever_races(book: Book) -> None:
    lanes = ("cus_1", "cus_2", "cus_3")
    for customer in lanes:
        for _ in range(8):
            book.enqueue(LANED, args=charge(customer=customer))
    start = threading.Barrier(6)
    order: list[tuple[str, int]] = []

    def work(number: int) -> None:
        claimer = book.claimer(owner=f"w{number}")
        start.wait()
        idle = 0
        while idle < 20:
            rows = claimer.claim(2)
            idle = 0 if rows else idle + 1
            for row in rows:
                order.append((row.lane or "", row.seq))
                end(book, row, receipt(row, f"pi_{row.seq}"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(order) == 24
    for lane in {lane for lane, _ in order}:
        sequence = [seq for name, seq in order if name == lane]
        assert sequence == sorted(sequence)


def test_two_sent_and_unsettled_intents_in_a_lane_are_a_physical_impossibility(
    book: Book,
) -> None:
    book.in_flight(LANED)
    book.enqueue(LANED)
    with pytest.raises(UniqueViolation):
        book.sql(
            "UPDATE outbox.intents SET status = 'unknown', first_sent_at = now() "
            "WHERE status = 'pending'"
        )


def test_two_tools_in_one_lane_of_which_one_may_pass_do_not_block_each_other(book: Book) -> None:
    """A row that may be passed is the head, one that holds is behind it, both in doubt."""
    passing = book.in_flight(PASSING)
    end(book, passing, LOST)
    holding = book.in_flight(replace(PASSING, name="charge_and_hold", on_doubt="hold"))
    end(book, holding, LOST)
    approve(book, passing.id)
    approve(book, holding.id)
    claimer = book.claimer()
    (first,) = claimer.claim(64)
    assert first.id == holding.id
    end(book, first, receipt(first))
    (second,) = claimer.claim(64)
    assert second.id == passing.id


def test_a_row_in_doubt_is_sent_again_although_one_with_a_lower_number_committed_after_it(
    book: Book,
) -> None:
    """Both waited for the other, and a person could not undo it either."""
    with enqueued_earlier_and_not_committed(book) as late:
        second = book.in_flight(LANED)
    end(book, second, LOST)
    approve(book, second.id)
    (again,) = book.claimer().claim(64)
    assert again.id == second.id
    end(book, again, receipt(again))
    assert ids(book.claimer().claim(64)) == [late]


def test_a_crashed_row_in_doubt_is_sent_again_although_a_lower_number_committed_after_it(
    book: Book,
) -> None:
    with enqueued_earlier_and_not_committed(book) as late:
        second = book.in_flight(LANED)
    crash(book, second)
    (again,) = book.claimer().claim_alone()
    assert again.id == second.id
    end(book, again, receipt(again))
    assert ids(book.claimer().claim(64)) == [late]


def test_a_row_that_committed_late_shares_the_question_of_the_one_that_occupies_its_lane(
    book: Book,
) -> None:
    with enqueued_earlier_and_not_committed(book) as late:
        second = book.in_flight(LANED)
    end(book, second, LOST)
    book.forward(86_400)
    with book.store.transaction() as tx:
        since = intents.now(tx)
        (place,) = overdue.places(tx, since)
        ((row, head),) = overdue.claim_waiting(tx, place, since, 10)
        assert (row.id, head) == (late, second.id)
        assert ids(overdue.held_lanes(tx, wait_s=1, limit=10)) == [second.id]
        assert vitals.gauges(tx)["oldest_due_s"] is None

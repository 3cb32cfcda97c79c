"""Many at once: all of them are recorded, or none, also where the caller catches what it was told
and commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session

from outbox import IntentMismatch, Invalid, OutboxError, Scope, StaleEpoch
from outbox.store import records
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, TURN, Book, charge, receipt

Many = Callable[[Any], Any]


def by_session(book: Book, enqueue: Many, refusal: type[OutboxError]) -> None:
    with Session(book.engine) as session, session.begin():
        with pytest.raises(refusal):
            enqueue(session)
        # The transaction is as it was: what comes after is recorded.
        book.outbox.enqueue(session, CHARGE, SCOPE, charge("in_after"))


def by_psycopg(book: Book, enqueue: Many, refusal: type[OutboxError]) -> None:
    with psycopg.connect(book.url) as connection:
        with pytest.raises(refusal):
            enqueue(connection)
        book.outbox.enqueue(connection, CHARGE, SCOPE, charge("in_after"))


KINDS = {"session": by_session, "psycopg": by_psycopg}


def recorded(book: Book) -> list[str]:
    rows = book.sql("SELECT args FROM outbox.intents ORDER BY seq")
    return [row["args"].split('"invoice_id":"')[1].split('"')[0] for row in rows]


def turn(number: int) -> Scope:
    return Scope(tenant="acme", run_id="run-1", epoch=f"t{number}")


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_with_a_mismatch_nothing_is_recorded(book: Book, kind: str) -> None:
    book.enqueue(args=charge("in_1"))
    asked = [(SCOPE, charge("in_2")), (SCOPE, charge("in_1", amount=1)), (SCOPE, charge("in_3"))]

    def enqueue(caller: Any) -> None:
        book.outbox.enqueue_many(caller, CHARGE, asked)

    KINDS[kind](book, enqueue, IntentMismatch)
    assert recorded(book) == ["in_1", "in_after"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_that_contradict_each_other_nothing_is_recorded(book: Book, kind: str) -> None:
    asked = [(SCOPE, charge("in_1", amount=5)), (SCOPE, charge("in_1", amount=6))]

    def enqueue(caller: Any) -> None:
        book.outbox.enqueue_many(caller, CHARGE, asked)

    KINDS[kind](book, enqueue, IntentMismatch)
    assert recorded(book) == ["in_after"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_with_a_turn_that_is_over_nothing_is_recorded(book: Book, kind: str) -> None:
    with book.engine.begin() as opened:
        book.outbox.advance_epoch(opened, "acme", "run-1", "t2")
    asked = [(turn(2), charge("in_1")), (turn(1), charge("in_2"))]

    def enqueue(caller: Any) -> None:
        book.outbox.enqueue_many(caller, TURN, asked)

    KINDS[kind](book, enqueue, StaleEpoch)
    assert recorded(book) == ["in_after"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_marks_no_outcome_as_told_so_that_the_next_turn_hears_it(
    book: Book, kind: str
) -> None:
    """It had been marked for the other ones, whose answers nobody saw; the turn after charged
    again."""
    names = [f"in_{number}" for number in range(6)]
    for name in names:
        book.enqueue(TURN, turn(1), charge(name))
    rows = book.claimer().claim(len(names))
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}")) for row in rows])
    # In whatever order they are looked at, others come before one of these two.
    wrong = ("in_0", "in_5")
    asked = [(turn(2), charge(n, **({"amount": 1} if n in wrong else {}))) for n in names]

    def enqueue(caller: Any) -> None:
        book.outbox.enqueue_many(caller, TURN, asked)

    KINDS[kind](book, enqueue, IntentMismatch)
    assert book.value("SELECT count(*) FROM outbox.intents WHERE told_at IS NOT NULL") == 0
    for name in names:
        answer = book.enqueue(TURN, turn(3), charge(name))
        assert (answer.deduplicated, answer.told) == (True, "settled")


def test_many_in_autocommit_are_refused_for_each_would_be_by_itself(book: Book) -> None:
    with psycopg.connect(book.url, autocommit=True) as connection:
        with pytest.raises(Invalid) as refused:
            book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()), (SCOPE, charge())])
        assert refused.value.field == "session"
        assert book.count() == 0
        with connection.transaction():
            book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()), (SCOPE, charge())])
    assert book.count() == 2


def test_many_leave_the_callers_own_savepoints_alone(book: Book) -> None:
    with Session(book.engine) as session, session.begin():
        with session.begin_nested() as inner:
            book.outbox.enqueue_many(session, CHARGE, [(SCOPE, charge()), (SCOPE, charge())])
            inner.rollback()
        with session.begin_nested():
            asked = [(SCOPE, charge("in_1")), (SCOPE, charge("in_2"))]
            book.outbox.enqueue_many(session, CHARGE, asked)
    assert sorted(recorded(book)) == ["in_1", "in_2"]

"""Locks that a login without any right of ours can take, and what does not wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from outbox.errors import Busy
from outbox.store import records, settlements
from outbox.store.connection import CONSUMERS_LOCK
from outbox.store.records import Ended
from tests.store.book import SCOPE, TURN, Book, charge, receipt, wait_until

STRANGER = "a_stranger_of_the_outbox"
SHARED = (
    "SELECT pid FROM pg_locks WHERE relation = 'outbox.registrations'::regclass "
    "AND mode = 'RowShareLock'"
)


@pytest.fixture
def stranger(book: Book) -> Iterator[psycopg.Connection[Any]]:
    """A login of the same server that has no right to anything of ours, and its session."""
    with psycopg.connect(book.url, autocommit=True) as owner:
        owner.execute(f"DROP ROLE IF EXISTS {STRANGER}".encode())
        owner.execute(f"CREATE ROLE {STRANGER}".encode())
        with psycopg.connect(book.url, autocommit=True) as session:
            become = sql.SQL("SET SESSION AUTHORIZATION {}")
            session.execute(become.format(sql.Identifier(STRANGER)))
            yield session
        owner.execute(f"DROP ROLE {STRANGER}".encode())


def _record(book: Book) -> None:
    """One answer, written down with its result."""
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}"))])


def _take(book: Book, consumer: str) -> list[str]:
    with psycopg.connect(book.url) as connection:
        return [one.told for one in book.outbox.settlements(connection, consumer)]


@contextmanager
def _all_locked(stranger: psycopg.Connection[Any]) -> Iterator[None]:
    stranger.execute("SELECT pg_advisory_lock(%s)", (CONSUMERS_LOCK,))
    try:
        yield
    finally:
        stranger.execute("SELECT pg_advisory_unlock_all()")


def test_a_strangers_lock_keeps_no_answer_from_being_recorded(
    book: Book, stranger: psycopg.Connection[Any]
) -> None:
    """Any login of the database could stop all recording with one statement."""
    assert _take(book, "billing") == []
    with _all_locked(stranger):
        _record(book)
        _record(book)
        assert _take(book, "billing") == ["settled", "settled"]


def test_a_strangers_lock_keeps_no_turn_of_a_conversation_from_beginning(
    book: Book, stranger: psycopg.Connection[Any]
) -> None:
    scope = replace(SCOPE, epoch="e1")
    book.enqueue(TURN, scope, charge())
    with _all_locked(stranger), psycopg.connect(book.url) as connection:
        assert book.outbox.advance_epoch(connection, "acme", "run-1", "e2") == 1


def test_a_strangers_lock_delays_a_new_consumer_for_a_bounded_time_and_loses_it_nothing(
    book: Book, stranger: psycopg.Connection[Any]
) -> None:
    """The release before writes under that lock, so a registration still waits for it."""
    _record(book)
    with _all_locked(stranger):
        with pytest.raises(Busy):
            settlements.register(book.store, "billing")
        assert book.sql("SELECT name FROM outbox.consumers") == []
        _record(book)
    assert _take(book, "billing") == ["settled", "settled"]


def test_a_stranger_cannot_take_the_lock_that_is_waited_for(
    book: Book, stranger: psycopg.Connection[Any]
) -> None:
    for mode in ("EXCLUSIVE", "ACCESS EXCLUSIVE", "ROW SHARE"):
        with pytest.raises(errors.InsufficientPrivilege), stranger.transaction():
            stranger.execute(f"LOCK TABLE outbox.registrations IN {mode} MODE".encode())
    _record(book)


def test_a_result_shares_a_lock_and_writes_no_row_for_it(book: Book) -> None:
    """A row lock would be a write in each batch of answers."""
    before = book.sql("SELECT xmin::text, xmax::text FROM outbox.registrations")
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
        assert len(book.sql(SHARED)) == 1
    assert book.sql(SHARED) == []
    assert book.sql("SELECT xmin::text, xmax::text FROM outbox.registrations") == before


def test_two_batches_share_the_lock_and_a_registration_waits_for_both(book: Book) -> None:
    rows = [book.in_flight() for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        with book.store.transaction() as one, book.store.transaction() as other:
            for tx, row in zip((one, other), rows, strict=True):
                records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}"))])
            taken = pool.submit(_take, book, "billing")
            waiting = (
                "SELECT pid FROM pg_locks WHERE NOT granted "
                "AND relation = 'outbox.registrations'::regclass"
            )
            wait_until(lambda: bool(book.sql(waiting)))
        assert taken.result() == ["settled", "settled"]


def test_a_registration_of_the_release_before_waits_for_our_writers_too(book: Book) -> None:
    """It knows the advisory lock alone; the table makes it wait."""
    row = book.in_flight()

    def registered_as_before() -> None:
        with psycopg.connect(book.url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CONSUMERS_LOCK,))
            connection.execute(
                "INSERT INTO outbox.consumers (name, registered_at) "
                "VALUES ('billing', outbox.clock()) ON CONFLICT DO NOTHING"
            )

    with ThreadPoolExecutor(1) as pool:
        with book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row))])
            registered = pool.submit(registered_as_before)
            waiting = (
                "SELECT pid FROM pg_locks WHERE NOT granted "
                "AND relation = 'outbox.registrations'::regclass"
            )
            wait_until(lambda: bool(book.sql(waiting)))
            assert book.sql("SELECT name FROM outbox.consumers") == []
        registered.result()
    assert _take(book, "billing") == ["settled"]

"""A consumer that becomes known while others write results in transactions of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from outbox import Invalid, RetryTransaction
from tests.store.book import SCOPE, TURN, Book, charge

SNAPSHOTS = (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)


@pytest.fixture
def caller(book: Book) -> Iterator[psycopg.Connection[Any]]:
    """A turn has begun, and has asked for a write that was never sent."""
    with psycopg.connect(book.url) as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "e1")
        book.outbox.enqueue(connection, TURN, replace(SCOPE, epoch="e1"), charge())
        connection.commit()
        yield connection
        connection.rollback()


def take(book: Book, consumer: str) -> list[str]:
    with psycopg.connect(book.url) as connection:
        return [one.told for one in book.outbox.settlements(connection, consumer)]


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_a_snapshot_from_before_a_consumer_loses_it_no_result(
    book: Book, caller: psycopg.Connection[Any], isolation: IsolationLevel
) -> None:
    caller.isolation_level = isolation
    caller.execute("SELECT count(*) FROM outbox.intents")
    assert take(book, "billing") == []
    with pytest.raises(RetryTransaction):
        book.outbox.advance_epoch(caller, "acme", "run-1", "e2")
    caller.rollback()
    assert book.outbox.advance_epoch(caller, "acme", "run-1", "e2") == 1
    caller.commit()
    assert take(book, "billing") == ["cancelled"]
    assert take(book, "later") == ["cancelled"]


@pytest.mark.parametrize("isolation", [*SNAPSHOTS, IsolationLevel.READ_COMMITTED])
def test_a_turn_begins_where_every_consumer_is_seen(
    book: Book, caller: psycopg.Connection[Any], isolation: IsolationLevel
) -> None:
    assert take(book, "billing") == []
    caller.isolation_level = isolation
    caller.execute("SELECT count(*) FROM outbox.intents")
    assert book.outbox.advance_epoch(caller, "acme", "run-1", "e2") == 1
    caller.commit()
    assert take(book, "billing") == ["cancelled"]


def test_a_new_consumer_in_the_transaction_that_advanced_an_epoch_is_refused_at_once(
    book: Book, caller: psycopg.Connection[Any]
) -> None:
    book.outbox.advance_epoch(caller, "acme", "run-1", "e2")
    with pytest.raises(Invalid, match="of their own") as refused:
        book.outbox.settlements(caller, "billing")
    assert refused.value.field == "session"
    caller.commit()
    assert [one.told for one in book.outbox.settlements(caller, "billing")] == ["cancelled"]
    # One that is known may do both.
    book.outbox.advance_epoch(caller, "acme", "run-1", "e3")
    assert book.outbox.settlements(caller, "billing") == []

"""Backpressure and epochs: ``Full`` says to ask again, and of an epoch that is over nobody may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from psycopg.rows import dict_row

from outbox import Full, Outbox, StaleEpoch
from outbox.store import depths
from tests.store.book import CHARGE, SCOPE, Book, charge

LATE, NOW = replace(SCOPE, epoch="turn-1"), replace(SCOPE, epoch="turn-2")


@pytest.fixture
def book(book: Book) -> Iterator[Book]:
    """At most five of a tenant wait."""
    limited = Outbox(replace(book.settings, max_tenant_depth=5))
    yield replace(book, outbox=limited)
    limited.close()


def advance(book: Book) -> None:
    with book.engine.begin() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")


def test_who_is_late_is_told_so_also_while_it_is_full(book: Book) -> None:
    args = charge()
    first = book.enqueue(CHARGE, LATE, args)
    advance(book)
    for _ in range(4):
        book.enqueue()
    with pytest.raises(StaleEpoch) as stale:
        book.enqueue(CHARGE, LATE)
    assert (stale.value.run_id, stale.value.epoch) == ("run-1", "turn-1")
    # What it recorded while it was on is found as ever; whoever is not late has to wait.
    assert book.enqueue(CHARGE, LATE, args).intent_id == first.intent_id
    for scope in (NOW, SCOPE, replace(LATE, run_id="run-2")):
        with pytest.raises(Full):
            book.enqueue(CHARGE, scope)
    assert book.count() == 5


def test_a_batch_with_a_late_one_will_never_have_room_and_is_told_so(book: Book) -> None:
    known = charge()
    book.enqueue(CHARGE, LATE, known)
    advance(book)
    for _ in range(4):
        book.enqueue()
    connection = book.statements.connection()
    # Also where the late one is of a tenant that is not full.
    for late in (LATE, replace(LATE, tenant="bolt")):
        with book.engine.begin() as beside:
            book.outbox.advance_epoch(beside, late.tenant, "run-1", "turn-2")
        batch = [(NOW, charge()), (late, charge())]
        with pytest.raises(StaleEpoch), connection.transaction():
            book.outbox.enqueue_many(connection, CHARGE, batch)
    # A late one that is recorded already is no reason.
    batch = [(NOW, charge()), (LATE, known)]
    with pytest.raises(Full), connection.transaction():
        book.outbox.enqueue_many(connection, CHARGE, batch)
    assert book.count() == 5


def test_who_has_room_is_not_asked_for_the_epoch_beforehand(book: Book) -> None:
    """The INSERT tells: no round trip more of everybody for the few that are late and refused."""
    connection = book.statements.connection()
    steps = book.outbox._admitted_steps(
        book.outbox._draft(CHARGE, LATE, charge(), 0, None, None, None)
    )
    statement, params = next(steps)
    assert statement == depths.COUNT
    counted = connection.cursor(row_factory=dict_row).execute(statement.encode(), params)
    statement, _ = steps.send(counted.fetchall())
    assert statement.startswith("INSERT INTO outbox.intents")

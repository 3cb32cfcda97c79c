"""Applications whose sessions and drivers are not as ours: Django's adapters, other styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any

import psycopg
import pytest
from django.db.backends.postgresql.psycopg_any import get_adapters_template
from psycopg.rows import namedtuple_row

from outbox import Outbox
from outbox.store import records
from outbox.store.connection import Store
from tests.store.book import CHARGE, SCOPE, Book, charge, open_book, receipt

pytestmark = pytest.mark.heavy


@pytest.fixture
def book(database: str) -> Iterator[Book]:
    with open_book(database) as opened:
        yield opened


@contextmanager
def _django(book: Book, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    # As django.db.backends.postgresql connects.
    with psycopg.connect(
        book.url,
        client_encoding="UTF8",
        prepare_threshold=None,
        cursor_factory=psycopg.ClientCursor,
        **options,
    ) as opened:
        yield opened


@contextmanager
def _plain(book: Book, statement: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(book.url, row_factory=namedtuple_row) as opened:
        opened.execute(statement.encode())
        opened.commit()
        yield opened


SESSIONS: dict[str, Callable[[Book], Any]] = {
    "Django with USE_TZ": lambda b: _django(b, context=get_adapters_template(True, UTC)),
    "Django without USE_TZ": lambda b: _django(b, context=get_adapters_template(False, None)),
    "another zone": lambda b: _plain(b, "SET timezone = 'Asia/Kathmandu'"),
    "another date style": lambda b: _plain(b, "SET datestyle = 'German'"),
    "escaped bytes": lambda b: _plain(b, "SET bytea_output = 'escape'"),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_times_and_results_are_the_same_whatever_the_callers_session_makes_of_them(
    book: Book, kind: str
) -> None:
    args = charge()
    with SESSIONS[kind](book) as opened:
        first = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
        again = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
    (row,) = book.claimer().claim(64)
    with book.store.transaction() as tx:
        records.record(tx, [records.Ended(row, receipt(row))])
    with SESSIONS[kind](book) as opened:
        (settled,) = book.outbox.settlements(opened, "billing")
        told = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
    recorded_at = book.value("SELECT created_at FROM outbox.intents")
    assert [a.recorded_at for a in (first, again, told)] == [recorded_at] * 3
    assert settled.at == book.value("SELECT at FROM outbox.settlements")
    assert {t.utcoffset() for t in (first.recorded_at, settled.at) if t} == {timedelta(0)}
    assert (told.told, told.receipt_id) == ("settled", "pi_1")
    assert (settled.told, settled.identity["invoice_id"]) == ("settled", args["invoice_id"])


def test_a_savepoint_of_django_that_rolls_back_takes_its_intent_alone(book: Book) -> None:
    kept, gone = charge(), charge()
    with SESSIONS["Django without USE_TZ"](book) as opened:
        book.outbox.enqueue(opened, CHARGE, SCOPE, kept)
        # As django.db.transaction.atomic does inside another.
        opened.execute('SAVEPOINT "s1_x1"')
        book.outbox.enqueue(opened, CHARGE, SCOPE, gone)
        opened.execute('ROLLBACK TO SAVEPOINT "s1_x1"')
        opened.execute('RELEASE SAVEPOINT "s1_x1"')
    assert [r["identity"] for r in book.sql("SELECT identity FROM outbox.intents")] == [
        f'{{"invoice_id":"{kept["invoice_id"]}"}}'
    ]


def test_own_sessions_do_not_mind_the_databases_zone_and_styles(book: Book) -> None:
    name = book.value("SELECT current_database()")
    for setting, value in {
        "timezone": "America/New_York",
        "datestyle": "SQL, DMY",
        "intervalstyle": "postgres_verbose",
        "bytea_output": "escape",
    }.items():
        book.sql(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    with open_styled(book) as styled:
        answer = styled.enqueue()
        (row,) = styled.claimer().claim(64)
        with styled.store.transaction() as tx:
            records.record(tx, [records.Ended(row, receipt(row))])
        assert styled.outbox.wait(answer, timeout_s=0).told == "settled"
        seen = styled.row(answer.intent_id)
    assert seen.created_at.utcoffset() == timedelta(0)


@contextmanager
def open_styled(book: Book) -> Iterator[Book]:
    """The same ledger over connections that were opened after a change of the database."""
    fresh = replace(book, store=Store(book.settings), outbox=Outbox(book.settings))
    try:
        yield fresh
    finally:
        fresh.outbox.close()
        fresh.store.close()

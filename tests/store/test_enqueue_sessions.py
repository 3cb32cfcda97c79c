"""Enqueue on every kind of connection, inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Answer, IntentMismatch, Invalid
from tests.store.book import CHARGE, SCOPE, Book, charge


@contextmanager
def session(book: Book) -> Iterator[Any]:
    with Session(book.engine) as opened, opened.begin():
        yield opened


@contextmanager
def connection(book: Book) -> Iterator[Any]:
    with book.engine.begin() as opened:
        yield opened


@contextmanager
def by_psycopg(book: Book, **options: Any) -> Iterator[Any]:
    with psycopg.connect(book.url, **options) as opened:
        yield opened


KINDS: dict[str, Callable[[Book], Any]] = {
    "session": session,
    "connection": connection,
    "psycopg": by_psycopg,
    "psycopg with dictionaries": lambda b: by_psycopg(b, row_factory=dict_row),
    "psycopg with named tuples": lambda b: by_psycopg(b, row_factory=namedtuple_row),
    "psycopg with scalars": lambda b: by_psycopg(b, row_factory=scalar_row),
    "psycopg with objects": lambda b: by_psycopg(b, row_factory=class_row(dict)),
    "psycopg with raw cursors": lambda b: by_psycopg(b, cursor_factory=psycopg.RawCursor),
    "psycopg with client-side cursors": lambda b: by_psycopg(
        b, cursor_factory=psycopg.ClientCursor
    ),
    "psycopg in autocommit": lambda b: by_psycopg(b, autocommit=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_connection_records_once_and_finds_again(book: Book, kind: str) -> None:
    args = charge()
    with KINDS[kind](book) as opened:
        first = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
        again = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
    assert (first.told, first.status, first.deduplicated) == ("accepted", "pending", False)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    assert again.recorded_at == first.recorded_at
    assert book.count() == 1


async def _on_async(book: Book, kind: str, args: dict[str, Any]) -> list[Answer]:
    async def twice(opened: Any) -> list[Answer]:
        return [await book.outbox.aenqueue(opened, CHARGE, SCOPE, args) for _ in range(2)]

    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(book.url, row_factory=scalar_row) as raw:
            return await twice(raw)
    engine = create_async_engine(book.settings.database_url)
    try:
        if kind == "session":
            async with AsyncSession(engine) as opened, opened.begin():
                return await twice(opened)
        async with engine.begin() as connection:
            return await twice(connection)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
def test_any_async_connection_records_once_and_finds_again(book: Book, kind: str) -> None:
    first, again = asyncio.run(_on_async(book, kind, charge()))
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    assert book.count() == 1


def test_what_is_no_session_is_refused_by_name(book: Book) -> None:
    for wrong in (None, book.engine, object(), "postgresql://"):
        with pytest.raises(Invalid) as refused:
            book.outbox.enqueue(wrong, CHARGE, SCOPE, charge())
        assert refused.value.field == "session"

    async def later() -> None:
        with psycopg.connect(book.url) as sync:
            await book.outbox.aenqueue(sync, CHARGE, SCOPE, charge())

    with pytest.raises(Invalid) as refused:
        asyncio.run(later())
    assert refused.value.field == "session"


def test_an_async_session_is_refused_by_the_plain_enqueue(book: Book) -> None:
    engine = create_async_engine(book.settings.database_url)
    for wrong in (AsyncSession(engine), AsyncConnection(engine)):
        with pytest.raises(Invalid) as refused:
            book.outbox.enqueue(wrong, CHARGE, SCOPE, charge())
        assert refused.value.field == "session"


def _enqueue_and_change_my_mind(book: Book, kind: str) -> None:
    with KINDS[kind](book) as opened:
        book.outbox.enqueue(opened, CHARGE, SCOPE, charge())
        raise RuntimeError("changed my mind")


@pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
def test_a_rollback_leaves_no_row(book: Book, kind: str) -> None:
    with pytest.raises(RuntimeError, match="changed my mind"):
        _enqueue_and_change_my_mind(book, kind)
    assert book.count() == 0


def test_a_row_of_a_savepoint_goes_with_its_outer_transaction(book: Book) -> None:
    with Session(book.engine) as opened:
        with opened.begin_nested():
            book.outbox.enqueue(opened, CHARGE, SCOPE, charge())
        opened.rollback()
    with psycopg.connect(book.url) as raw:
        raw.execute("SELECT 1")
        with raw.transaction():
            book.outbox.enqueue(raw, CHARGE, SCOPE, charge())
        raw.rollback()
    assert book.count() == 0


def test_a_savepoint_that_is_rolled_back_takes_its_row_alone(book: Book) -> None:
    kept, gone = charge(), charge()
    with Session(book.engine) as opened, opened.begin():
        book.outbox.enqueue(opened, CHARGE, SCOPE, kept)
        nested = opened.begin_nested()
        book.outbox.enqueue(opened, CHARGE, SCOPE, gone)
        nested.rollback()
        assert not book.outbox.enqueue(opened, CHARGE, SCOPE, gone).deduplicated
    assert book.count() == 2


BAD: dict[str, tuple[Any, str]] = {
    "NaN": (charge(amount=float("nan")), "args.amount"),
    "infinity": (charge(memo=float("inf")), "args.memo"),
    "a NUL": (charge(memo="a\x00b"), "args.memo"),
    "a NUL in a key": ({**charge(), "a\x00b": 1}, "args.a\\x00b"),
    "a lone surrogate": (charge(memo="\ud800"), "args.memo"),
    "a set": (charge(memo={1}), "args.memo"),
    "too deep": (charge(memo=[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]),
                 "args.memo" + "[0]" * 32),
    "too large": (charge(memo="x" * 70_000), "args"),
    "raw 1e400": ('{"amount": 1e400}', "args.amount"),
    "raw NaN": ('{"amount": NaN}', "args"),
    "raw 5000 digits": ('{"amount": ' + "9" * 5000 + "}", "args"),
    "raw 100000 deep": ('{"amount": ' + "[" * 100_000 + "]" * 100_000 + "}", "args"),
    "a duplicate key": ('{"amount": 1, "amount": 2}', "args.amount"),
    "a fraction of a cent": (charge(amount=19.99), "args.amount"),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
@pytest.mark.parametrize("kind", ["session", "psycopg"])
def test_bad_arguments_are_refused_before_any_sql_and_the_transaction_stays_usable(
    book: Book, kind: str, why: str
) -> None:
    args, field = BAD[why]
    good = charge()
    with KINDS[kind](book) as opened:
        with pytest.raises(Invalid) as refused:
            book.outbox.enqueue(opened, CHARGE, SCOPE, args)
        assert refused.value.field == field
        assert refused.value.told == "invalid"
        book.outbox.enqueue(opened, CHARGE, SCOPE, good)
    assert book.sql("SELECT identity FROM outbox.intents") == [
        {"identity": f'{{"invoice_id":"{good["invoice_id"]}"}}'}
    ]


def test_a_mismatch_leaves_the_callers_transaction_usable(book: Book) -> None:
    args = charge()
    with Session(book.engine) as opened, opened.begin():
        first = book.outbox.enqueue(opened, CHARGE, SCOPE, args)
        with pytest.raises(IntentMismatch) as mismatch:
            book.outbox.enqueue(opened, CHARGE, SCOPE, {**args, "amount": 5000, "customer": "c"})
        assert mismatch.value.fields == ("amount", "customer")
        assert mismatch.value.intent_id == str(first.intent_id)
        assert "5000" not in str(mismatch.value)
        opened.execute(text("SELECT 1"))
    assert book.count() == 1


def test_the_callers_connection_is_left_as_it_was(book: Book) -> None:
    engine = create_engine(book.settings.database_url)
    names = "SHOW {}"
    shown = ("search_path", "statement_timeout", "lock_timeout", "transaction_isolation")
    with engine.connect() as opened:
        before = [opened.execute(text(names.format(name))).scalar() for name in shown]
        book.outbox.enqueue(opened, CHARGE, SCOPE, charge())
        after = [opened.execute(text(names.format(name))).scalar() for name in shown]
        opened.commit()
    engine.dispose()
    assert before == after

"""Enqueue on every kind of connection, inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import Answer, IntentMismatch, Invalid, RetryTransaction
from tests.store.book import CHARGE, SCOPE, Book, charge


@contextmanager
def session(book: Book) -> Iterator[Any]:
    with Session(book.engine) as opened, opened.begin():
        yield opened


@contextmanager
def scoped(book: Book) -> Iterator[Any]:
    registry = scoped_session(sessionmaker(book.engine))
    with registry.begin():
        yield registry
    registry.remove()


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
    "scoped session": scoped,
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
        if kind == "scoped session":
            registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            async with registry.begin():
                answers = await twice(registry)
            await registry.remove()
            return answers
        if kind == "session":
            async with AsyncSession(engine) as opened, opened.begin():
                return await twice(opened)
        async with engine.begin() as connection:
            return await twice(connection)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["session", "scoped session", "connection", "psycopg"])
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


# -- connections that would not answer as ours do ------------------------------------------------


def test_pipeline_mode_is_refused_before_any_sql_and_nothing_is_consumed(book: Book) -> None:
    def refused_by(opened: Any) -> None:
        for call in (
            lambda: book.outbox.enqueue(opened, CHARGE, SCOPE, charge()),
            lambda: book.outbox.settlements(opened, "billing"),
            lambda: book.outbox.advance_epoch(opened, "acme", "run-1", "turn-1"),
        ):
            with pytest.raises(Invalid, match="pipeline") as refused:
                call()
            assert refused.value.field == "session"

    with psycopg.connect(book.url) as raw:
        with raw.pipeline():
            refused_by(raw)
        book.outbox.enqueue(raw, CHARGE, SCOPE, charge())
    with book.engine.connect() as opened:
        driver = opened.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with driver.pipeline():
            refused_by(opened)

    async def later() -> None:
        async with await psycopg.AsyncConnection.connect(book.url) as raw:
            async with raw.pipeline():
                with pytest.raises(Invalid, match="pipeline"):
                    await book.outbox.aenqueue(raw, CHARGE, SCOPE, charge())
            await book.outbox.aenqueue(raw, CHARGE, SCOPE, charge())

    asyncio.run(later())
    assert (book.count(), book.count("epochs"), book.count("consumers")) == (2, 0, 0)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("kind", ["session", "psycopg"])
def test_a_client_encoding_that_cannot_carry_every_text_is_refused_before_any_sql(
    book: Book, kind: str, encoding: str
) -> None:
    with KINDS[kind](book) as opened:
        say = opened.execute if kind == "psycopg" else lambda sql: opened.execute(text(sql))
        say(f"SET LOCAL client_encoding = '{encoding}'")
        with pytest.raises(Invalid, match=encoding) as refused:
            book.outbox.enqueue(opened, CHARGE, SCOPE, charge(memo="zażółć 😀"))
        assert refused.value.field == "session"
        say("RESET client_encoding")
        book.outbox.enqueue(opened, CHARGE, SCOPE, charge(memo="zażółć 😀"))
    assert book.count() == 1


# -- errors of the database ----------------------------------------------------------------------

FAULTS: dict[str, tuple[str, type[psycopg.Error]]] = {
    "a lock": ("SET LOCAL lock_timeout = '1ms'", psycopg.errors.LockNotAvailable),
    "a constraint": ("SELECT 1", psycopg.errors.CheckViolation),
}


def _enqueue_after(book: Book, kind: str, before: str, args: dict[str, Any]) -> None:
    with KINDS[kind](book) as opened:
        opened.execute(before if kind == "psycopg" else text(before))
        book.outbox.enqueue(opened, CHARGE, SCOPE, args)


@pytest.mark.parametrize("why", FAULTS)
@pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
def test_an_error_of_the_database_keeps_its_type_and_quotes_nothing_of_the_row(
    book: Book, kind: str, why: str
) -> None:
    before, expected = FAULTS[why]
    args = charge(memo="jane@example.com", receipt_email="jane@example.com")
    with psycopg.connect(book.url) as holder:
        if why == "a lock":
            book.outbox.enqueue(holder, CHARGE, SCOPE, args)
        if why == "a constraint":
            book.sql("ALTER TABLE outbox.intents ADD CHECK (tenant <> 'acme')")
        with pytest.raises((psycopg.Error, DBAPIError)) as caught:
            _enqueue_after(book, kind, before, args)
        holder.rollback()
    error = caught.value
    driver = getattr(error, "orig", error)
    assert isinstance(driver, expected)
    assert driver.sqlstate == expected.sqlstate
    said = "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(vars(driver))
    assert "jane" not in said
    assert args["invoice_id"] not in said
    assert driver.diag.message_detail is None


@pytest.mark.parametrize("kind", ["session", "psycopg"])
def test_a_deadlock_asks_the_caller_to_repeat_the_transaction(book: Book, kind: str) -> None:
    mine, theirs = charge(), charge()
    both = threading.Barrier(2)
    told: list[type[Exception]] = []

    def work(first: dict[str, Any], second: dict[str, Any]) -> None:
        try:
            with KINDS[kind](book) as opened:
                book.outbox.enqueue(opened, CHARGE, SCOPE, first)
                both.wait(30)
                book.outbox.enqueue(opened, CHARGE, SCOPE, second)
        except Exception as error:
            told.append(type(error))

    other = threading.Thread(target=work, args=(theirs, mine))
    other.start()
    work(mine, theirs)
    other.join()
    assert told == [RetryTransaction]
    assert book.count() == 2


# -- what is no list of requests -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([1], "requests[0]"),
        ([(SCOPE, charge()), (SCOPE,)], "requests[1]"),
        ([{"scope": SCOPE, "args": {}}], "requests[0]"),
        ([(SCOPE, charge()), (SCOPE, {})], "requests[1].args.invoice_id"),
        (None, "requests"),
        ({}, "requests"),
        ("ab", "requests"),
    ],
)
def test_many_are_pairs_and_the_wrong_one_is_named(book: Book, requests: Any, field: str) -> None:
    with book.engine.begin() as opened, pytest.raises(Invalid) as refused:
        book.outbox.enqueue_many(opened, CHARGE, requests)
    assert refused.value.field == field
    assert book.count() == 0

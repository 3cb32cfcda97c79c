"""Backpressure: enqueue refuses by depth, before anything is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Answer, Full, IntentMismatch, Outbox, RetryTransaction, Scope, WriteTool
from outbox.outcomes import Lost
from outbox.store import depths, records, switches
from outbox.store.records import Ended
from tests.store.book import CHARGE, LANED, SCOPE, TURN, Book, charge, receipt
from tests.store.test_enqueue_sessions import KINDS

SMALL = replace(CHARGE, name="charge_small", max_depth=3)


@pytest.fixture
def book(book: Book) -> Iterator[Book]:
    """At most five of a tenant and three of a lane wait."""
    limited = Outbox(replace(book.settings, max_tenant_depth=5, max_lane_depth=3))
    yield replace(book, outbox=limited)
    limited.close()


def fill(book: Book, count: int, tool: WriteTool = CHARGE, scope: Scope = SCOPE) -> list[Answer]:
    return [book.enqueue(tool, scope) for _ in range(count)]


def refused(book: Book, tool: WriteTool = CHARGE, scope: Scope = SCOPE, **more: Any) -> Full:
    with pytest.raises(Full) as error:
        book.enqueue(tool, scope, **more)
    return error.value


def test_a_tenant_may_have_so_many_waiting_and_not_one_more(book: Book) -> None:
    fill(book, 5)
    full = refused(book)
    assert (full.limit, full.most, full.depth, full.new) == ("OUTBOX_MAX_TENANT_DEPTH", 5, 5, 1)
    assert full.retry_after_s == book.settings.policy.full_retry_s
    assert full.told == "not_recorded"
    assert book.count() == 5
    fill(book, 1, scope=Scope(tenant="bolt", run_id="run-1"))


def test_more_at_once_than_may_ever_wait_are_not_told_to_ask_again(book: Book) -> None:
    """A caller that obeyed would go round for ever."""
    connection = book.statements.connection()
    with pytest.raises(Full, match="ask for fewer at once") as error, connection.transaction():
        book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(6)])
    assert (error.value.new, error.value.depth, error.value.retry_after_s) == (6, 0, None)
    assert book.count() == 0


def test_a_tool_says_its_own_depth_for_each_tenant(book: Book) -> None:
    fill(book, 3, SMALL)
    full = refused(book, SMALL)
    assert (full.limit, full.most, full.depth) == ("tool.max_depth", 3, 3)
    assert book.count() == 3
    # Another tool of the tenant, and the tool of another tenant.
    fill(book, 1)
    fill(book, 3, SMALL, Scope(tenant="bolt", run_id="run-1"))


def test_a_lane_may_have_so_many_waiting(book: Book) -> None:
    for _ in range(3):
        book.enqueue(LANED, args=charge(customer="cus_a"))
    full = refused(book, LANED, args=charge(customer="cus_a"))
    assert (full.limit, full.most, full.depth) == ("OUTBOX_MAX_LANE_DEPTH", 3, 3)
    book.enqueue(LANED, args=charge(customer="cus_b"))
    fill(book, 1)


def test_a_re_emit_is_never_refused(book: Book) -> None:
    args = charge()
    first = book.enqueue(SMALL, args=args)
    fill(book, 2, SMALL)
    refused(book, SMALL)
    again = book.enqueue(SMALL, args=args)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    with pytest.raises(IntentMismatch):
        book.enqueue(SMALL, args={**args, "amount": 1})


def test_a_twin_of_a_later_turn_is_never_refused(book: Book) -> None:
    args = charge()
    first = book.enqueue(TURN, replace(SCOPE, epoch="turn-1"), args)
    fill(book, 4)
    again = book.enqueue(TURN, replace(SCOPE, epoch="turn-2"), args)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)


def test_what_was_sent_does_not_count_whatever_became_of_it(book: Book) -> None:
    fill(book, 5)
    landed, lost, *_ = book.claimer().claim(64)
    fill(book, 5)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(landed, receipt(landed)), Ended(lost, Lost("no reply"))])
    assert refused(book).depth == 5
    assert book.count() == 10


def test_a_lane_that_a_doubt_holds_fills_up_with_the_rows_behind_it(book: Book) -> None:
    book.enqueue(LANED)
    (head,) = book.claimer().claim(64)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(head, Lost("no reply"))])
    for _ in range(3):
        book.enqueue(LANED)
    refused(book, LANED)


def test_a_paused_account_still_counts_what_waits_for_it(book: Book) -> None:
    fill(book, 5)
    with book.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="r", by="me")
    refused(book)


def test_a_batch_is_recorded_whole_or_not_at_all(book: Book) -> None:
    fill(book, 3)
    connection = book.statements.connection()
    with connection.transaction():
        with pytest.raises(Full) as error:
            book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(3)])
        assert (error.value.depth, error.value.new, error.value.most) == (3, 3, 5)
        assert book.count() == 3
        # The transaction is as it was, and what has room goes in.
        made = book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(2)])
    assert (len(made), book.count()) == (2, 5)


def test_a_batch_counts_what_is_new_in_it_and_each_intent_once(book: Book) -> None:
    known = [charge() for _ in range(4)]
    connection = book.statements.connection()
    for args in known:
        book.enqueue(args=args)
    new = charge()
    batch = [(SCOPE, args) for args in (*known, new, new)]
    with connection.transaction():
        answers = book.outbox.enqueue_many(connection, CHARGE, batch)
    assert [answer.deduplicated for answer in answers] == [True] * 4 + [False, True]
    with pytest.raises(Full), connection.transaction():
        book.outbox.enqueue_many(connection, CHARGE, [*batch, (SCOPE, charge())])
    assert book.count() == 5


def test_a_batch_over_many_places_is_refused_for_the_one_that_is_full(book: Book) -> None:
    fill(book, 3, SMALL, Scope(tenant="bolt", run_id="run-1"))
    batch = [(Scope(tenant=name, run_id="run-1"), charge()) for name in ("acme", "bolt", "cord")]
    with pytest.raises(Full) as error, Session(book.engine) as session, session.begin():
        book.outbox.enqueue_many(session, SMALL, batch)
    assert error.value.limit == "tool.max_depth"
    assert book.count() == 3


def test_rows_of_the_open_transaction_count(book: Book) -> None:
    with Session(book.engine) as session, session.begin():
        for _ in range(5):
            book.outbox.enqueue(session, CHARGE, SCOPE, charge())
        with pytest.raises(Full):
            book.outbox.enqueue(session, CHARGE, SCOPE, charge())
        # What the caller did is still there to commit.
    assert book.count() == 5


def test_transactions_that_are_open_at_once_exceed_it_by_their_own_rows_and_no_more(
    book: Book,
) -> None:
    fill(book, 4)
    ready = threading.Barrier(4)
    told: list[str] = []

    def one() -> None:
        with psycopg.connect(book.url) as connection:
            try:
                book.outbox.enqueue(connection, CHARGE, SCOPE, charge())
                told.append("recorded")
            except Full:
                told.append("full")
            ready.wait(30)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Room for one: four that cannot see each other are three too many, and then it is full.
    assert (told, book.count()) == (["recorded"] * 4, 8)
    # Counted to one more than the limit, whatever there is.
    assert refused(book).depth == 6
    assert "more than 5 wait" in str(refused(book))


async def _async(book: Book, kind: str) -> None:
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(book.url) as connection:
            await book.outbox.aenqueue(connection, SMALL, SCOPE, charge())
        return
    engine = create_async_engine(book.settings.database_url)
    try:
        async with AsyncSession(engine) as session, session.begin():
            await book.outbox.aenqueue(session, SMALL, SCOPE, charge())
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["psycopg", "SQLAlchemy"])
def test_coroutines_are_refused_like_everybody(book: Book, kind: str) -> None:
    for _ in range(3):
        asyncio.run(_async(book, kind))
    with pytest.raises(Full):
        asyncio.run(_async(book, kind))
    assert book.count() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_connection_is_refused_alike(book: Book, kind: str) -> None:
    fill(book, 3, SMALL)
    with KINDS[kind](book) as opened, pytest.raises(Full):
        book.outbox.enqueue(opened, SMALL, SCOPE, charge())
    assert book.count() == 3


def test_a_snapshot_that_hides_a_recorded_row_is_told_to_come_again(book: Book) -> None:
    args = charge()
    with psycopg.connect(book.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for _ in range(5):
            book.outbox.enqueue(connection, CHARGE, SCOPE, charge())
        book.enqueue(args=args)
        with pytest.raises(RetryTransaction):
            book.outbox.enqueue(connection, CHARGE, SCOPE, args)
        connection.rollback()
        assert book.outbox.enqueue(connection, CHARGE, SCOPE, args).deduplicated


def test_without_a_limit_nothing_is_counted(book: Book) -> None:
    free = Outbox(book.settings)
    plain = replace(book, outbox=free)
    fill(plain, 20)
    steps = free._admitted_steps(free._draft(CHARGE, SCOPE, charge(), 0, None, None, None))
    statement, _ = next(steps)
    assert statement.startswith("INSERT INTO outbox.intents")
    free.close()


@pytest.mark.parametrize("limit", ["tenant", "tool", "lane"])
def test_a_count_ends_one_row_beyond_its_limit_and_reads_an_index_alone(
    book: Book, limit: str
) -> None:
    free = Outbox(book.settings)
    plain = replace(book, outbox=free)
    connection = book.statements.connection()
    with connection.transaction():
        free.enqueue_many(connection, LANED, [(SCOPE, charge()) for _ in range(300)])
    free.close()
    book.sql("VACUUM ANALYZE outbox.intents")
    lane = plain.value("SELECT min(lane) FROM outbox.intents")
    asked = {
        "tenants": ["acme"],
        "tools": [LANED.name if limit == "tool" else None],
        "lanes": [lane if limit == "lane" else None],
        "mosts": [20],
    }
    with psycopg.connect(book.url, row_factory=dict_row) as explaining:
        explaining.execute("SET LOCAL enable_seqscan = off")
        sql = f"EXPLAIN (ANALYZE, FORMAT JSON) {depths.COUNT}"
        (row,) = explaining.execute(sql.encode(), asked).fetchall()
    (scan,) = _scans_that_ran(row["QUERY PLAN"])
    assert (scan["Node Type"], scan["Heap Fetches"]) == ("Index Only Scan", 0)
    assert scan["Actual Rows"] == 21


def _scans_that_ran(node: Any) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    if isinstance(node, list):
        for each in node:
            found += _scans_that_ran(each)
    elif isinstance(node, dict):
        if node.get("Relation Name") == "intents" and node["Actual Loops"]:
            found.append(node)
        for each in node.values():
            found += _scans_that_ran(each)
    return found

"""The low-water mark: a claim does not step over what was claimed before, and misses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox.store import claims_sql
from tests.statements import copied
from tests.store.book import SCOPE, Book

_EARLIER = "UPDATE outbox.intents SET due_at = due_at - INTERVAL '1 hour' WHERE id = ANY(%(ids)s)"


def enqueued(book: Book, count: int) -> list[str]:
    return [str(book.enqueue().intent_id) for _ in range(count)]


def test_a_row_that_is_due_before_the_mark_is_found_by_the_claim_that_would_be_empty(
    book: Book,
) -> None:
    claimer = book.claimer()
    first = enqueued(book, 3)
    assert len(claimer.claim(64)) == len(first)
    late = enqueued(book, 1)
    book.sql(_EARLIER, {"ids": late})
    assert [str(row.id) for row in claimer.claim(64)] == late
    assert claimer.claim(64) == []


def test_a_row_that_is_due_before_the_mark_waits_for_few_claims_beside_a_backlog(
    book: Book,
) -> None:
    claimer = book.claimer()
    enqueued(book, 40)
    claimer.claim(1)
    late = enqueued(book, 1)
    book.sql(_EARLIER, {"ids": late})
    found = [str(row.id) for _ in range(20) for row in claimer.claim(1)]
    assert late[0] in found
    claimer.forget_mark()
    later = enqueued(book, 1)
    book.sql(_EARLIER, {"ids": later})
    assert [str(row.id) for row in claimer.claim(1)] == later


def test_a_gate_whose_backlog_is_older_is_not_passed_over(book: Book) -> None:
    """Two gates, of which one is behind: the mark is that of the one that is."""
    claimer = book.claimer()
    behind = enqueued(book, 30)
    book.sql(_EARLIER, {"ids": behind})
    other = [str(book.enqueue(scope=replace(SCOPE, tenant="zeta")).intent_id) for _ in range(30)]
    found = [[str(row.id) for row in claimer.claim(5)] for _ in range(12)]
    assert sorted(id_ for ids in found for id_ in ids) == sorted(behind + other)
    assert [len(ids) for ids in found] == [5] * 12


def test_under_an_old_snapshot_a_claim_reads_what_it_takes_and_not_what_was_taken(
    book: Book,
) -> None:
    enqueued(book, 1)
    with psycopg.connect(book.url) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM outbox.intents")
        copied(book.sql, 3_000, {
            "key": "sha256(convert_to('key' || n, 'UTF8'))",
            "fingerprint": "sha256(convert_to('print' || n, 'UTF8'))",
        })  # fmt: skip
        book.sql(
            "UPDATE outbox.intents SET status = 'cancelled', settled_at = outbox.clock(), "
            "escalate_at = NULL"
        )
        (fresh,) = enqueued(book, 1)
        claimer = book.claimer()
        (part,) = claimer._parts
        due = book.value("SELECT due_at FROM outbox.intents WHERE id = %(id)s", {"id": fresh})
        blocks = {mark: _blocks(book, {**part.params, "mark": mark}) for mark in ("-infinity", due)}
    assert blocks[due] < blocks["-infinity"] / 4


def _blocks(book: Book, params: dict[str, Any]) -> int:
    """How many pages a claim reads."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {claims_sql.BATCH[False]}"
    with psycopg.connect(book.url, row_factory=dict_row) as connection:
        row = connection.execute(explain.encode(), {**params, "limit": 1, "cursor": ""}).fetchone()
        connection.rollback()
    assert row is not None
    return int(row["QUERY PLAN"][0]["Plan"]["Shared Hit Blocks"])

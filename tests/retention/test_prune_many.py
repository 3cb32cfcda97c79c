"""B59: a snapshot that is left open while very many rows are pruned. The claim beside costs what it
did, nothing is left behind, and health says what keeps the dead rows."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row

from outbox.store import claims_sql
from outbox.store.connection import Transaction
from outbox.store.vitals import gauges
from resolvers.pruning import Order, prune
from tests.statements import copied
from tests.store.book import Book, open_book
from tests.store.test_indexes import _claim_params, _known, _rows

ROWS = 20_000
pytestmark = pytest.mark.heavy


def _fill(book: Book) -> None:
    """Finished rows as they come to be, but for their number."""
    row = book.in_flight()
    made = {
        "key": "sha256(n::text::bytea)",
        "fingerprint": "sha256(n::text::bytea)",
        "status": "'succeeded'",
        "settled_at": "outbox.clock() - n * INTERVAL '1 s'",
        "settled_by": "'reply'",
        "receipt_id": "'pi_' || n",
        "receipt": "repeat(md5(n::text), 30)",
        "lease_token": "NULL",
        "lease_until": "NULL",
        "escalate_at": "NULL",
    }
    copied(book.sql, ROWS, made, of=row.id)
    book.sql(
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
        "SELECT id, version, 'settled', status, 'settled', settled_at FROM outbox.intents "
        "WHERE settled_at IS NOT NULL"
    )
    book.sql("VACUUM ANALYZE outbox.intents, outbox.settlements")


def _claim_reads(book: Book) -> float:
    """How many rows of intents a claim looks at."""
    touched: list[float] = []
    with psycopg.connect(book.url, row_factory=dict_row) as connection:
        params = {**_claim_params(book), "known": _known(book)}
        sql = "EXPLAIN (ANALYZE, FORMAT JSON) " + claims_sql.BATCH[False]
        (row,) = connection.execute(sql.encode(), params).fetchall()
        connection.rollback()
    _rows(row["QUERY PLAN"], touched)
    return sum(touched)


def test_a_claim_costs_the_same_after_very_many_rows_were_pruned_under_an_open_snapshot(
    database: str,
) -> None:
    with open_book(database) as book, psycopg.connect(book.url) as pinned:
        _fill(book)
        book.enqueue()
        book.forward(401 * 86400.0)
        before = _claim_reads(book)
        pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        whole = "SELECT count(args) FROM outbox.intents WHERE settled_at IS NOT NULL"
        assert pinned.execute(whole).fetchone() == (ROWS,)
        done = prune(book.store, Order(older_than_s=400 * 86400.0, by="alice"))
        assert (done[0].done, dict(done[0].kept)) == (ROWS, {})
        assert book.value(whole) == 0
        assert pinned.execute(whole).fetchone() == (ROWS,)
        assert _claim_reads(book) == before
        with book.store.transaction() as tx:
            assert _told(tx) > 0
        pinned.rollback()
        assert prune(book.store, Order(older_than_s=400 * 86400.0, by="alice"))[0].done == 0


def _told(tx: Transaction) -> int:
    """The dead rows, as health tells them beside the age of the snapshot that keeps them."""
    tx.run("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
    found = gauges(tx)
    assert found["oldest_snapshot_s"] > 0
    return int(found["dead_rows"])

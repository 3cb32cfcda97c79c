"""Each due query stays on its partial index, however many settled rows there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from outbox.intent import draft
from outbox.store import claims_sql, records, retention, vitals
from outbox.store.records import Ended
from outbox.store.retention import Piece
from resolvers.directory import Directory
from tests import reads
from tests.plans import (
    AS_IF_EVERYWHERE,
    AS_IF_JOINED,
    AS_IF_LARGE,
    Ask,
    explained,
    first_sorted_by,
    indexes,
    joined,
    kept_plans,
    read_whole,
)
from tests.statements import copied
from tests.store.book import ACCOUNT, CHARGE, LANED, SCOPE, Book, charge, open_book, receipt

SETTLED = 20_000


@pytest.fixture(scope="module")
def crowded(servers: Any, _template: str) -> Iterator[Book]:
    """A ledger of many settled rows and a few that are due, with fresh statistics."""
    base = servers.database_url
    with psycopg.connect(base.replace("+psycopg", ""), autocommit=True) as administrator:
        administrator.execute(
            f"CREATE DATABASE crowded TEMPLATE {_template} STRATEGY file_copy".encode()
        )
        with open_book(base.replace("@/postgres?", "@/crowded?")) as book:
            _fill(book)
            yield book
        administrator.execute(b"DROP DATABASE crowded WITH (FORCE)")


def _fill(book: Book) -> None:
    book.enqueue()
    book.enqueue(LANED)
    made = {
        "key": "sha256(n::text::bytea)",
        "fingerprint": "sha256(n::text::bytea)",
        "status": "'succeeded'",
        "settled_at": "created_at",
        "receipt_id": "'pi_' || n",
        "first_sent_at": "created_at",
        "told_at": "created_at",
        "escalate_at": "NULL",
        "window_ends_at": "created_at",
    }
    copied(book.sql, SETTLED, made)
    book.sql(
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
        "SELECT id, version, 'settled', 'succeeded', 'settled', now() FROM outbox.intents "
        "WHERE settled_at IS NOT NULL"
    )
    book.sql(
        "INSERT INTO outbox.attempts (intent_id, lease_no, ended_at, outcome) "
        "SELECT id, 1, now(), 'receipt' FROM outbox.intents WHERE settled_at IS NOT NULL"
    )
    book.sql(
        "INSERT INTO outbox.events (intent_id, at, actor, kind) "
        "SELECT id, now(), 'test', 'noted' FROM outbox.intents WHERE settled_at IS NOT NULL"
    )
    book.sql("INSERT INTO outbox.consumers VALUES ('billing', now())")
    book.sql(
        "INSERT INTO outbox.deliveries SELECT 'billing', id, CASE WHEN id > 5 THEN now() END "
        "FROM outbox.settlements"
    )
    book.sql(
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, received_at) "
        "SELECT 'stripe', 'default', 'test', 'evt_' || n, 'joined', now() "
        "FROM generate_series(1, 5000) n"
    )
    for status in ("unknown", "retryable", "in_flight"):
        answer = book.enqueue(args=charge())
        book.sql(
            f"UPDATE outbox.intents SET status = '{status}', first_sent_at = now(), "
            "window_ends_at = now(), lease_until = CASE WHEN %(leased)s THEN now() END, "
            "lease_token = CASE WHEN %(leased)s THEN gen_random_uuid() END WHERE id = %(id)s",
            {"leased": status == "in_flight", "id": answer.intent_id},
        )
    book.sql("VACUUM ANALYZE")


def _claim_params(book: Book) -> Mapping[str, Any]:
    return reads.claim_params(book.claimer(reads.metered(ACCOUNT)))


def _question(book: Book, name: str) -> Ask:
    return reads.doctor(Directory.of(book.settings))[name]


DUE = reads.due("stripe", "default")
LISTS = reads.lists("stripe", "default")
ENQUEUEING = reads.enqueueing(draft(CHARGE, SCOPE, charge("in_none")))
# It says of itself that it reads every row.
EVERY_ROW = {"values_sealed"}
_NOW = datetime.now(UTC)


@pytest.mark.parametrize("once", [False, True], ids=["planned each time", "planned once"])
@pytest.mark.parametrize("name", reads.CLAIMS)
def test_a_claim_reads_no_settled_row(crowded: Book, name: str, once: bool) -> None:
    params = _claim_params(crowded)
    plans = explained(crowded.url, lambda tx: tx.all(reads.CLAIMS[name], params), once=once)
    assert "intents" not in read_whole(plans)


def test_a_plan_that_is_kept_from_when_the_ledger_was_empty_does_for_a_full_one(
    database: str,
) -> None:
    """It would read all rows for each batch until statistics come, a minute later or more."""
    with open_book(database) as book:
        row = book.in_flight()
        with book.store.transaction(planned_once=True) as tx:
            records.record(tx, [Ended(row, receipt(row))])
            plans = kept_plans(tx.connection)
    assert len(plans) > 1, "the claim's and the record's"
    assert read_whole(plans) == set()


@pytest.mark.parametrize("name", DUE)
def test_a_due_query_reads_no_settled_row(crowded: Book, name: str) -> None:
    assert read_whole(explained(crowded.url, DUE[name])) == set()


@pytest.mark.parametrize("name", ENQUEUEING)
def test_an_enqueue_reads_no_row_but_its_own(crowded: Book, name: str) -> None:
    assert read_whole(explained(crowded.url, ENQUEUEING[name])) == set()


@pytest.mark.parametrize("name", LISTS)
def test_a_list_ends_with_its_page_and_reads_no_table_to_its_end(crowded: Book, name: str) -> None:
    assert read_whole(explained(crowded.url, LISTS[name]), some_of_it=True) == set()


def test_the_doctor_reads_what_is_unsettled_and_the_newest_of_the_rest(crowded: Book) -> None:
    """All but the one check that says that it reads every row."""
    questions = reads.doctor(Directory.of(crowded.settings))
    plans = {
        name: explained(crowded.url, ask, settings=AS_IF_LARGE) for name, ask in questions.items()
    }
    assert {name for name in plans if read_whole(plans[name], some_of_it=True)} == EVERY_ROW
    assert sum(map(bool, plans.values())) > 40


@pytest.mark.parametrize(
    "name",
    [
        "two_intents_with_one_receipt",
        "settled_without_settlement",
        "evidence_of_undecided_gone",
    ],
)
def test_the_doctor_looks_for_what_is_beside_a_row_and_joins_no_table_to_it(
    crowded: Book, name: str
) -> None:
    """Beside ten million rows a hash of them takes longer than a question may."""
    plans = explained(crowded.url, _question(crowded, name), settings=AS_IF_JOINED)
    assert joined(plans) == set()


@pytest.mark.parametrize(
    "name",
    [
        "doubt_below_lost_attempts",
        "attempt_without_a_record",
        "evidence_of_undecided_gone",
    ],
)
def test_the_doctor_finds_some_of_the_unsettled_rows_without_a_search_for_them(
    crowded: Book, name: str
) -> None:
    """They lie at the end of the table, behind all that is settled."""
    plans = explained(crowded.url, _question(crowded, name), settings=AS_IF_EVERYWHERE)
    assert "intents" not in read_whole(plans, some_of_it=True)
    assert "intents_unsettled" in indexes(plans)


def test_the_doctor_compares_twins_by_what_differs_first(crowded: Book) -> None:
    """A million tenants' names are equal, and their fingerprints are not."""
    ask = _question(crowded, "two_untold_twins")
    keys = first_sorted_by(explained(crowded.url, ask, settings=["enable_hashagg = off"]))
    assert "fingerprint" in keys
    assert "tenant" not in keys


def test_an_overdue_account_is_found_without_a_join_of_all_its_rows(crowded: Book) -> None:
    plans = explained(crowded.url, DUE["overdue accounts"], settings=AS_IF_JOINED)
    assert joined(plans) == set()


@pytest.mark.parametrize(
    ("walk", "index"),
    [
        (retention.intents, "intents_retained"),
        (retention.matched_events, "inbox_matched"),
        (retention.unmatched_events, "inbox_unmatched"),
        (retention.foreign_events, "inbox_unmatched"),
    ],
)
def test_pruning_walks_along_an_index_of_its_own(
    crowded: Book, walk: retention.Walk, index: str
) -> None:
    """What is kept back may be any number, and is not sorted at each piece."""
    piece = Piece(before=_NOW, size=10, by="test", reason="")
    plans = explained(crowded.url, lambda tx: walk(tx, piece))
    assert read_whole(plans) == set()
    assert index in indexes(plans)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT note FROM outbox.intents",
        "SELECT seq FROM outbox.intents WHERE note IS NULL ORDER BY seq",
        "SELECT max(n) FROM (SELECT seq, note AS n FROM outbox.intents ORDER BY seq DESC) i",
        "SELECT * FROM outbox.intents ORDER BY note LIMIT 1",
    ],
)
def test_a_whole_table_is_seen_where_it_is_read(crowded: Book, statement: str) -> None:
    plans = explained(crowded.url, lambda tx: tx.all(statement))
    assert read_whole(plans, some_of_it=True) == {"intents"}


def test_the_newest_rows_are_not_the_whole_table_unless_a_due_query_asks_for_them(
    crowded: Book,
) -> None:
    newest = "SELECT note FROM outbox.intents ORDER BY seq DESC LIMIT 5"
    plans = explained(crowded.url, lambda tx: tx.all(newest))
    assert read_whole(plans, some_of_it=True) == set()
    assert read_whole(plans) == {"intents"}


def test_a_paused_gates_backlog_costs_the_claim_nothing(crowded: Book) -> None:
    with psycopg.connect(crowded.url, row_factory=dict_row) as connection:
        connection.execute(
            "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
            "VALUES ('vendor:stripe/default', 'pause', 'stripe/default/', '', 'test', now())"
        )
        connection.execute(
            "UPDATE outbox.intents SET status = 'pending', settled_at = NULL, receipt_id = NULL, "
            "first_sent_at = NULL WHERE seq % 2 = 0 AND status = 'succeeded'"
        )
        connection.execute("ANALYZE outbox.intents")
        params = _claim_params(crowded)
        sql = "EXPLAIN (ANALYZE, FORMAT JSON) " + claims_sql.BATCH[False]
        (row,) = connection.execute(sql.encode(), {**params, "known": _known(crowded)}).fetchall()
        connection.rollback()
    touched: list[float] = []
    _rows(row["QUERY PLAN"], touched)
    assert sum(touched) < 100


def _known(book: Book) -> Jsonb:
    (part,) = book.claimer()._parts
    value: Jsonb = part.params["known"]
    return value


def _rows(node: Any, touched: list[float]) -> None:
    if isinstance(node, list):
        for each in node:
            _rows(each, touched)
    elif isinstance(node, dict):
        if node.get("Relation Name") == "intents":
            loops = node["Actual Loops"]
            removed = node.get("Rows Removed by Filter", 0)
            touched.append(loops * (node["Actual Rows"] + removed))
        for each in node.values():
            _rows(each, touched)


def test_a_snapshot_that_pins_vacuum_is_seen_and_the_claim_stays_on_its_index(
    crowded: Book,
) -> None:
    """B59: a transaction left open elsewhere makes the table grow without any error."""
    with psycopg.connect(crowded.url) as pinned:
        pinned.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.execute("SELECT count(*) FROM outbox.intents")
        for _ in range(20):
            crowded.sql("UPDATE outbox.intents SET note = 'x' WHERE settled_at IS NULL")
        params = _claim_params(crowded)
        plans = explained(crowded.url, lambda tx: tx.all(claims_sql.BATCH[False], params))
        assert "intents" not in read_whole(plans)
        with crowded.store.transaction() as tx:
            assert vitals.gauges(tx)["oldest_snapshot_s"] > 0

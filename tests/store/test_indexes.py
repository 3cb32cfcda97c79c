"""Each due query stays on its partial index, however many settled rows there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from outbox.store import (
    claims_metered_sql,
    claims_sql,
    doubt,
    epochs,
    held,
    inbox,
    neighbours,
    overdue,
    retention,
    settlements,
    switches,
    vitals,
)
from outbox.store.connection import Transaction
from outbox.store.enqueueing_sql import FIND
from outbox.store.intents import Intent
from outbox.store.neighbours import Kin
from outbox.store.overdue import Place
from outbox.store.retention import Piece
from tests.statements import copied
from tests.store.book import ACCOUNT, LANED, Book, charge, open_book

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


class _Explaining(Transaction):
    """Explains the statements of a store function instead of running them."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self.plans: list[Any] = []

    def all(self, sql: Any, params: Any = None) -> list[dict[str, Any]]:
        row = self.connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), params).fetchone()
        assert row is not None
        self.plans.append(row["QUERY PLAN"])
        return []

    def one(self, sql: Any, params: Any = None) -> dict[str, Any] | None:
        self.all(sql, params)
        return None

    def run(self, sql: Any, params: Any = None) -> int:
        self.all(sql, params)
        return 0


def scans(book: Book, ask: Callable[[Transaction], Any]) -> set[str]:
    """The tables that a store function's statements read from end to end."""
    with psycopg.connect(book.url, row_factory=dict_row) as connection:
        explaining = _Explaining(connection)
        try:
            ask(explaining)
        except (AssertionError, TypeError):
            assert explaining.plans, "nothing was explained"
        connection.rollback()
    text = json.dumps(explaining.plans)
    assert '"Node Type"' in text
    found: set[str] = set()
    _walk(explaining.plans, found)
    return found


def _walk(node: Any, found: set[str]) -> None:
    if isinstance(node, list):
        for each in node:
            _walk(each, found)
    elif isinstance(node, dict):
        kind = node.get("Node Type", "")
        # An index that is walked for its order alone reads as much.
        if kind == "Seq Scan" or ("Index" in kind and node.get("Index Name") == "intents_seq"):
            found.add(node["Relation Name"])
        for each in node.values():
            _walk(each, found)


def _claim_params(book: Book) -> Mapping[str, Any]:
    (part,) = book.claimer(replace(ACCOUNT, rate_per_s=1.0, burst=9))._parts
    return {**part.params, "limit": 64, "cursor": ""}


CLAIMS = {
    f"{name}, probing {probing}": sql
    for name, pair in (
        ("batch", claims_sql.BATCH),
        ("lanes", claims_sql.LANE_BATCH),
        ("alone", claims_sql.SOLO),
        ("metered batch", claims_metered_sql.BATCH),
        ("metered lanes", claims_metered_sql.LANE_BATCH),
        ("metered alone", claims_metered_sql.SOLO),
    )
    for probing, sql in pair.items()
}
_NOW = datetime.now(UTC)
_PLACE = Place("stripe", "default", None, asked=False)
_KIN = Kin("stripe", "default", "payment_intents.create", "2026-10-28.endive", None, None)
_ID = UUID(int=1)


class _Row:
    """As much of a row as is asked for before it is locked."""

    id, version = _ID, 1


QUERIES: Mapping[str, Callable[[Transaction], Any]] = {
    "leases": lambda tx: doubt.expire_leases(tx, limit=10, look_in_s=1, max_crashes=3),
    "doubts": lambda tx: doubt.claim_doubts(tx, limit=10, hold_s=1, accounts=["stripe/default/"]),
    "doubts of one list": lambda tx: neighbours.claim(
        tx, _KIN, created=(_NOW, _NOW), token=None, hold_s=1, limit=10
    ),
    "doubts in one transaction": lambda tx: neighbours.lock(tx, [cast(Intent, _Row())]),
    "verifications": lambda tx: doubt.claim_verifications(
        tx, limit=10, hold_s=1, accounts=["stripe/default/"]
    ),
    "withdrawals": lambda tx: doubt.withdrawable(tx, 10),
    "overdue": lambda tx: overdue.claim_sent(tx, _NOW, 10),
    "overdue accounts": lambda tx: overdue.places(tx, _NOW),
    "overdue and waiting": lambda tx: overdue.claim_waiting(tx, _PLACE, _NOW, 10),
    "overdue in a lane": lambda tx: overdue.rest_lane(tx, "x", _NOW, in_s=1, limit=10),
    "held lanes": lambda tx: overdue.held_lanes(tx, wait_s=1, limit=10),
    "held by predecessors": lambda tx: held.claim_held(tx, limit=10, hold_s=1),
    "stale epochs": lambda tx: doubt.cancel_stale_epochs(tx, 10),
    "anything due": switches.anything_due,
    "known accounts": lambda tx: tx.all(
        "SELECT vendor, account FROM outbox.intents WHERE settled_at IS NULL"
    ),
    "gauges": vitals.gauges,
    "webhooks": lambda tx: inbox.claim(tx, 10, 1.0),
    "deliveries": lambda tx: tx.all(
        settlements.TAKE,
        {"consumer": "billing", "limit": 10},
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_reads_no_settled_row(crowded: Book, name: str) -> None:
    params = _claim_params(crowded)
    assert "intents" not in scans(crowded, lambda tx: tx.all(CLAIMS[name], params))


@pytest.mark.parametrize("name", QUERIES)
def test_a_due_query_reads_no_settled_row(crowded: Book, name: str) -> None:
    found = scans(crowded, QUERIES[name])
    assert found & {"intents", "deliveries", "settlements", "webhook_inbox"} == set()


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
    with psycopg.connect(crowded.url, row_factory=dict_row) as connection:
        explaining = _Explaining(connection)
        walk(explaining, piece)
    (plan,) = explaining.plans
    found: set[str] = set()
    _walk(plan, found)
    assert found & {"intents", "deliveries", "settlements", "webhook_inbox"} == set()
    assert f'"Index Name": "{index}"' in json.dumps(plan)


def test_the_scan_is_seen_where_there_is_one(crowded: Book) -> None:
    assert scans(crowded, lambda tx: tx.all("SELECT note FROM outbox.intents")) == {"intents"}


def test_advancing_an_epoch_reads_its_run_alone(crowded: Book) -> None:
    params = {"tenant": "nobody", "run_id": "run-9", "epoch": "turn-2"}
    assert "intents" not in scans(crowded, lambda tx: tx.all(epochs._CANCEL, params))


def test_an_enqueue_that_finds_its_twin_reads_no_other_row(crowded: Book) -> None:
    params = dict.fromkeys(
        ("tenant", "vendor", "account", "run_id", "tool", "supersedes"), "nobody"
    )
    values = {**params, "keys": [b"k" * 32], "fingerprints": [b"f" * 32], "occurrence": 0}
    assert scans(crowded, lambda tx: tx.all(FIND, values)) == set()


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
        found = scans(crowded, lambda tx: tx.all(claims_sql.BATCH[False], params))
        assert "intents" not in found
        with crowded.store.transaction() as tx:
            assert vitals.gauges(tx)["oldest_snapshot_s"] > 0

"""The database repeats the invariants: constraints, append-only tables, roles, plain SQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException, UniqueViolation

from outbox import schema
from outbox.errors import Busy, Invalid
from outbox.store import (
    claims_metered_sql,
    claims_sql,
    doubt,
    escalations,
    inbox,
    intents,
    overdue,
    pages,
    rates,
    records,
    settlements,
    switches,
)
from outbox.store.connection import Store, Transaction
from outbox.store.contradictions import contradict
from outbox.store.rates import Meter
from outbox.store.records import Ended
from outbox.testing import Clock
from tests.store.book import ACCOUNT, CHARGE, LANED, SCOPE, TURN, Book, charge, plain, receipt
from workers.servers import Servers

_numbers = itertools.count()


def test_a_key_is_unique(book: Book) -> None:
    book.enqueue(), book.enqueue()
    with pytest.raises(UniqueViolation):
        book.sql("UPDATE outbox.intents SET key = sha256('x'), occurrence = seq::int")


@pytest.mark.parametrize("table", ["events", "attempts"])
@pytest.mark.parametrize("change", ["UPDATE {} SET intent_id = intent_id", "DELETE FROM {}"])
def test_the_audit_only_grows(book: Book, table: str, change: str) -> None:
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
        escalations.open_for_intent(tx, row, ["ttl"], {})
        switches.pause(tx, "stripe", "default", kind="pause", reason="x", by="me")
    assert book.count(table) > 0
    with pytest.raises(RaiseException):
        book.sql(change.format(f"outbox.{table}"))


def test_no_intent_is_ever_deleted(book: Book) -> None:
    book.enqueue()
    with pytest.raises(RaiseException):
        book.sql("DELETE FROM outbox.intents")


# -- roles ---------------------------------------------------------------------------------------


def as_role(book: Book, role: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(book.url, row_factory=psycopg.rows.dict_row)
    connection.execute(f"SET ROLE {role}".encode())
    connection.commit()
    return connection


class OneConnection:
    """A store over one connection, so that a role is tried with the store's own functions."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        yield Transaction(self._connection)


def as_store(connection: psycopg.Connection[Any]) -> Store:
    return cast(Store, OneConnection(connection))


def test_an_agent_may_do_all_that_its_api_does(book: Book) -> None:
    args = charge()
    settlements.register(book.store, "billing")
    with as_role(book, "outbox_agent") as connection:
        book.outbox.enqueue(connection, CHARGE, SCOPE, args)
        book.outbox.enqueue(connection, CHARGE, SCOPE, {**args, "memo": "differs"})
        turn = type(SCOPE)(tenant="acme", run_id="run-1", epoch="turn-1")
        book.outbox.enqueue(connection, TURN, turn, charge())
        assert book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2") == 1
        (one,) = book.outbox.settlements(connection, "billing")
        assert one.told == "cancelled"
        tx = Transaction(connection)
        settlements.register(as_store(connection), "mail")
        from outbox.store import reading

        assert list(reading.look(tx, [one.intent_id])) == [one.intent_id]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox.intents SET key = key",
        "UPDATE outbox.intents SET request = request",
        "UPDATE outbox.intents SET receipt_id = 'pi_1'",
        "UPDATE outbox.intents SET doubt = 0",
        "UPDATE outbox.intents SET veto = NULL",
        "DELETE FROM outbox.intents",
        "UPDATE outbox.events SET reason = ''",
        "INSERT INTO outbox.attempts (intent_id) SELECT id FROM outbox.intents",
        "SELECT body FROM outbox.webhook_inbox",
        "UPDATE outbox.escalations SET closed_at = now()",
        "DELETE FROM outbox.switches",
        "SELECT * FROM outbox.pages",
        "UPDATE outbox.settlements SET told = 'settled'",
    ],
)
def test_an_agent_may_do_nothing_else(book: Book, statement: str) -> None:
    book.enqueue()
    with as_role(book, "outbox_agent") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement.encode())


def test_a_worker_may_do_all_that_its_jobs_do(book: Book) -> None:
    answer = book.enqueue()
    laned = book.enqueue(LANED)
    with as_role(book, "outbox_worker") as connection:
        tx = Transaction(connection)
        limited = replace(ACCOUNT, rate_per_s=1.0, burst=9)
        rates.open_buckets(tx, [Meter("stripe/default/", 1.0, 9)])
        (part,) = book.claimer(limited)._parts
        for sql in _claims():
            tx.all(sql, {**part.params, "limit": 64, "cursor": ""})
        row = intents.lock(tx, answer.intent_id)
        assert row is not None
        assert row.status == "in_flight"
        records.record(tx, [Ended(row, receipt(row))])
        doubt.expire_leases(tx, limit=10, look_after_s=1, max_crashes=3)
        doubt.claim_doubts(tx, limit=1, hold_s=1, accounts=[""])
        since = intents.now(tx)
        for place in overdue.places(tx, since):
            overdue.claim_waiting(tx, place, since, 10)
        overdue.claim_sent(tx, since, 10)
        overdue.rest_lane(tx, "lane", since, in_s=1, limit=10)
        overdue.held_lanes(tx, wait_s=1, limit=10)
        switches.hold(tx, "vendor:stripe/default")
        doubt.withdrawable(tx, 10)
        head = intents.lock(tx, laned.intent_id)
        assert head is not None
        contradict(tx, head, "duplicate", ["pi_2"], "look-up")
        settlements.register(as_store(connection), "billing")
        switches.trip_breaker(tx, "stripe", "default", reason="x", probe_s=1)
        switches.slow_breaker(tx, "stripe", "default", max_s=9)
        switches.close_breaker(tx, "stripe", "default")
        switches.freeze_account(tx, "stripe", ACCOUNT)
        switches.database_time(tx)
        switches.beat(tx, "drain", "me")
        inbox.keep(
            tx, vendor="stripe", account="default", mode="test", event_id="evt", kind="k",
            body=b"{}", state="new",
        )  # fmt: skip
        inbox.claim(tx, 10, 1.0)
        pages.next_due(tx, first="none")
        pages.claim(tx, 1, first="none", hold_s=1)
        connection.commit()


def _claims() -> Iterator[Any]:
    for module in (claims_sql, claims_metered_sql):
        for pair in (module.BATCH, module.LANE_BATCH, module.SOLO):
            yield from pair.values()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox.events SET reason = ''",
        "UPDATE outbox.attempts SET detail = ''",
        "DELETE FROM outbox.intents",
        "DELETE FROM outbox.settlements",
        "DELETE FROM outbox.deliveries",
        "DELETE FROM outbox.escalations",
        "DROP TABLE outbox.pages",
    ],
)
def test_a_worker_may_not_rewrite_history(book: Book, statement: str) -> None:
    with as_role(book, "outbox_worker") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement.encode())


# -- the schema as text --------------------------------------------------------------------------

SHAPE = """
    SELECT 'column' AS what, c.relname AS of, a.attname AS name,
           format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text || ' '
           || COALESCE(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || a.attcollation::text AS is
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0 AND c.relkind = 'r'
    UNION ALL
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'outbox'
    UNION ALL
    SELECT 'setting', relname, split_part(o, '=', 1), split_part(o, '=', 2)
      FROM pg_class, unnest(reloptions) o WHERE relnamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'function', proname, '', pg_get_functiondef(oid)
      FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid)
      FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT 'grant', table_name, grantee, string_agg(privilege_type, ',' ORDER BY privilege_type)
      FROM information_schema.role_table_grants WHERE table_schema = 'outbox'
     GROUP BY table_name, grantee
    ORDER BY 1, 2, 3, 4
"""


@pytest.fixture
def empty(servers: Servers) -> Iterator[str]:
    name = f"plain_{next(_numbers)}"
    with psycopg.connect(plain(servers.database_url), autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {name}".encode())
        yield servers.database_url.replace("@/postgres?", f"@/{name}?")
        administrator.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def shape(database_url: str) -> list[Any]:
    with psycopg.connect(plain(database_url)) as connection:
        return connection.execute(SHAPE.encode()).fetchall()


def test_the_sql_for_a_dba_makes_the_schema_that_the_migration_makes(
    empty: str, database: str
) -> None:
    with psycopg.connect(plain(empty), autocommit=True) as connection:
        connection.execute(schema.sql().encode())
    Clock(database).remove()
    assert shape(empty) == shape(database)
    assert schema.current(empty) == schema.head()
    schema.upgrade(empty)
    assert shape(empty) == shape(database)


@pytest.mark.parametrize("found", ["1_0001", "1_0006"])
def test_the_sql_from_a_revision_brings_a_database_from_there_to_this_release(
    empty: str, database: str, found: str
) -> None:
    schema.upgrade(empty, found)
    with psycopg.connect(plain(empty), autocommit=True) as connection:
        connection.execute(schema.sql(found).encode())
    Clock(database).remove()
    assert shape(empty) == shape(database)
    assert schema.current(empty) == schema.head()


def test_sql_from_a_revision_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Invalid, match="9_0001 is no revision of this release"):
        schema.sql("9_0001")


def test_taking_the_schema_down_leaves_nothing_but_the_version_table(empty: str) -> None:
    schema.upgrade(empty)
    first = shape(empty)
    schema.downgrade(empty)
    left = {(what, of) for what, of, *_ in shape(empty)}
    assert {of.removeprefix("outbox.") for _, of in left} <= {"alembic_version"}
    assert schema.current(empty) is None
    schema.upgrade(empty)
    assert shape(empty) == first


def test_what_changes_is_vacuumed_by_less_than_a_hundredth_of_it_and_down_again_by_the_default(
    empty: str,
) -> None:
    schema.upgrade(empty)
    found = settings_of(empty)
    for table in ("intents", "deliveries"):
        assert float(found[table, "autovacuum_vacuum_scale_factor"]) < 0.01
        # Few pages of a large table hold anything dead, and then its indexes would be left alone.
        assert found[table, "vacuum_index_cleanup"] == "on"
    for table in ("attempts", "settlements", "events"):
        assert float(found[table, "autovacuum_vacuum_insert_scale_factor"]) < 0.2
    assert found["rates", "autovacuum_vacuum_scale_factor"] == "0"
    schema.downgrade(empty, "1_0004")
    assert settings_of(empty) == {("rates", "fillfactor"): "20"}


def settings_of(database_url: str) -> dict[tuple[str, str], str]:
    """The storage settings of the tables, by table and name."""
    return {(of, name): is_ for what, of, name, is_ in shape(database_url) if what == "setting"}


def test_an_empty_database_has_no_revision(empty: str) -> None:
    assert schema.current(empty) is None


@pytest.mark.heavy
def test_an_upgrade_behind_an_open_reader_gives_up_and_holds_up_nobody(empty: str) -> None:
    schema.upgrade(empty)
    schema.downgrade(empty, "1_0001")
    with psycopg.connect(plain(empty)) as reader:
        reader.execute("SELECT count(*) FROM outbox.intents")
        with pytest.raises(Busy):
            schema.upgrade(empty)
        assert schema.current(empty) == "1_0001"
    schema.upgrade(empty)
    assert schema.current(empty) == schema.head()

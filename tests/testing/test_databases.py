"""A test's database is as a new one is, whatever the test before did to the one it had."""

from __future__ import annotations

import psycopg
import pytest

from outbox.testing import Clock, Databases
from tests.workers.floor import query

_TABLES = """
SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND oid >= 16384 ORDER BY 1
"""
_SHAPE = """
SELECT c.oid::regclass::text AS name, c.relacl::text, c.reltuples, attname, atttypid::regtype::text
FROM pg_class c LEFT JOIN pg_attribute ON attrelid = c.oid AND attnum > 0
WHERE c.oid >= 16384 AND relnamespace <> 'pg_toast'::regnamespace ORDER BY 1, 4
"""
_NUMBERS = "SELECT sequencename, last_value FROM pg_sequences ORDER BY 1"
_COUNTED = "SELECT relname, n_dead_tup, n_tup_ins FROM pg_stat_user_tables ORDER BY 1"
_CLOCK = """
SELECT prosrc, outbox.clock() = statement_timestamp() AS real, current_setting('timezone')
FROM pg_proc WHERE oid = 'outbox.clock()'::regprocedure
"""
_EVENT = """
INSERT INTO outbox.events (holder, at, actor, kind) VALUES ('x', now(), 'x', repeat('x', 2000))
"""
_HERE = "SELECT oid, current_database() AS name FROM pg_database WHERE datname = current_database()"
# Emptied and used again, though a trigger refuses that events are deleted.
KEPT = {
    "nothing": "SELECT 1",
    "rows": _EVENT,
    "rows that were rolled back": f"BEGIN; {_EVENT}; ROLLBACK",
    "a number drawn and not used": "SELECT nextval('outbox.events_id_seq')",
    "time": "UPDATE outbox.test_clock SET offset_s = 3600",
}
DROPPED = {
    "a table of its own": "CREATE TABLE public.invoices (id int)",
    "a column": "ALTER TABLE outbox.events ADD COLUMN more int",
    "a rule": "ALTER TABLE outbox.events ADD CHECK (kind <> 'y')",
    "a right": "GRANT SELECT ON outbox.events TO PUBLIC",
    "a trigger": "ALTER TABLE outbox.events DISABLE TRIGGER events_append_only",
    "a function": "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql "
    "STABLE AS $$ SELECT '2020-01-01'::timestamptz $$",
    "a setting": "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', "
    "current_database()); END $$",
    "a row of the template's": "UPDATE outbox.registrations SET made = made + 1",
    "statistics": f"{_EVENT}; ANALYZE outbox.events",
    "many rows": f"DO $$ BEGIN FOR n IN 1..1000 LOOP {_EVENT}; END LOOP; END $$",
}


def _seen(url: str) -> list[object]:
    """Whatever a test could find there."""
    counted = query(url, _COUNTED)
    rows = [query(url, f"SELECT * FROM {table['name']}") for table in query(url, _TABLES)]
    return [counted, rows, *(query(url, statement) for statement in (_SHAPE, _NUMBERS, _CLOCK))]


@pytest.mark.parametrize("change", [*KEPT, *DROPPED])
def test_nothing_that_was_done_is_seen_by_the_next(
    outbox_databases: Databases, outbox_template: str, change: str
) -> None:
    with outbox_databases.fresh(outbox_template) as url:
        first, before = query(url, _HERE)[0], _seen(url)
        query(url, {**KEPT, **DROPPED}[change])
    with outbox_databases.fresh(outbox_template) as url:
        second, after = query(url, _HERE)[0], _seen(url)
    assert after == before
    assert first["name"] != second["name"]
    assert (first["oid"] == second["oid"]) is (change in KEPT)


def test_whoever_was_forgotten_finds_no_database_at_the_old_address(
    outbox_databases: Databases, outbox_template: str
) -> None:
    with outbox_databases.fresh(outbox_template) as old:
        forgotten = psycopg.connect(old.replace("+psycopg", ""), autocommit=True)
    with outbox_databases.fresh(outbox_template):
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(old.replace("+psycopg", ""))


def test_a_clock_that_was_taken_away_is_there_again(
    outbox_databases: Databases, outbox_template: str
) -> None:
    with outbox_databases.fresh(outbox_template) as url:
        Clock(url).remove()
    with outbox_databases.fresh(outbox_template) as url:
        assert Clock(url).offset == 0

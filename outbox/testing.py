"""For tests of code that uses the outbox: databases of their own, and a clock that can be moved.

    clock = settable_clock(database_url)
    clock.advance(24 * 3600)        # every lease, TTL and window is a day older

The database's clock decides everything that depends on time, so moving it is all that a test of
deadlines needs. Never for a database with live credentials: `outbox doctor` and start-up refuse it.

The pytest fixtures over it, and the vendor beside it, are `outbox_box` and its parts:
`pytest --fixtures` describes them.
"""

from __future__ import annotations

import functools
from typing import Any, LiteralString

import psycopg

from outbox import schema
from outbox.errors import Denied, SettingsError
from outbox.settings import Settings
from outbox.store.due import next_due_in_s
from outbox.testing_databases import TEMPLATE, Databases

__all__ = ["TEMPLATE", "Clock", "Databases", "next_due_in_s", "prepare", "settable_clock"]

_INSTALL = """
CREATE TABLE IF NOT EXISTS outbox.test_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    offset_s double precision NOT NULL DEFAULT 0
);
INSERT INTO outbox.test_clock DEFAULT VALUES ON CONFLICT DO NOTHING;
GRANT SELECT ON outbox.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp()
        + (SELECT offset_s FROM outbox.test_clock) * INTERVAL '1 second' $$
"""
_REMOVE = """
CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp() $$;
DROP TABLE IF EXISTS outbox.test_clock
"""
_INSTALLED = """
SELECT to_regclass('outbox.test_clock') IS NOT NULL AND EXISTS (
    SELECT FROM pg_proc WHERE oid = to_regprocedure('outbox.clock()') AND prosrc LIKE '%test_clock%'
)
"""
# What a test may have left: every table but the clock and the schema's version.
_LEFT = """
SELECT array_agg(format('outbox.%I', c.relname)) FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
    AND c.relname NOT IN ('test_clock', 'alembic_version', 'registrations')
"""
_NUMBERED = """EXISTS (
    SELECT FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid
    WHERE c.relnamespace = 'outbox'::regnamespace AND pg_sequence_last_value(seqrelid) IS NOT NULL
)"""


class Clock:
    """The clock of one database, for all its sessions at once. It goes on running; ``offset``
    (seconds) is how far it was moved."""

    def __init__(self, database_url: str) -> None:
        self._url = _plain(database_url)

    @property
    def offset(self) -> float:
        """How many seconds it is ahead of the server's own clock."""
        return self._run("SELECT offset_s FROM outbox.test_clock")

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._run("UPDATE outbox.test_clock SET offset_s = %s RETURNING offset_s", seconds)

    def advance(self, seconds: float) -> float:
        """Moves it forward (or back, with a negative number); returns the new offset."""
        return self._run(
            "UPDATE outbox.test_clock SET offset_s = offset_s + %s RETURNING offset_s", seconds
        )

    def remove(self) -> None:
        """Puts the real clock back."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(_REMOVE)

    def _run(self, statement: LiteralString, *values: float) -> float:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(statement, values or None).fetchone()
        assert row is not None
        return float(row[0])


def settable_clock(database_url: str) -> Clock:
    """Installs a clock that can be moved in a migrated database, or finds the one that is there."""
    with psycopg.connect(_plain(database_url), autocommit=True) as connection:
        _install(connection)
    return Clock(database_url)


def prepare(database_url: str) -> Clock:
    """Makes a migrated database ready for one test: a clock that can be moved, at its real time,
    and no row of an earlier test in schema ``outbox``. Other schemas are left alone.

    Refused before anything is changed: with ``Denied`` where this process's environment holds a
    live credential, or where the database holds intents and no test's clock, so that it is not a
    test's; with ``SettingsError`` where the schema is not this release's.
    """
    for (vendor, name), account in sorted(Settings.from_env().accounts.items()):
        if account.mode == "live":
            raise Denied(
                "live_credential",
                f"the environment holds a live credential ({vendor}/{name}): tests move the clock "
                "of their database and empty it, so run them without one",
            )
    with psycopg.connect(_plain(database_url)) as connection:
        problem = _advice(_revision(connection))
        if problem is not None:
            raise SettingsError([("outbox_database_url", f"the schema {problem}")])
        ours = _value(connection, "SELECT to_regclass('outbox.test_clock') IS NOT NULL")
        if not ours and _value(connection, "SELECT EXISTS (SELECT FROM outbox.intents)"):
            raise Denied(
                "not_a_test_database",
                "the database holds intents that no test made: tests empty schema outbox, so "
                "give them a database of their own",
            )
        _install(connection)
        if ours:
            _truncate(connection, _value(connection, _LEFT))
            connection.execute("UPDATE outbox.test_clock SET offset_s = 0")
    return Clock(database_url)


# The migrations are files that do not change while tests run, and reading them takes long.
_advice = functools.cache(schema.advice)


def _revision(connection: psycopg.Connection) -> str | None:
    if not _value(connection, "SELECT to_regclass('outbox.alembic_version') IS NOT NULL"):
        return None
    return str(_value(connection, "SELECT version_num FROM outbox.alembic_version"))


def _install(connection: psycopg.Connection) -> None:
    # What is there is left alone: a change of the schema costs more than a test's other statements.
    if not _value(connection, _INSTALLED):
        connection.execute(_INSTALL)


def _truncate(connection: psycopg.Connection, tables: list[str]) -> None:
    # Of tables that are empty already it would be the dearest statement of a small test.
    left = " OR ".join([_NUMBERED, *(f"EXISTS (SELECT FROM {table})" for table in tables)])
    if _value(connection, f"SELECT {left}"):
        connection.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY".encode())


def _value(connection: psycopg.Connection, statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    return row[0] if row else None


def _plain(database_url: str) -> str:
    return database_url.replace("postgresql+psycopg", "postgresql", 1)

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
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from outbox import schema
from outbox.errors import Denied, SettingsError
from outbox.settings import Settings
from outbox.store.connection import Transaction

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
# What a test may have left: every table but the clock and the schema's version.
_LEFT = """
SELECT string_agg(format('outbox.%I', c.relname), ', ') FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
    AND c.relname NOT IN ('test_clock', 'alembic_version', 'registrations')
"""
TEMPLATE = "template_outbox"
_LOOKS, _LOOK_S = 100, 0.002


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
        connection.execute(_INSTALL)
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
        connection.execute(_INSTALL)
        if ours:
            left = sql.SQL(_value(connection, _LEFT))
            connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(left))
            connection.execute("UPDATE outbox.test_clock SET offset_s = 0")
    return Clock(database_url)


_NEXT_DUE = """
SELECT EXTRACT(EPOCH FROM min(at) - outbox.clock())::float8 AS left_s FROM (
    SELECT due_at AS at FROM outbox.intents
        WHERE status IN ('pending', 'unknown', 'retryable') AND settled_at IS NULL
    UNION ALL SELECT lease_until FROM outbox.intents WHERE status = 'in_flight'
    UNION ALL SELECT resolver_until FROM outbox.intents WHERE resolver_until IS NOT NULL
    UNION ALL SELECT escalate_at FROM outbox.intents WHERE settled_at IS NULL
    UNION ALL SELECT verify_at FROM outbox.intents WHERE verify_at IS NOT NULL
    UNION ALL SELECT due_at FROM outbox.webhook_inbox WHERE due_at IS NOT NULL
    UNION ALL SELECT due_at FROM outbox.pages WHERE state = 'due'
) d WHERE at > outbox.clock()
"""
# A moment that has just passed is due by every comparison.
_PAST_S = 0.001


def next_due_in_s(tx: Transaction) -> float | None:
    """Seconds until something that waits in the ledger falls due; None where nothing waits."""
    row = tx.one(_NEXT_DUE)
    return None if row is None or row["left_s"] is None else float(row["left_s"]) + _PAST_S


class Databases:
    """Databases in one Postgres server, each a copy of a migrated template: 10 ms each where the
    server keeps its files in memory. Its account must be allowed to create databases."""

    def __init__(self, server_url: str) -> None:
        self._url = urlsplit(server_url)
        self._administrator = psycopg.connect(_plain(server_url), autocommit=True)
        self._numbers = itertools.count()
        self._closed: set[str] = set()

    def template(self) -> str:
        """Makes the migrated template; its URL. Whatever else is put there is in every copy made
        from then on."""
        self._administrator.execute(f"CREATE DATABASE {TEMPLATE}".encode())
        schema.upgrade(self._at(TEMPLATE))
        return self._at(TEMPLATE)

    @contextmanager
    def fresh(self, template_url: str) -> Iterator[str]:
        """The URL of a copy, dropped at the end of the block."""
        name, template = f"test_{next(self._numbers)}", urlsplit(template_url).path[1:]
        if template not in self._closed:
            # Nobody may be connected to what is copied; a pool of the caller's may still be.
            self._run("ALTER DATABASE {} ALLOW_CONNECTIONS false", template)
            self._administrator.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (template,),
            )
            self._closed.add(template)
        # The other strategy writes every page to the log as well.
        self._run("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, template)
        try:
            yield self._at(name)
        finally:
            self._empty(name)
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _empty(self, name: str) -> None:
        """Ends whoever is left. A backend that was told to end takes a millisecond to, and a drop
        that still meets one looks again after a hundred."""
        pausing = threading.Event()
        for _ in range(_LOOKS):
            left = self._administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (name,),
            ).fetchall()
            if not left:
                return
            pausing.wait(_LOOK_S)

    def close(self) -> None:
        """Drops the connection."""
        self._administrator.close()

    def _at(self, name: str) -> str:
        return self._url._replace(path=f"/{name}").geturl()

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._administrator.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


# The migrations are files that do not change while tests run, and reading them takes long.
_advice = functools.cache(schema.advice)


def _revision(connection: psycopg.Connection) -> str | None:
    if not _value(connection, "SELECT to_regclass('outbox.alembic_version') IS NOT NULL"):
        return None
    return str(_value(connection, "SELECT version_num FROM outbox.alembic_version"))


def _value(connection: psycopg.Connection, statement: LiteralString) -> Any:
    row = connection.execute(statement).fetchone()
    return row[0] if row else None


def _plain(database_url: str) -> str:
    return database_url.replace("postgresql+psycopg", "postgresql", 1)

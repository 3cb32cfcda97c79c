"""Databases of tests' own in one Postgres server: each is as if it had just been made.

Making and dropping one costs the server more than most tests do, so one that a test has left is
emptied and used again, under another name, so that whatever the test forgot to end finds nothing
at the old one. What cannot be emptied to exactly what a new one holds is dropped.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from outbox import schema

TEMPLATE = "template_outbox"
_LOOKS, _LOOK_S = 100, 0.002
# The server counts each row that is written, rolled back or not, and each block of a sequence that
# is read; sessions hand in what they counted when they end. A catalog that was written to is a
# change of the schema, and a table that was vacuumed or analyzed is planned for in another way.
_WRITTEN: LiteralString = """
SELECT oid::regclass::text, oid < 16384 OR reltuples >= 0 OR pg_relation_size(oid) > %(bytes)s,
    format('DELETE FROM %%s', oid::regclass)
FROM pg_class WHERE relkind = 'r' AND NOT relisshared AND (
    pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
        + pg_stat_get_tuples_deleted(oid) > 0
    OR oid >= 16384 AND reltuples >= 0)
UNION ALL
SELECT oid::regclass::text, false, format('SELECT setval(%%s, %%s, false)', oid, seqstart)
FROM pg_class JOIN pg_sequence ON seqrelid = oid WHERE pg_stat_get_blocks_fetched(oid) > 0
"""
_TABLES: LiteralString = """
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= 16384
"""
_DRAWN: LiteralString = """
SELECT seqrelid::regclass::text FROM pg_sequence WHERE pg_sequence_last_value(seqrelid) IS NOT NULL
"""
# What a test may have set for its database as a whole.
_SET: LiteralString = """
SELECT 1 FROM pg_database d WHERE datname = %s AND (
    datacl IS NOT NULL OR datconnlimit <> -1 OR NOT datallowconn
    OR EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = d.oid))
"""
_CLOCK = "outbox.test_clock"
_TO_ITS_REAL_TIME = f"UPDATE {_CLOCK} SET offset_s = 0"  # noqa: S608 - names of our own
# Up to so much the planner takes a table that was never analyzed to have this size anyhow, so
# that what is deleted and not yet gone changes no plan.
_SMALL_BYTES = 10 * 8192


class Databases:
    """Databases in one Postgres server, each as a copy of a migrated template is. Its account must
    be allowed to create databases; those of one that is no superuser are never used again."""

    def __init__(self, server_url: str) -> None:
        self._url = urlsplit(server_url)
        self._administrator = psycopg.connect(_plain(server_url), autocommit=True)
        self._numbers = itertools.count()
        # By template: what it holds, and the emptied databases that wait for a test.
        self._held: dict[str, set[str]] = {}
        self._waiting: dict[str, list[str]] = {}

    def template(self) -> str:
        """Makes the migrated template; its URL. Whatever else is put there is in every copy made
        from then on, until the first is taken."""
        self._administrator.execute(f"CREATE DATABASE {TEMPLATE}".encode())
        schema.upgrade(self._at(TEMPLATE))
        return self._at(TEMPLATE)

    @contextmanager
    def fresh(self, template_url: str) -> Iterator[str]:
        """The URL of a copy, which nobody else has had; gone at the end of the block."""
        template = urlsplit(template_url).path[1:]
        if template not in self._held:
            self._held[template] = self._contents(template)
            self._waiting[template] = []
        name = self._take(template)
        try:
            yield self._at(name)
        finally:
            self._end_sessions(name)
            if self._emptied(name, self._held[template]):
                self._waiting[template].append(name)
            else:
                self._run("DROP DATABASE {} WITH (FORCE)", name)

    def close(self) -> None:
        """Drops the connection."""
        self._administrator.close()

    def _contents(self, template: str) -> set[str]:
        """The template's tables that hold rows and its sequences that were drawn from. Nobody may
        be connected to what is copied, from now on; a pool of the caller's may still be."""
        with psycopg.connect(_plain(self._at(template)), autocommit=True) as connection:
            tables = [name for (name,) in connection.execute(_TABLES).fetchall()]
            held = {name for (name,) in connection.execute(_DRAWN).fetchall()}
            for name in tables:
                if connection.execute(f"SELECT 1 FROM {name} LIMIT 1".encode()).fetchone():  # noqa: S608
                    held.add(name)
        self._run("ALTER DATABASE {} ALLOW_CONNECTIONS false", template)
        self._administrator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (template,),
        )
        return held

    def _take(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        if self._waiting[template]:
            left = self._waiting[template].pop()
            self._end_sessions(left)  # our own, which emptied it
            self._run("ALTER DATABASE {} RENAME TO {}", left, name)
        else:
            # The other strategy writes every page to the log as well.
            self._run("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, template)
        return name

    def _emptied(self, name: str, held: set[str]) -> bool:
        """Brings a database back to what the template holds; False where that cannot be done."""
        if self._administrator.execute(_SET, (name,)).fetchone():
            return False
        try:
            with psycopg.connect(_plain(self._at(name)), autocommit=True) as connection:
                return _empty(connection, held)
        except psycopg.Error:  # not ours to empty
            return False

    def _end_sessions(self, name: str) -> None:
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

    def _at(self, name: str) -> str:
        return self._url._replace(path=f"/{name}").geturl()

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._administrator.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _empty(connection: psycopg.Connection, held: set[str]) -> bool:
    written = connection.execute(_WRITTEN, {"bytes": _SMALL_BYTES}).fetchall()
    if any(changed or (name in held and name != _CLOCK) for name, changed, _ in written):
        return False
    statements = [
        # No trigger refuses, and no foreign key asks for an order.
        "SET session_replication_role = replica",
        *(_TO_ITS_REAL_TIME if name == _CLOCK else emptying for name, _, emptying in written),
        # What is counted here shall not be taken for the next test's.
        "SELECT pg_stat_force_next_flush()",
    ]
    connection.execute("; ".join(statements).encode())
    connection.execute("SELECT pg_stat_reset()")
    return True


def _plain(database_url: str) -> str:
    return database_url.replace("postgresql+psycopg", "postgresql", 1)

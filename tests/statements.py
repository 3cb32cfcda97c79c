"""Statements of a test's own: a new connection costs the server more than most statements do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import DictRow, dict_row


class Statements:
    """Runs statements over one connection a thread, opened when first needed; each is committed at
    once. Whatever the product's connections go through, these go on."""

    def __init__(self, database: str) -> None:
        self._url = database.replace("postgresql+psycopg", "postgresql", 1)
        # A forked child has its own: the parent's is not to be touched there.
        self._open: dict[tuple[int, int], psycopg.Connection[DictRow]] = {}

    def __call__(
        self, statement: str, params: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a statement, if it has any."""
        connection = self.connection()
        try:
            return _run(connection, statement, params)
        except psycopg.OperationalError:
            if not connection.closed:
                raise
            # It had been killed with all the others, and that is only seen when it is used.
            return _run(self.connection(), statement, params)

    def connection(self) -> psycopg.Connection[DictRow]:
        """This thread's connection, in autocommit."""
        mine = (os.getpid(), threading.get_ident())
        found = self._open.get(mine)
        if found is None or found.closed:
            found = psycopg.connect(
                self._url, autocommit=True, row_factory=dict_row, prepare_threshold=None
            )
            self._open[mine] = found
        return found

    def close(self) -> None:
        """Drops the connections of all threads."""
        for (pid, _), connection in self._open.items():
            if pid == os.getpid():
                connection.close()
        self._open.clear()


def _run(
    connection: psycopg.Connection[DictRow], statement: str, params: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    return fetched(connection.execute(statement.encode(), params))


def fetched(cursor: psycopg.Cursor[Any]) -> list[Any]:
    """The rows, if the statement gives any: of one that names no column too."""
    return list(cursor.fetchall()) if cursor.description is not None else []


def copied(
    sql: Callable[..., Any], count: int, made: Mapping[str, str], *, of: UUID | None = None
) -> None:
    """So many intents like that one, or like the first. ``made`` says by SQL what a column has
    instead: ``i`` is the row that is copied, ``n`` counts from 1. Each has an id of its own; the
    caller makes keys and fingerprints that are new."""
    columns = sql(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'outbox' "
        "AND table_name = 'intents' AND is_identity = 'NO'"
    )
    names = [row["column_name"] for row in columns]
    made = {"id": "gen_random_uuid()", **made}
    sql(
        f"INSERT INTO outbox.intents ({', '.join(names)}) "
        f"SELECT {', '.join(made.get(name, 'i.' + name) for name in names)} FROM "
        "(SELECT * FROM outbox.intents WHERE COALESCE(id = %(of)s, true) ORDER BY seq LIMIT 1) i, "
        f"generate_series(1, {count}) n",
        {"of": of},
    )

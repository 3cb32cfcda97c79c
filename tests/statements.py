"""Statements of a test's own: a new connection costs the server more than most statements do."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

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
    cursor = connection.execute(statement.encode(), params)
    return list(cursor.fetchall()) if cursor.description else []

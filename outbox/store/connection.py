"""Our own sessions: a psycopg pool built in the process that uses it, with bounded time-outs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from outbox.errors import Unreachable
from outbox.settings import Settings

Params = Mapping[str, Any]

# Registering a consumer excludes writers of settlements, so that no result falls between the
# back-fill and the fan-out; writers share it.
CONSUMERS_LOCK = 0x6F757462


class Transaction:
    """One short transaction. Rows are dictionaries."""

    def __init__(self, connection: psycopg.Connection[DictRow]) -> None:
        self.connection = connection

    def all(self, sql: LiteralString, params: Params | None = None) -> list[dict[str, Any]]:
        """Every row of a statement."""
        return self.connection.execute(sql, params).fetchall()

    def one(self, sql: LiteralString, params: Params | None = None) -> dict[str, Any] | None:
        """The first row of a statement, or None."""
        return self.connection.execute(sql, params).fetchone()

    def run(self, sql: LiteralString, params: Params | None = None) -> int:
        """Runs a statement and returns how many rows it touched."""
        return self.connection.execute(sql, params).rowcount


class Store:
    """The ledger's own connections. Build it after a fork, never before one."""

    def __init__(self, settings: Settings, *, size: int = 4) -> None:
        self.settings = settings
        timeouts = {
            "statement_timeout": settings.statement_timeout_s,
            "lock_timeout": settings.lock_timeout_s,
            "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout_s,
        }
        options = " ".join(f"-c {name}={int(value * 1000)}" for name, value in timeouts.items())
        # In UTC, whatever the server's zone: Python compares and adds times of one zone by their
        # wall clock, and is an hour wrong on the night of a clock change.
        options += " -c timezone=UTC"
        self._pool: ConnectionPool[psycopg.Connection[DictRow]] = ConnectionPool(
            settings.require_database().replace("postgresql+psycopg", "postgresql", 1),
            kwargs={
                "row_factory": dict_row,
                "options": options,
                # A transaction pooler hands the next statement to another server session.
                "prepare_threshold": None,
                "application_name": "outbox",
            },
            min_size=0,
            max_size=size,
            open=False,
            timeout=settings.statement_timeout_s,
            reconnect_timeout=settings.statement_timeout_s,
            check=_still_there,
            configure=_read_committed,
        )
        self._pool.open()

    @contextmanager
    def transaction(self, patience_s: float | None = None) -> Iterator[Transaction]:
        """A READ COMMITTED transaction: commits at the end, rolls back on an exception.

        Raises ``Unreachable`` when the database does not answer in its bounded time;
        ``patience_s`` is how long to wait for a connection where that is shorter.
        """
        try:
            with self._pool.connection(timeout=patience_s) as connection:
                yield Transaction(connection)
        except (PoolTimeout, PoolClosed) as error:
            raise Unreachable(f"the database does not answer: {error}") from error
        except psycopg.OperationalError as error:
            raise Unreachable(f"the database connection failed: {_reason(error)}") from error

    def close(self) -> None:
        """Drops the connections."""
        self._pool.close()


def _still_there(connection: psycopg.Connection[DictRow]) -> None:
    """Asks a connection that has rested whether the server is still there. One that was used a
    moment ago is not asked: that would be a round trip in each transaction of a busy drain."""
    now = time.monotonic()
    if now - _used_at.get(connection, 0.0) > _REST_S:
        ConnectionPool.check_connection(connection)
    _used_at[connection] = now


_REST_S = 1.0
_used_at: WeakKeyDictionary[psycopg.Connection[DictRow], float] = WeakKeyDictionary()


def _read_committed(connection: psycopg.Connection[DictRow]) -> None:
    # Whatever the database's default is: what a statement waited for, the next one must see.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def probe(settings: Settings, *, limit_s: int = 3) -> None:
    """Connects once and leaves, so that a database that refuses is known at once and not after a
    pool's patience. Raises ``Unreachable``."""
    url = settings.require_database().replace("postgresql+psycopg", "postgresql", 1)
    try:
        psycopg.connect(url, connect_timeout=limit_s, application_name="outbox").close()
    except psycopg.OperationalError as error:
        # Host, port, user and database; libpq never names the password.
        said = str(error).strip().splitlines()
        raise Unreachable(
            f"the database does not answer: {said[0] if said else type(error).__name__}"
        ) from error


def _reason(error: psycopg.Error) -> str:
    # The server's primary message; its detail can quote a row's values.
    return error.diag.message_primary or type(error).__name__

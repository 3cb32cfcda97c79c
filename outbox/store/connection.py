"""Our own sessions: a psycopg pool built in the process that uses it, with bounded time-outs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from outbox.errors import Unreachable
from outbox.settings import Settings

Params = Mapping[str, Any]

# A host that vanishes sends no word of it. The kernel is told to notice, where the address in the
# settings does not say otherwise; ``_Connection`` also ends where the kernel sees nothing amiss.
_SILENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Beyond the time after which the server gives a statement up, for its word to arrive.
_SLACK_S = 1.0
# How long a connection that has rested so long may take to say that it is still there.
_REST_S = 1.0
_CHECK_S = 1.0

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


class _Connection(psycopg.Connection[DictRow]):
    """Waits for each answer until the server must have given the statement up, or the caller must
    have an answer of its own (``give_up_at``), and is closed then: its pool replaces it."""

    limit_s = 0.0
    give_up_at = math.inf
    used_at = 0.0

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """What psycopg does between a question and its answer."""
        limit_s = min(self.limit_s, max(self.give_up_at - time.monotonic(), 0.0))
        try:
            return super().wait(gen, interval, limit_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()
            raise psycopg.errors.ConnectionTimeout(f"no answer within {limit_s:.1f} s") from None


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
        self._thread = threading.local()
        self._limit_s = settings.statement_timeout_s + _SLACK_S
        url = settings.require_database().replace("postgresql+psycopg", "postgresql", 1)
        self._pool: ConnectionPool[_Connection] = ConnectionPool(
            url,
            connection_class=_Connection,
            kwargs={
                **noticing(url),
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
            check=self._still_there,
            configure=self._configure,
        )
        self._pool.open()

    @contextmanager
    def transaction(self, patience_s: float | None = None) -> Iterator[Transaction]:
        """A READ COMMITTED transaction: commits at the end, rolls back on an exception.

        Raises ``Unreachable`` when the database does not answer in its bounded time, for a
        connection and for each statement; ``patience_s`` bounds the whole transaction.
        """
        give_up_at = math.inf if patience_s is None else time.monotonic() + patience_s
        self._thread.give_up_at = give_up_at
        try:
            with self._pool.connection(timeout=patience_s) as connection:
                connection.give_up_at = give_up_at
                yield Transaction(connection)
        except (PoolTimeout, PoolClosed) as error:
            raise Unreachable(f"the database does not answer: {error}") from error
        except psycopg.OperationalError as error:
            raise Unreachable(f"the database connection failed: {_reason(error)}") from error

    def close(self) -> None:
        """Drops the connections."""
        self._pool.close()

    def _configure(self, connection: _Connection) -> None:
        connection.limit_s = self._limit_s
        # Whatever the database's default is: what a statement waited for, the next one must see.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    def _still_there(self, connection: _Connection) -> None:
        """Asks a connection that has rested whether the server is still there. One that was used a
        moment ago is not asked: that would be a round trip in each transaction of a busy drain."""
        now = time.monotonic()
        if now - connection.used_at > _REST_S:
            connection.give_up_at = min(now + _CHECK_S, self._thread.give_up_at)
            ConnectionPool.check_connection(connection)
        connection.used_at = now


def noticing(url: str) -> dict[str, int]:
    """The connection options by which a host that vanished is noticed, but for those that the
    address itself gives."""
    said = conninfo_to_dict(url.replace("postgresql+psycopg", "postgresql", 1))
    return {name: value for name, value in _SILENCE.items() if name not in said}


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

"""Our own sessions: a psycopg pool built in the process that uses it, with bounded time-outs."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

import psycopg
from psycopg import generators
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from outbox.codec import PLAIN, Codec
from outbox.errors import Busy, ReadOnly, Unreachable
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
# back-fill and the fan-out. This is the advisory lock by which it excludes those of release 0.1,
# which share it; any login can take it, so nothing but a registration waits for it.
CONSUMERS_LOCK = 0x6F757462


# What a statement that the session has prepared can meet: another session answers to the same
# connection, or a migration changed what it gives. A new connection prepares it anew.
_NOT_PREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)
# A statement is prepared when it comes so often, where the session is ours alone.
_PREPARE_AFTER = 2
# The connection is sound, and the next transaction may pass.
_BUSY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.DeadlockDetected,
)


class Odd(Exception):
    """A part of a transaction failed by what it found; named by the class of the error alone, whose
    message may quote a row."""


class Transaction:
    """One short transaction. Rows are dictionaries. ``codec`` is how personal data is kept."""

    def __init__(self, connection: psycopg.Connection[DictRow], codec: Codec = PLAIN) -> None:
        self.connection = connection
        self.codec = codec

    def all(self, sql: LiteralString, params: Params | None = None) -> list[dict[str, Any]]:
        """Every row of a statement."""
        return self.connection.execute(sql, params).fetchall()

    def one(self, sql: LiteralString, params: Params | None = None) -> dict[str, Any] | None:
        """The first row of a statement, or None."""
        return self.connection.execute(sql, params).fetchone()

    def run(self, sql: LiteralString, params: Params | None = None) -> int:
        """Runs a statement and returns how many rows it touched."""
        return self.connection.execute(sql, params).rowcount

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A part that may fail by itself: what it wrote is taken back, and the transaction goes on.
        Raises ``Odd``; an error of the connection or of a wait as it is, for it is not the part's.
        """
        try:
            with self.connection.transaction():
                yield
        except psycopg.OperationalError:
            raise
        except Exception as error:
            raise Odd(type(error).__name__) from error

    def hurry(self, lock_s: float) -> None:
        """From here on a lock is waited for so long at the most; then ``Busy``."""
        self.run(
            "SELECT set_config('lock_timeout', %(ms)s::text, true)", {"ms": int(lock_s * 1000)}
        )


class _Connection(psycopg.Connection[DictRow]):
    """Waits for each answer until the server must have given the statement up, or the caller must
    have an answer of its own (``give_up_at``), and is closed then: its pool replaces it."""

    limit_s = 0.0
    give_up_at = math.inf
    used_at = 0.0
    is_ours_alone = False

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """What psycopg does between a question and its answer."""
        limit_s = min(self.limit_s, max(self.give_up_at - time.monotonic(), 0.0))
        try:
            return super().wait(gen, interval, limit_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()
            raise psycopg.errors.ConnectionTimeout(f"no answer within {limit_s:.1f} s") from None

    def cut(self) -> None:
        """Ends the wait of another thread for the server."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


class Store:
    """The ledger's own connections. Build it after a fork, never before one."""

    def __init__(self, settings: Settings, *, size: int = 4) -> None:
        self.settings = settings
        self.codec = settings.codec
        self._settings_of_ours = _settings_of_ours(settings)
        self._is_pooled = False
        self._thread = threading.local()
        self._using: dict[object, _Connection] = {}
        self.is_cut = False
        self._limit_s = settings.statement_timeout_s + _SLACK_S
        url = settings.require_database().replace("postgresql+psycopg", "postgresql", 1)
        self._pool: ConnectionPool[_Connection] = ConnectionPool(
            url,
            connection_class=_Connection,
            kwargs={
                **connect_args(url),
                "row_factory": dict_row,
                "application_name": "outbox",
                # Each transaction is begun by a statement of our own.
                "autocommit": True,
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
    def transaction(
        self, patience_s: float | None = None, *, planned_once: bool = False
    ) -> Iterator[Transaction]:
        """A READ COMMITTED transaction: commits at the end, rolls back on an exception.
        ``planned_once``: one plan is as good as any for its statements, whatever their parameters;
        it is kept where the session is ours alone.

        Raises ``Unreachable`` when the database does not answer in its bounded time, for a
        connection and for each statement (``Busy`` where it is this transaction alone that could
        not go on); ``patience_s`` bounds the whole transaction. Raises
        ``ReadOnly`` on a standby, and where the database's settings allow no writes.
        """
        give_up_at = math.inf if patience_s is None else time.monotonic() + patience_s
        self._thread.give_up_at = give_up_at
        this = object()
        try:
            with self._pool.connection(timeout=patience_s) as connection:
                self._using[this] = connection
                if self.is_cut:
                    raise PoolClosed("this process ends")
                connection.give_up_at = give_up_at
                try:
                    self._open(connection, planned_once)
                    yield Transaction(connection, self.codec)
                except _NOT_PREPARED as error:
                    if not self._prepare_anew(connection, error):
                        raise
                    raise Unreachable(f"it prepared another statement: {_reason(error)}") from error
        except (PoolTimeout, PoolClosed) as error:
            raise Unreachable(f"the database does not answer: {error}") from error
        except _BUSY as error:
            raise Busy(f"the database is busy: {_reason(error)}") from error
        except psycopg.OperationalError as error:
            raise Unreachable(f"the database connection failed: {_reason(error)}") from error
        finally:
            self._using.pop(this, None)

    def cut(self) -> None:
        """Ends every wait for the database at once, in whichever thread, and lets none begin: all
        is ``Unreachable`` from here on. For a process that must end though the database hangs."""
        self.is_cut = True
        self._pool.close(timeout=0)
        for connection in list(self._using.values()):
            connection.cut()

    def close(self) -> None:
        """Drops the connections."""
        self._pool.close()

    def _configure(self, connection: _Connection) -> None:
        connection.limit_s = self._limit_s
        if self._is_pooled or not _is_direct(connection):
            return
        _ask(connection, "; ".join(f"SET {each}" for each in self._settings_of_ours))
        connection.prepare_threshold = _PREPARE_AFTER
        connection.is_ours_alone = True

    def _prepare_anew(self, connection: _Connection, error: psycopg.Error) -> bool:
        """Whether this error comes of preparing: another connection prepares its own then. Where
        the server does not know what was prepared, somebody stands between after all, and nothing
        is prepared any more."""
        changed = isinstance(error, psycopg.errors.FeatureNotSupported)
        if not connection.is_ours_alone or (changed and "cached plan" not in _reason(error)):
            return False
        self._is_pooled = self._is_pooled or not changed
        connection.close()
        return True

    def _open(self, connection: _Connection, planned_once: bool) -> None:
        if connection.is_ours_alone:
            begin = _BEGIN_PLANNED_ONCE if planned_once else _BEGIN
        else:
            own = (f"SET LOCAL {each}" for each in self._settings_of_ours)
            begin = "; ".join((_BEGINS, *own, _MAY_WRITE))
        if _ask(connection, begin) != b"on":
            return
        asked = connection.execute("SELECT pg_is_in_recovery() AS standby").fetchone()
        # The same name may lead to the primary by now.
        connection.close()
        raise ReadOnly(
            "the database is a standby: DATABASE_URL must name the primary"
            if asked and asked["standby"]
            else "the database takes no writes: default_transaction_read_only is on for it or for "
            "the role of DATABASE_URL"
        )

    def _still_there(self, connection: _Connection) -> None:
        """Asks a connection that has rested whether the server is still there. One that was used a
        moment ago is not asked: that would be a round trip in each transaction of a busy drain."""
        now = time.monotonic()
        if now - connection.used_at > _REST_S:
            connection.give_up_at = min(now + _CHECK_S, self._thread.give_up_at)
            ConnectionPool.check_connection(connection)
        connection.used_at = now


# Whatever the database's default: what a statement waited for, the next one must see.
_BEGINS = "BEGIN ISOLATION LEVEL READ COMMITTED"
_MAY_WRITE = "SHOW transaction_read_only"
_BEGIN = f"{_BEGINS}; {_MAY_WRITE}"
_BEGIN_PLANNED_ONCE = f"{_BEGINS}; SET LOCAL plan_cache_mode = force_generic_plan; {_MAY_WRITE}"


def _settings_of_ours(settings: Settings) -> tuple[str, ...]:
    """What holds in each of our transactions, as ``SET`` takes it.

    For the session where it is ours alone, else for each transaction: a pooler hands each to any
    server session, refuses start-up options it does not know, and would lend our settings to
    others.
    """
    timeouts = {
        "statement_timeout": settings.statement_timeout_s,
        "lock_timeout": settings.lock_timeout_s,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout_s,
    }
    return (
        *(f"{name} = {int(value * 1000)}" for name, value in timeouts.items()),
        # In UTC, whatever the server's zone: Python compares and adds times of one zone by their
        # wall clock, and is an hour wrong on the night of a clock change.
        "timezone = 'UTC'",
        # The one style that psycopg reads.
        "datestyle = 'ISO'",
    )


def _ask(connection: _Connection, statements: str) -> bytes | None:
    """Statements in one round trip; the first value of the last one. Without a cursor, which would
    cost more than the server does."""
    connection.pgconn.send_query(statements.encode())
    *_, last = connection.wait(generators.execute(connection.pgconn))
    if last.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(last)
    return last.get_value(0, 0) if last.status == ExecStatus.TUPLES_OK else None


def _is_direct(connection: _Connection) -> bool:
    """Whether the server's session is this connection's own: a pooler answers for sessions that it
    lends out, under a process id that is none of them."""
    return _ask(connection, "SELECT pg_backend_pid()") == str(connection.info.backend_pid).encode()


def connect_args(url: str) -> dict[str, int | None]:
    """How our own sessions connect: no statement is prepared before it is known whose the session
    is, and a host that vanished is noticed, but for what the address itself says of that."""
    said = conninfo_to_dict(url.replace("postgresql+psycopg", "postgresql", 1))
    # A transaction pooler hands the next statement to another server session.
    return {"prepare_threshold": None} | {n: v for n, v in _SILENCE.items() if n not in said}


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

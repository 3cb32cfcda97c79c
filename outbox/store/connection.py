"""Our own sessions: a psycopg pool built in the process that uses it, with bounded time-outs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from outbox.codec import PLAIN, Codec
from outbox.errors import Busy, ReadOnly, Unreachable
from outbox.settings import Settings
from outbox.store.session import (
    BEGIN,
    BEGIN_PLANNED_ONCE,
    BEGINS,
    MAY_WRITE,
    Session,
    ask,
    connect_args,
    is_direct,
    settings_of_ours,
)

Params = Mapping[str, Any]

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
    """One short transaction. Rows are dictionaries. ``codec`` is how personal data is kept.
    ``prepare``: whether its statements are prepared at once (None: those that come often)."""

    def __init__(
        self,
        connection: psycopg.Connection[DictRow],
        codec: Codec = PLAIN,
        *,
        prepare: bool | None = None,
    ) -> None:
        self.connection = connection
        self.codec = codec
        self.prepare = prepare

    def all(self, sql: LiteralString, params: Params | None = None) -> list[dict[str, Any]]:
        """Every row of a statement."""
        return self.connection.execute(sql, params, prepare=self.prepare).fetchall()

    def one(self, sql: LiteralString, params: Params | None = None) -> dict[str, Any] | None:
        """The first row of a statement, or None."""
        return self.connection.execute(sql, params, prepare=self.prepare).fetchone()

    def run(self, sql: LiteralString, params: Params | None = None) -> int:
        """Runs a statement and returns how many rows it touched."""
        return self.connection.execute(sql, params, prepare=self.prepare).rowcount

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


class Store:
    """The ledger's own connections. Build it after a fork, never before one."""

    def __init__(self, settings: Settings, *, size: int = 4) -> None:
        self.settings = settings
        self.codec = settings.codec
        self._settings_of_ours = settings_of_ours(settings)
        self._is_pooled = False
        self._thread = threading.local()
        self._using: dict[object, Session] = {}
        self.is_cut = False
        self._limit_s = settings.statement_timeout_s + _SLACK_S
        url = settings.require_database().replace("postgresql+psycopg", "postgresql", 1)
        self._pool: ConnectionPool[Session] = ConnectionPool(
            url,
            connection_class=Session,
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
        try:
            self._pool.open()
        except RuntimeError as error:
            # Its threads are refused by the host, for now.
            self._pool.close(timeout=0)
            raise Unreachable("no thread for the database's connections") from error

    @contextmanager
    def glance(self) -> Iterator[Transaction]:
        """One statement that only reads and comes often: the server begins and ends its transaction
        by itself where the session is ours alone. Raises as ``transaction`` does."""
        with self._session(None, "") as tx:
            yield tx

    @contextmanager
    def transaction(
        self, patience_s: float | None = None, *, planned_once: bool = False
    ) -> Iterator[Transaction]:
        """A READ COMMITTED transaction: commits at the end, rolls back on an exception.
        ``planned_once``: its statements come often, and one plan is as good as any for them,
        whatever their parameters; it is kept where the session is ours alone.

        Raises ``Unreachable`` when the database does not answer in its bounded time, for a
        connection and for each statement (``Busy`` where it is this transaction alone that could
        not go on); ``patience_s`` bounds the whole transaction. Raises
        ``ReadOnly`` on a standby, and where the database's settings allow no writes.
        """
        begin = BEGIN_PLANNED_ONCE if planned_once else BEGIN
        with self._session(patience_s, begin) as tx:
            yield tx

    @contextmanager
    def _session(self, patience_s: float | None, begin: str) -> Iterator[Transaction]:
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
                    self._open(connection, begin)
                    at_once = connection.is_ours_alone and begin != BEGIN
                    yield Transaction(connection, self.codec, prepare=at_once or None)
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

    def _configure(self, connection: Session) -> None:
        connection.limit_s = self._limit_s
        if self._is_pooled or not is_direct(connection):
            return
        ask(connection, "; ".join(f"SET {each}" for each in self._settings_of_ours))
        connection.prepare_threshold = _PREPARE_AFTER
        connection.is_ours_alone = True

    def _prepare_anew(self, connection: Session, error: psycopg.Error) -> bool:
        """Whether this error comes of preparing: another connection prepares its own then. Where
        the server does not know what was prepared, somebody stands between after all, and nothing
        is prepared any more."""
        changed = isinstance(error, psycopg.errors.FeatureNotSupported)
        if not connection.is_ours_alone or (changed and "cached plan" not in _reason(error)):
            return False
        self._is_pooled = self._is_pooled or not changed
        connection.close()
        return True

    def _open(self, connection: Session, begin: str) -> None:
        """``begin`` is what begins it where the session is ours alone."""
        if not connection.is_ours_alone:
            own = (f"SET LOCAL {each}" for each in self._settings_of_ours)
            begin = "; ".join((BEGINS, *own, MAY_WRITE))
        if not begin or ask(connection, begin) != b"on":
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

    def _still_there(self, connection: Session) -> None:
        """Asks a connection that has rested whether the server is still there. One that was used a
        moment ago is not asked: that would be a round trip in each transaction of a busy drain."""
        now = time.monotonic()
        if now - connection.used_at > _REST_S:
            connection.give_up_at = min(now + _CHECK_S, self._thread.give_up_at)
            ConnectionPool.check_connection(connection)
        connection.used_at = now


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

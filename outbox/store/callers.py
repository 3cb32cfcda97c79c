"""The caller's own connection, of whatever kind: statements run on it, in its transaction,
and what goes wrong is told without the values of a row."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import RowMaker
from sqlalchemy import String, TextClause, TypeDecorator, text
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outbox.errors import Invalid, OutboxError, ReadOnly, RetryTransaction

Params = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Steps = Generator[tuple[str, Mapping[str, Any]], Rows, Any]

_PARAM = re.compile(r"%\((\w+)\)s")
# A serialization failure and a deadlock: the same transaction may well pass the next time.
_REPEAT = ("40001", "40P01")
_READ_ONLY = "25006"
_PERSONAL = frozenset({"args", "request", "drafts"})
_SCOPED = (scoped_session, async_scoped_session)
_OF_PSYCOPG = (psycopg.Connection, psycopg.AsyncConnection)
# A driver keeps what it made of a statement by the statement's own object.
_encoded = lru_cache(str.encode)


def unscoped(caller: Any) -> Any:
    """The session behind a registry that keeps one for each thread or task."""
    return caller() if isinstance(caller, _SCOPED) else caller


def session_of(caller: Any) -> Session | None:
    """The session that the caller's transaction is of; None for a bare connection."""
    if isinstance(caller, psycopg.Connection):
        return None
    session = unscoped(caller)
    if isinstance(session, AsyncSession):
        session = session.sync_session
    return session if isinstance(session, Session) else None


def require_transaction(caller: Any) -> None:
    """Refuses a connection on which what a statement does is committed at once."""
    driver = _driver(unscoped(caller))
    if driver is None or not driver.autocommit:
        return
    if driver.info.transaction_status == TransactionStatus.IDLE:
        raise Invalid("session", "is in autocommit and has no transaction open: begin one first")


def _driver(caller: Any) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None:
    """The driver's open connection under the caller's, where it is psycopg's."""
    if isinstance(caller, Session):
        caller = caller.connection()
    if isinstance(caller, Connection):
        caller = caller.connection.driver_connection
    return caller if isinstance(caller, _OF_PSYCOPG) and not caller.closed else None


def _check_driver(caller: Any) -> None:
    """Refuses a connection that would not answer each statement with its rows as text."""
    driver = _driver(caller)
    if driver is None:
        return
    # Of libpq itself: `driver.info` would make an object of its own for each of the two.
    if driver.pgconn.pipeline_status != PipelineStatus.OFF:
        raise Invalid("session", "is in pipeline mode; leave the pipeline first")
    encoding = driver.pgconn.parameter_status(b"client_encoding")
    if encoding != b"UTF8":
        said = encoding.decode() if encoding is not None else None
        raise Invalid("session", f"its client_encoding is {said}; it must be UTF8")


class Unshown(str):
    """Personal text on its way through SQLAlchemy, which logs parameters and rows by ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(not shown)'"


class _Unshown(TypeDecorator[str]):
    """The type of a column whose values come back unshown."""

    impl = String
    cache_ok = True

    def process_result_value(
        self,
        value: str | None,
        dialect: Dialect,  # noqa: ARG002 - the signature is SQLAlchemy's
    ) -> str | None:
        return None if value is None else Unshown(value)


@lru_cache
def _statement(sql: str, *, shows_args: bool) -> TextClause | Any:
    """As SQLAlchemy takes it: read once, and compiled once."""
    statement = text(_PARAM.sub(r":\1", sql))
    return statement.columns(args=_Unshown()) if shows_args else statement


def _unshown(sql: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Statement and parameters as SQLAlchemy takes them."""
    given = dict(params)
    for name in _PERSONAL & given.keys():
        given[name] = Unshown(given[name])
    return _statement(sql, shows_args="args" in given), given


def run(steps: Steps, caller: Any) -> Any:
    """Runs steps on the caller's own connection, inside the caller's own transaction."""
    execute = _executor(unscoped(caller))
    try:
        statement = next(steps)
        while True:
            statement = steps.send(execute(*statement))
    except StopIteration as done:
        return done.value


def _executor(caller: Any) -> Any:
    # A session's is the same for all of them: they are in one transaction.
    connection = caller.connection() if isinstance(caller, Session) else caller
    _check_driver(connection)
    if isinstance(connection, psycopg.Connection):
        return partial(_by_psycopg, connection)
    if isinstance(connection, Connection):
        return partial(_by_sqlalchemy, connection)
    raise Invalid(
        "session",
        f"is a {type(caller).__name__}; a SQLAlchemy Session or Connection or a psycopg 3 "
        "Connection is expected (their async forms go to aenqueue)",
    )


def _by_psycopg(caller: psycopg.Connection[Any], sql: str, params: Mapping[str, Any]) -> Rows:
    try:
        # Of the plain class: the caller's own cursors and rows may be of any shape.
        with psycopg.Cursor(caller, row_factory=_named) as cursor:
            cursor.execute(_encoded(sql), params)
            return cursor.fetchall() if _has_rows(cursor) else []
    except psycopg.Error as error:
        raise _told(error) from None


def _named(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> RowMaker[dict[str, Any]]:
    """Rows by the names of their columns, which are known to be in UTF8."""
    result = cursor.pgresult
    names = [(result.fname(n) or b"").decode() for n in range(result.nfields)] if result else []
    return lambda values: dict(zip(names, values, strict=True))


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    # `description` would describe each column for nobody.
    return cursor.rownumber is not None


def _by_sqlalchemy(connection: Connection, sql: str, params: Mapping[str, Any]) -> Rows:
    try:
        result = connection.execute(*_unshown(sql, params))
    except DBAPIError as error:
        told = _told(error.orig)
        if isinstance(told, OutboxError):
            raise told from None
        lost = error.connection_invalidated
        raise type(error)(error.statement, None, told, connection_invalidated=lost) from None
    return [dict(row) for row in result.mappings()] if result.returns_rows else []


def _told(error: BaseException | None) -> Exception:
    """A driver's error as the caller gets it: of the same type, without the values of the row that
    the server's detail quotes."""
    state = getattr(error, "sqlstate", getattr(error, "pgcode", None))
    if state in _REPEAT:
        return retry()
    if state == _READ_ONLY:
        return ReadOnly(
            "this session takes no writes, because it is on a standby or read-only by its "
            "settings: nothing was recorded; use the primary"
        )
    if not isinstance(error, psycopg.Error):
        return Exception(type(error).__name__)
    bare = type(error)(error.diag.message_primary or str(error))
    bare.sqlstate = error.sqlstate
    return bare


def retry() -> RetryTransaction:
    """The error for what the same transaction will see when it is repeated."""
    return RetryTransaction(
        "a concurrent transaction wrote the same rows; roll back and repeat your transaction, "
        "which then sees them"
    )


async def arun(steps: Steps, caller: Any) -> Any:
    """The same on an AsyncSession, an AsyncConnection or a psycopg AsyncConnection."""
    caller = unscoped(caller)
    if isinstance(caller, AsyncSession | AsyncConnection):
        return await caller.run_sync(lambda sync: run(steps, sync))
    if not isinstance(caller, psycopg.AsyncConnection):
        raise Invalid("session", f"is a {type(caller).__name__}; an async session is expected")
    _check_driver(caller)
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await _by_async_psycopg(caller, *statement))
    except StopIteration as done:
        return done.value


async def _by_async_psycopg(
    caller: psycopg.AsyncConnection[Any], sql: str, params: Mapping[str, Any]
) -> Rows:
    try:
        async with psycopg.AsyncCursor(caller, row_factory=_named) as cursor:
            await cursor.execute(_encoded(sql), params)
            return await cursor.fetchall() if _has_rows(cursor) else []
    except psycopg.Error as error:
        raise _told(error) from None

"""Enqueue's SQL, written once for every kind of connection: it yields statements and is sent rows.

One INSERT when the intent is new; nothing else runs on the common path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import String, TypeDecorator, text
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outbox.errors import (
    Denied,
    Invalid,
    KeyTaken,
    NotFound,
    OutboxError,
    ReadOnly,
    RetryTransaction,
)
from outbox.intent import Draft
from outbox.store.enqueueing_sql import (
    FIND,
    NOTE,
    OVER,
    SUPERSEDED,
    TOLD,
    TURN,
    insert_sql,
)

Params = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Steps = Generator[tuple[str, Mapping[str, Any]], Rows, Any]

_TRIES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sought(draft: Draft) -> dict[str, Any]:
    """The draft as ``FIND`` looks for it."""
    return {
        **draft.columns,
        "keys": [one.key for one in draft.ever],
        "fingerprints": [one.fingerprint for one in draft.ever],
    }


def insert_or_find(draft: Draft, is_committed: Callable[[Params], bool]) -> Steps:
    """Steps of one enqueue; returns (row, deduplicated), or (None, False) for a stale epoch.
    ``is_committed`` looks for the draft outside the caller's transaction, by ``FIND``."""
    seek = sought(draft)
    if len(draft.ever) > 1:
        rows = yield TURN, {"turn": _turn(draft)}
        # A snapshot may hide what is recorded under another version, and no index would tell.
        if rows[0]["isolation"] != "read committed" and is_committed(seek):
            rows = yield FIND, seek
            if not rows:
                raise retry()
    # Again where the row that stood in the way stopped doing so between the two statements: a
    # guarded twin whose outcome was told just then.
    for _ in range(_TRIES):
        if len(draft.ever) > 1 or draft.columns["supersedes"] is not None:
            # What is recorded stays so, also where it could not be recorded now.
            rows = yield FIND, seek
            if rows:
                return _found(rows[0], draft), True
        if draft.columns["supersedes"] is not None:
            yield from _check_superseded(draft)
        rows = yield insert_sql(draft.columns), draft.columns
        if rows:
            return _timed(rows[0]), False
        rows = yield FIND, seek
        if rows:
            return _found(rows[0], draft), True
        over = yield OVER, draft.columns
        if over:
            return None, False
    if is_committed(seek):
        raise retry()
    # What stands in the way, again and again, is nothing that this login may see.
    raise KeyTaken(str(draft.id))


def lock_order(draft: Draft) -> tuple[str, ...]:
    """One order of whatever two transactions could wait for: a key, or (across epochs) a twin. The
    same for processes that record under different fingerprint versions."""
    oldest = draft.ever[0]
    if draft.tool.once_per != "epoch":
        return (oldest.key.hex(),)
    scope = draft.scope
    return (
        scope.tenant,
        scope.account,
        scope.run_id,
        oldest.fingerprint.hex(),
        oldest.key.hex(),
    )


def _turn(draft: Draft) -> str:
    order = lock_order(draft)
    return json.dumps(order[:-1] if draft.tool.once_per == "epoch" else order)


def moment(microseconds: int) -> datetime:
    """The time, in UTC, that a statement gave in microseconds of the epoch."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _found(row: Mapping[str, Any], draft: Draft) -> Mapping[str, Any]:
    """The row that is there. A unique index asks nobody whose a key is: what somebody else wrote
    under it is no answer to this draft. Raises ``KeyTaken``."""
    place = (row["tenant"], row["vendor"], row["account"])
    prints = {one.fingerprint.hex() for one in draft.ever}
    ours = (draft.scope.tenant, draft.tool.vendor, draft.scope.account)
    if place != ours or row["fingerprint"] not in prints:
        raise KeyTaken(str(draft.id))
    return _timed(row)


def _timed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "created_at": moment(row["created_at"])}


def _check_superseded(draft: Draft) -> Steps:
    of = {"id": draft.columns["supersedes"], "tenant": draft.scope.tenant}
    rows = yield SUPERSEDED, of
    if not rows:
        raise NotFound("supersedes", f"tenant has no intent {of['id']}")
    row = rows[0]
    if row["status"] not in ("failed_poison", "cancelled"):
        raise Denied("not_superseded", f"supersedes: that intent is {row['status']}, not refused")
    if row["contradicted_at"] is not None:
        raise Denied(
            "contradicted", "supersedes: a person must rule first whether that intent landed"
        )
    if row["successor"] is not None and str(row["successor"]) != str(draft.id):
        raise Denied("superseded_twice", "supersedes: that intent has a successor already")
    return None


def tell(row: Mapping[str, Any]) -> Steps:
    """Records that the settled outcome of a row has been returned to its run; frees the twin
    guard."""
    yield TOLD, {"id": str(row["id"]), "version": row["version"]}
    return None


def note(intent_id: UUID, reason: str) -> Steps:
    """Keeps what a second enqueue said differently (names of fields, never their values)."""
    yield NOTE, {"id": str(intent_id), "reason": reason}
    return None


# -- drivers ---------------------------------------------------------------------------------

_PARAM = re.compile(r"%\((\w+)\)s")
# A serialization failure and a deadlock: the same transaction may well pass the next time.
_REPEAT = ("40001", "40P01")
_READ_ONLY = "25006"


def unscoped(caller: Any) -> Any:
    """The session behind a registry that keeps one for each thread or task."""
    return caller() if isinstance(caller, scoped_session | async_scoped_session) else caller


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
    if not isinstance(caller, psycopg.Connection | psycopg.AsyncConnection) or caller.closed:
        return None
    return caller


def _check_driver(caller: Any) -> None:
    """Refuses a connection that would not answer each statement with its rows as text."""
    driver = _driver(caller)
    if driver is None:
        return
    if driver.info.pipeline_status != PipelineStatus.OFF:
        raise Invalid("session", "is in pipeline mode; leave the pipeline first")
    encoding = driver.info.parameter_status("client_encoding")
    if encoding != "UTF8":
        raise Invalid("session", f"its client_encoding is {encoding}; it must be UTF8")


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


def _unshown(sql: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Statement and parameters as SQLAlchemy takes them."""
    statement, given = text(_PARAM.sub(r":\1", sql)), dict(params)
    if "args" not in given:
        return statement, given
    for name in ("args", "request"):
        given[name] = Unshown(given[name])
    return statement.columns(args=_Unshown()), given


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
    _check_driver(caller)
    if isinstance(caller, psycopg.Connection):

        def by_psycopg(sql: str, params: Mapping[str, Any]) -> Rows:
            try:
                # Of the plain class: the caller's own cursors and rows may be of any shape.
                with psycopg.Cursor(caller, row_factory=dict_row) as cursor:
                    cursor.execute(sql.encode(), params)
                    return cursor.fetchall() if cursor.description is not None else []
            except psycopg.Error as error:
                raise _told(error) from None

        return by_psycopg
    if isinstance(caller, Session):
        return lambda sql, params: _by_sqlalchemy(caller.connection(), sql, params)
    if isinstance(caller, Connection):
        return lambda sql, params: _by_sqlalchemy(caller, sql, params)
    raise Invalid(
        "session",
        f"is a {type(caller).__name__}; a SQLAlchemy Session or Connection or a psycopg 3 "
        "Connection is expected (their async forms go to aenqueue)",
    )


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
        async with psycopg.AsyncCursor(caller, row_factory=dict_row) as cursor:
            await cursor.execute(sql.encode(), params)
            return await cursor.fetchall() if cursor.description is not None else []
    except psycopg.Error as error:
        raise _told(error) from None

"""Enqueue's SQL, written once for every kind of connection: it yields statements and is sent rows.

One INSERT when the intent is new; nothing else runs on the common path.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from outbox.errors import Denied, Invalid, NotFound, RetryTransaction
from outbox.intent import Draft

Rows = Sequence[Mapping[str, Any]]
Steps = Generator[tuple[str, Mapping[str, Any]], Rows, Any]

_CASTS = {
    "id": "uuid",
    "supersedes": "uuid",
    "key": "bytea",
    "fingerprint": "bytea",
    "request_sha256": "bytea",
    "fingerprint_version": "smallint",
    "occurrence": "integer",
    "amount_minor": "bigint",
    "ttl_s": "double precision",
    "resend_when_absent": "boolean",
}

# What is told of a row, and what a second enqueue compares.
_SEEN = (
    "id, status, doubt, version, guard, args, epoch, created_at, contradicted_at, business_status, "
    "receipt_id, failure_code, told_at, settled_at, note, run_id, tool, identity"
)


def insert_sql(columns: Mapping[str, Any]) -> str:
    """The one INSERT. It does nothing where the key or the guarded twin exists, and inserts
    nothing for an epoch that is over: once a run has a current one, only that may start writes,
    for an earlier turn need not have been announced."""
    names = ", ".join(columns)
    values = ", ".join(f"CAST(%({n})s AS {_CASTS.get(n, 'text')})" for n in columns)
    return (
        f"INSERT INTO outbox.intents ({names}, due_at, ttl_at, escalate_at, created_at) "
        f"SELECT {values}, c.now, c.now + c.ttl, c.now + c.ttl, c.now "
        "FROM (SELECT outbox.clock() AS now, "
        "CAST(%(ttl_s)s AS double precision) * INTERVAL '1 second' AS ttl) c "
        "WHERE NOT EXISTS (SELECT FROM outbox.epochs e WHERE e.tenant = CAST(%(tenant)s AS text) "
        "AND e.run_id = CAST(%(run_id)s AS text) AND e.ended_at IS NULL "
        "AND e.epoch <> CAST(%(epoch)s AS text) AND CAST(%(epoch)s AS text) <> '') "
        f"ON CONFLICT DO NOTHING RETURNING {_SEEN}, CAST(pg_current_xact_id() AS text) AS xid"
    )


_FIND = (
    f"SELECT {_SEEN}, 0 AS rank FROM outbox.intents WHERE key = CAST(%(key)s AS bytea) "
    f"UNION ALL SELECT {_SEEN}, 1 AS rank FROM outbox.intents "
    "WHERE tenant = CAST(%(tenant)s AS text) AND vendor = CAST(%(vendor)s AS text) "
    "AND account = CAST(%(account)s AS text) AND run_id = CAST(%(run_id)s AS text) "
    "AND tool = CAST(%(tool)s AS text) AND fingerprint = CAST(%(fingerprint)s AS bytea) "
    "AND told_at IS NULL AND occurrence = 0 AND supersedes IS NULL "
    "AND CAST(%(occurrence)s AS integer) = 0 AND CAST(%(supersedes)s AS text) IS NULL "
    "ORDER BY rank LIMIT 1"
)

_OVER = (
    "SELECT epoch FROM outbox.epochs WHERE tenant = CAST(%(tenant)s AS text) "
    "AND run_id = CAST(%(run_id)s AS text) AND ended_at IS NULL "
    "AND epoch <> CAST(%(epoch)s AS text) AND CAST(%(epoch)s AS text) <> ''"
)
_TRIES = 5

_TOLD = (
    "UPDATE outbox.intents SET told_at = outbox.clock() WHERE id = CAST(%(id)s AS uuid) "
    "AND told_at IS NULL AND settled_at IS NOT NULL AND contradicted_at IS NULL"
)

_NOTE = (
    "INSERT INTO outbox.events (intent_id, at, actor, kind, reason, detail) "
    "VALUES (CAST(%(id)s AS uuid), outbox.clock(), 'agent', 'enqueue_noted', "
    "CAST(%(reason)s AS text), '{}')"
)

_SUPERSEDED = (
    "SELECT i.status, i.contradicted_at, "
    "(SELECT s.id FROM outbox.intents s WHERE s.supersedes = i.id) AS successor "
    "FROM outbox.intents i WHERE i.id = CAST(%(id)s AS uuid) "
    # Held until the caller commits: evidence that it landed after all must not slip between.
    "AND i.tenant = CAST(%(tenant)s AS text) FOR SHARE OF i"
)


def insert_or_find(draft: Draft) -> Steps:
    """Steps of one enqueue; returns (row, deduplicated), or (None, False) for a stale epoch."""
    # Again where the row that stood in the way stopped doing so between the two statements: a
    # guarded twin whose outcome was told just then.
    for _ in range(_TRIES):
        if draft.columns["supersedes"] is not None:
            yield from _check_superseded(draft)
        rows = yield insert_sql(draft.columns), draft.columns
        if rows:
            return rows[0], False
        rows = yield _FIND, draft.columns
        if rows:
            return rows[0], True
        over = yield _OVER, draft.columns
        if over:
            return None, False
    raise _retry()


def _check_superseded(draft: Draft) -> Steps:
    of = {"id": draft.columns["supersedes"], "tenant": draft.scope.tenant}
    rows = yield _SUPERSEDED, of
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


def tell(intent_id: UUID) -> Steps:
    """Records that a settled outcome has been returned to its run; frees the twin guard."""
    yield _TOLD, {"id": str(intent_id)}
    return None


def note(intent_id: UUID, reason: str) -> Steps:
    """Keeps what a second enqueue said differently (names of fields, never their values)."""
    yield _NOTE, {"id": str(intent_id), "reason": reason}
    return None


# -- drivers ---------------------------------------------------------------------------------

_PARAM = re.compile(r"%\((\w+)\)s")
# A serialization failure and a deadlock: the same transaction may well pass the next time.
_REPEAT = ("40001", "40P01")


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


def _as_text(sql: str) -> Any:
    return text(_PARAM.sub(r":\1", sql))


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
        result = connection.execute(_as_text(sql), dict(params))
    except DBAPIError as error:
        told = _told(error.orig)
        if isinstance(told, RetryTransaction):
            raise told from None
        lost = error.connection_invalidated
        raise type(error)(error.statement, None, told, connection_invalidated=lost) from None
    return [dict(row) for row in result.mappings()] if result.returns_rows else []


def _told(error: BaseException | None) -> Exception:
    """A driver's error as the caller gets it: of the same type, without the values of the row that
    the server's detail quotes."""
    if getattr(error, "sqlstate", getattr(error, "pgcode", None)) in _REPEAT:
        return _retry()
    if not isinstance(error, psycopg.Error):
        return Exception(type(error).__name__)
    bare = type(error)(error.diag.message_primary or str(error))
    bare.sqlstate = error.sqlstate
    return bare


def _retry() -> RetryTransaction:
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

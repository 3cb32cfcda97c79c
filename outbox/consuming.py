"""The consumer's loop body: a result and what the application makes of it, in one transaction."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError
from sqlalchemy.orm import Session

from outbox.answers import Settlement
from outbox.api import Outbox
from outbox.errors import OutboxError, Unreachable
from outbox.forks import PerProcess
from outbox.settings import Settings
from outbox.store import settlements
from outbox.store.session import connect_args

Handler = Callable[[Session, Settlement], Any]
_CHECK = text("SET CONSTRAINTS ALL IMMEDIATE")
_NO_SUCH_SAVEPOINT = "3B001"
_ENDED = "the handler ended the transaction; it must not commit or roll back"


class Committed(OutboxError):
    """The handler ended the transaction that was not its own; exactly once cannot be kept."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One result whose handler raised; it comes again. ``error`` is the exception's type and where
    it was raised: its message may quote personal data."""

    settlement_id: int
    intent_id: UUID
    error: str


@dataclass(frozen=True, slots=True)
class Consumed:
    """What one transaction came to. ``full``: there may be more at once."""

    done: int
    failed: tuple[Failure, ...]
    full: bool


class Consumer:
    """One consumer of results by name, on the application's own database."""

    def __init__(
        self, settings: Settings, name: str, handler: Handler, *, limit: int = 100
    ) -> None:
        url = settings.require_database()
        self._engine = PerProcess(lambda: create_engine(url, connect_args=connect_args(url)))
        self._outbox = Outbox(settings)
        self._name = name
        self._handler = handler
        self._limit = limit

    def once(self, *, hurry: bool = False) -> Consumed:
        """Takes up to ``limit`` results and hands each over inside a savepoint. One that raises is
        given back and comes again later each time, and so are later results of the same intent, so
        that their order holds. ``hurry``: what failed before is due now.

        Raises ``Unreachable``, and ``Committed`` for a handler that ends the transaction.
        """
        try:
            with Session(self._engine.get()) as session, session.begin():
                return self._hand_over(session, hurry=hurry)
        except OperationalError as error:
            raise Unreachable(
                f"the database does not answer: {type(error.orig).__name__}"
            ) from error
        except PendingRollbackError as error:
            raise Unreachable("the database connection was lost under the handler") from error

    def _hand_over(self, session: Session, *, hurry: bool) -> Consumed:
        if hurry:
            settlements.hurry(session, self._name)
        taken = self._outbox.settlements(session, self._name, self._limit)
        failed: list[Failure] = []
        waiting: set[UUID] = set()
        given_back = 0
        for settlement in taken:
            comes_first = settlement.intent_id not in waiting
            if comes_first:
                error = self._handle(session, settlement)
                if error is None:
                    continue
                failed.append(Failure(settlement.id, settlement.intent_id, error))
                waiting.add(settlement.intent_id)
            settlements.give_back(session, self._name, settlement.id, failed=comes_first)
            given_back += 1
        return Consumed(len(taken) - given_back, tuple(failed), full=len(taken) == self._limit)

    def _handle(self, session: Session, settlement: Settlement) -> str | None:
        savepoint = session.begin_nested()
        try:
            error = _never_run(self._handler(session, settlement))
            session.flush()
            # A database error that the handler swallowed, or one that would come at the very end,
            # comes here: later it would take every other result of the transaction with it.
            with session.begin_nested() as checked:
                session.execute(_CHECK)
                checked.rollback()  # the next handler may defer its constraints
        except KeyboardInterrupt:
            raise  # somebody ends the program, and not this result
        except BaseException as raised:  # asyncio's CancelledError is one
            error = _where(raised)
        if not savepoint.is_active and not session.in_nested_transaction():
            raise Committed(_ENDED)
        try:
            (savepoint.commit if error is None else savepoint.rollback)()
        except DBAPIError as gone:
            if getattr(gone.orig, "sqlstate", None) == _NO_SUCH_SAVEPOINT:  # COMMIT in plain SQL
                raise Committed(_ENDED) from gone
            raise
        return error

    def close(self) -> None:
        """Drops connections."""
        self._outbox.close()
        engine = self._engine.take()
        if engine is not None:
            engine.dispose()


def is_plain(handler: Any) -> bool:
    """Whether a call runs the function's body: that of ``async def`` or a generator does not."""
    return not any(
        kind(function)
        for kind in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
        for function in (handler, handler.__call__)
    )


def _never_run(returned: Any) -> str | None:
    if not (isawaitable(returned) or isgenerator(returned) or isasyncgen(returned)):
        return None
    if iscoroutine(returned):
        returned.close()
    return f"it returned a {type(returned).__name__}, which nobody runs: write a plain function"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"

"""What an agent's program calls: enqueue, wait, settlements, and the epoch of a conversation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

import psycopg

from outbox.answers import Answer, Settlement, answer_of, differing, not_seen, settlement_of
from outbox.doorbell import Doorbell
from outbox.errors import IntentMismatch, Invalid, StaleEpoch, Unreachable
from outbox.fingerprint import Limits
from outbox.forks import PerProcess
from outbox.intent import Draft, draft
from outbox.settings import Settings
from outbox.states import TERMINAL, Status
from outbox.store import enqueueing, epochs, reading, settlements
from outbox.store.connection import Store
from outbox.tool import Scope, WriteTool, listed

_POLL_FIRST_S = 0.02
_POLL_MAX_S = 0.25
# The least that a wait gives the database to answer, however short the wait itself: at first, and
# when it asks again.
_PATIENCE_S = 1.0
_LEAST_S = 0.1
_BATCH = 100


class Outbox:
    """The agent's side of the outbox. Cheap to build; opens connections on first need, and again
    after a fork.

    ``enqueue`` and ``settlements`` run on the caller's own connection in the caller's own
    transaction; ``wait`` reads over connections of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = Limits()
        self._bell = Doorbell(settings.redis_url, timeout_s=settings.redis_timeout_s)
        self._store = PerProcess(lambda: Store(settings, size=4))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Settings from the environment. Raises ``SettingsError`` with all faults at once."""
        return cls(Settings.from_env(env))

    # -- enqueue -----------------------------------------------------------------------------

    def enqueue(
        self,
        session: Any,
        tool: WriteTool,
        scope: Scope,
        args: Mapping[str, Any] | str | bytes,
        *,
        occurrence: int = 0,
        supersedes: UUID | str | None = None,
        tool_call_id: str | None = None,
        traceparent: str | None = None,
    ) -> Answer:
        """Records one write intent in the caller's transaction, or finds the one that is there.

        ``session`` is a SQLAlchemy Session (a scoped one too) or Connection, or a psycopg 3
        Connection outside pipeline mode, in UTF8. No network but the caller's own database; a
        Session rings the doorbell after its commit, a bare connection's caller may call ``ring()``.

        Raises ``Invalid`` (before any SQL), ``IntentMismatch``, ``StaleEpoch``, ``Denied`` or
        ``NotFound`` (``supersedes``), and ``RetryTransaction`` after a deadlock or under
        REPEATABLE READ; the driver's own errors come without the values of the row.
        """
        made = self._draft(tool, scope, args, occurrence, supersedes, tool_call_id, traceparent)
        answer = enqueueing.run(self._steps(made), session)
        self._bell.ring_after(session)
        assert isinstance(answer, Answer)
        return answer

    async def aenqueue(
        self,
        session: Any,
        tool: WriteTool,
        scope: Scope,
        args: Mapping[str, Any] | str | bytes,
        *,
        occurrence: int = 0,
        supersedes: UUID | str | None = None,
        tool_call_id: str | None = None,
        traceparent: str | None = None,
    ) -> Answer:
        """``enqueue`` on an AsyncSession (a scoped one too), an AsyncConnection or a psycopg
        AsyncConnection."""
        made = self._draft(tool, scope, args, occurrence, supersedes, tool_call_id, traceparent)
        answer = await enqueueing.arun(self._steps(made), session)
        self._bell.ring_after(session)
        assert isinstance(answer, Answer)
        return answer

    def enqueue_many(
        self,
        session: Any,
        tool: WriteTool,
        requests: Iterable[tuple[Scope, Mapping[str, Any] | str | bytes]],
    ) -> list[Answer]:
        """Many intents of one tool, validated before the first is recorded and inserted in key
        order, so that two such transactions cannot deadlock. Answers in the order given."""
        drafts = [
            self._draft(tool, scope, args, 0, None, None, None, f"requests[{n}].")
            for n, (scope, args) in enumerate(_pairs(requests))
        ]
        answers: dict[int, Answer] = {}
        for position in sorted(range(len(drafts)), key=lambda n: _lock_order(drafts[n])):
            answers[position] = enqueueing.run(self._steps(drafts[position]), session)
        self._bell.ring_after(session)
        return [answers[n] for n in range(len(drafts))]

    def ring(self) -> None:
        """Wakes a worker. For bare connections, after commit; without it the tick finds the row."""
        self._bell.ring()

    def _draft(
        self,
        tool: WriteTool,
        scope: Scope,
        args: Mapping[str, Any] | str | bytes,
        occurrence: int,
        supersedes: UUID | str | None,
        tool_call_id: str | None,
        traceparent: str | None,
        path: str = "",
    ) -> Draft:
        if not isinstance(tool, WriteTool):
            raise Invalid("tool", f"must be a WriteTool, not {type(tool).__name__}")
        if not isinstance(scope, Scope):
            raise Invalid("scope", f"must be a Scope, not {type(scope).__name__}")
        try:
            return draft(
                tool,
                scope,
                args,
                occurrence=occurrence,
                supersedes=_uuid(supersedes, "supersedes") if supersedes is not None else None,
                tool_call_id=tool_call_id,
                traceparent=traceparent,
                policy=self.settings.policy,
                limits=self.limits,
            )
        except Invalid as error:
            if path:
                raise Invalid(path + error.field, error.problem) from None
            raise

    def _steps(self, made: Draft) -> enqueueing.Steps:
        row, found = yield from enqueueing.insert_or_find(made)
        if row is None:
            raise StaleEpoch(made.scope.run_id, made.scope.epoch)
        if not found:
            return answer_of(row, notes=made.notes)
        notes = made.notes
        if row["guard"] != made.guard:
            raise IntentMismatch(str(row["id"]), differing(row["guard"], made.guard))
        if row["args"] is not None and row["args"] != made.columns["args"]:
            fields_ = differing(row["args"], made.columns["args"])
            if fields_:
                said = f"another {listed(fields_)} was given later and not used"
                notes = (*notes, said)
                yield from enqueueing.note(row["id"], said)
        answer = answer_of(row, deduplicated=True, notes=notes)
        if Status(row["status"]) in TERMINAL and row["contradicted_at"] is None:
            yield from enqueueing.tell(row["id"])
        return answer

    # -- answers -----------------------------------------------------------------------------

    def wait(self, intent: Answer | UUID | str, timeout_s: float | None = None) -> Answer:
        """The intent's answer as soon as it is settled, or after ``timeout_s`` (5 s) whatever it
        is then. An answer and never an exception, also when the database is away; raises
        ``Invalid`` only for what is no intent id or no number of seconds, or inside the transaction
        that enqueued it."""
        intent_id = intent.intent_id if isinstance(intent, Answer) else _uuid(intent, "intent")
        xid = intent.xid if isinstance(intent, Answer) else ""
        limit_s = self.settings.wait_s if timeout_s is None else _seconds(timeout_s)
        give_up = time.monotonic() + limit_s
        pausing = threading.Event()
        pause_s, least_s = _POLL_FIRST_S, _PATIENCE_S
        answer: Answer | None = None
        while True:
            # Half of it: where a connection fell silent, there is time for another.
            patience_s = max((give_up - time.monotonic()) / 2, least_s)
            seen, least_s = self._look(intent_id, xid, patience_s), _LEAST_S
            answer = seen or answer
            left_s = give_up - time.monotonic()
            if (seen and seen.told in ("settled", "failed", "cancelled")) or left_s <= 0:
                break
            pausing.wait(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _POLL_MAX_S)
        answer = answer or not_seen(intent_id)
        if isinstance(intent, Answer):
            return replace(answer, deduplicated=intent.deduplicated, notes=intent.notes)
        return answer

    async def await_settled(
        self, intent: Answer | UUID | str, timeout_s: float | None = None
    ) -> Answer:
        """``wait`` for coroutines; the reads run in a thread."""
        return await asyncio.to_thread(self.wait, intent, timeout_s)

    def _look(self, intent_id: UUID, xid: str, patience_s: float) -> Answer | None:
        try:
            with self._store.get().transaction(patience_s) as tx:
                row = reading.look(tx, intent_id)
                if row is None or row["id"] != intent_id:
                    if xid and reading.in_progress(tx, xid):
                        raise Invalid("intent", "its transaction is still open: commit, then wait")
                    return None
                return answer_of(row, deduplicated=True)
        except (Unreachable, psycopg.Error):
            return None

    # -- results -----------------------------------------------------------------------------

    def settlements(self, session: Any, consumer: str, limit: int = _BATCH) -> list[Settlement]:
        """Results this consumer has not had yet, consumed in the caller's own transaction: each
        exactly once per consumer, whatever commits or rolls back. Up to ``limit``. A connection in
        autocommit with no transaction open is refused: what it took would be gone at once."""
        _check_consumer(consumer)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise Invalid("limit", "must be an integer from 1 to 10000")
        enqueueing.require_transaction(session)
        params = {"consumer": consumer, "limit": limit}
        if not enqueueing.run(_one(settlements.KNOWN, params), session):
            settlements.register(self._store.get(), consumer)
        rows = enqueueing.run(_one(settlements.TAKE, params), session)
        return [settlement_of(row) for row in rows]

    # -- epochs ------------------------------------------------------------------------------

    def advance_epoch(self, session: Any, tenant: str, run_id: str, epoch: str) -> int:
        """A new turn of a conversation begins, in the caller's transaction: earlier epochs of the
        run are over, and their never-sent intents whose key contains the epoch are cancelled
        (compensations are not). Returns how many were."""
        Scope(tenant=tenant, run_id=run_id, epoch=epoch)
        if not epoch:
            raise Invalid("epoch", "must not be empty")
        cancelled = enqueueing.run(epochs.advance(tenant, run_id, epoch), session)
        assert isinstance(cancelled, int)
        return cancelled

    def close(self) -> None:
        """Drops the outbox's own connections."""
        store = self._store.take()
        if store is not None:
            store.close()


def _lock_order(made: Draft) -> tuple[str, ...]:
    """One order of whatever two transactions could wait for: a key, or (across epochs) a twin."""
    if made.tool.once_per != "epoch":
        return (made.key.hex(),)
    scope, print_ = made.scope, made.columns["fingerprint"].hex()
    return (scope.tenant, scope.account, scope.run_id, print_, made.key.hex())


def _one(sql: str, params: Mapping[str, Any]) -> enqueueing.Steps:
    rows = yield sql, params
    return rows


def _pairs(requests: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise Invalid("requests", "must be pairs of a Scope and arguments")
    for n, pair in enumerate(requests):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise Invalid(f"requests[{n}]", "must be a pair of a Scope and arguments")
        yield pair[0], pair[1]


def _seconds(value: Any) -> float:
    # The comparison also refuses NaN.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not value <= threading.TIMEOUT_MAX
    ):
        raise Invalid("timeout_s", "must be a number of seconds")
    return max(value, 0.0)


def _uuid(value: UUID | str, path: str) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError:
        raise Invalid(path, "is not an intent id") from None


def _check_consumer(consumer: str) -> None:
    if not isinstance(consumer, str) or not 1 <= len(consumer) <= 100 or not consumer.isprintable():
        raise Invalid("consumer", "must be printable text of 1 to 100 characters")

"""What an agent's program calls: enqueue, wait, settlements, and the epoch of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self
from uuid import UUID

from outbox.answers import Answer, Settlement, answer_of, differing, recorded_now, settlement_of
from outbox.codec import Sealed, open_text
from outbox.doorbell import Doorbell
from outbox.errors import IntentMismatch, Invalid, StaleEpoch
from outbox.fingerprint import Limits
from outbox.forks import PerProcess
from outbox.inputs import as_uuid, check_consumer, pairs, seconds
from outbox.intent import Draft, draft, sealed
from outbox.settings import Settings
from outbox.states import TERMINAL, Status
from outbox.store import callers, depths, enqueueing, epochs, settlements
from outbox.store.callers import Steps
from outbox.store.connection import Store
from outbox.store.enqueueing_sql import FIND
from outbox.tool import Scope, WriteTool, listed
from outbox.waiting import Asked, Poller, wait

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
        self._depths = depths.Depths(
            tenant=settings.max_tenant_depth,
            lane=settings.max_lane_depth,
            retry_after_s=settings.policy.full_retry_s,
        )
        self._bell = Doorbell(settings.redis_url, timeout_s=settings.redis_timeout_s)
        self._store = PerProcess(lambda: Store(settings, size=4))
        self._poller = PerProcess(lambda: Poller(self._store.get))

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

        Raises ``Invalid`` (before any SQL), ``Full`` (before anything is written),
        ``IntentMismatch``, ``KeyTaken``, ``StaleEpoch``, ``Denied`` or ``NotFound``
        (``supersedes``), and ``RetryTransaction`` after a deadlock or under REPEATABLE READ,
        ``ReadOnly`` on a standby; the driver's own errors come without the values of the row.

        Where a limit of depth is set (``tool.max_depth``, ``OUTBOX_MAX_TENANT_DEPTH``,
        ``OUTBOX_MAX_LANE_DEPTH``), what waits is counted first, up to the limit. No lock is taken
        for it: transactions that are open at once do not see each other's rows, so together they
        may exceed a limit by all that they record but the first one of them; so may rows that come
        back unsent. An intent that is recorded already is never refused.
        """
        made = self._draft(tool, scope, args, occurrence, supersedes, tool_call_id, traceparent)
        answer = callers.run(self._admitted_steps(made), session)
        self._ring_after(session)
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
        answer = await callers.arun(self._admitted_steps(made), session)
        self._ring_after(session)
        assert isinstance(answer, Answer)
        return answer

    def enqueue_many(
        self,
        session: Any,
        tool: WriteTool,
        requests: Iterable[tuple[Scope, Mapping[str, Any] | str | bytes]],
    ) -> list[Answer]:
        """Many intents of one tool, validated before the first is recorded and inserted in key
        order, so that two such transactions cannot deadlock. Answers in the order given. ``Full``
        unless there is room for all of them that are new. Whatever it raises, nothing of this call
        is written, also where the caller catches that and commits; a connection in autocommit with
        no transaction open is refused therefore."""
        drafts = [
            self._draft(tool, scope, args, 0, None, None, None, f"requests[{n}].")
            for n, (scope, args) in enumerate(pairs(requests))
        ]
        if not drafts:
            return []
        callers.require_transaction(session)
        answers = callers.run(self._steps_of_all(drafts), session)
        self._ring_after(session)
        assert isinstance(answers, list)
        return answers

    def ring(self) -> None:
        """Wakes a worker. For bare connections, after commit; without it the tick finds the row."""
        self._bell.ring()

    def _ring_after(self, caller: Any) -> None:
        """A bare connection has no hook for its commit."""
        session = callers.session_of(caller)
        if session is not None:
            self._bell.ring_after(session)

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
            made = draft(
                tool,
                scope,
                args,
                occurrence=occurrence,
                supersedes=as_uuid(supersedes, "supersedes") if supersedes is not None else None,
                tool_call_id=tool_call_id,
                traceparent=traceparent,
                policy=self.settings.policy,
                limits=self.limits,
            )
            return sealed(made, self.settings.codec)
        except Invalid as error:
            if path:
                raise Invalid(path + error.field, error.problem) from None
            raise

    def _admit(self, drafts: list[Draft]) -> Steps:
        return depths.admit(drafts, self._depths, self._is_committed)

    def _admitted_steps(self, made: Draft) -> Steps:
        yield from self._admit([made])
        return (yield from self._steps(made))

    def _steps_of_all(self, drafts: list[Draft]) -> Steps:
        yield from self._admit(drafts)
        steps = self._steps_of_each(drafts)
        return (yield from (enqueueing.all_or_nothing(steps) if len(drafts) > 1 else steps))

    def _steps_of_each(self, drafts: list[Draft]) -> Steps:
        fresh = yield from enqueueing.insert_many(drafts)
        answers = {n: _recorded_now(drafts[n], row) for n, row in fresh.items()}
        rest = set(range(len(drafts))) - answers.keys()
        for position in enqueueing.in_lock_order(drafts, rest):
            answers[position] = yield from self._steps(drafts[position])
        return [answers[n] for n in range(len(drafts))]

    def _steps(self, made: Draft) -> Steps:
        row, found = yield from enqueueing.insert_or_find(made, self._is_committed)
        if row is None:
            raise StaleEpoch(made.scope.run_id, made.scope.epoch)
        if not found:
            return _recorded_now(made, row)
        notes = made.notes
        if row["guard"] != made.guard:
            raise IntentMismatch(str(row["id"]), differing(row["guard"], made.guard))
        fields_ = self._differing(row, made)
        if fields_:
            said = f"another {listed(fields_)} was given later and not used"
            notes = (*notes, said)
            yield from enqueueing.note(row["id"], said)
        answer = answer_of(row, deduplicated=True, notes=notes)
        if Status(row["status"]) in TERMINAL and row["contradicted_at"] is None:
            yield from enqueueing.tell(row)
        return answer

    def _is_committed(self, sought: Mapping[str, Any]) -> bool:
        with self._store.get().transaction() as tx:
            return tx.one(FIND, sought) is not None

    def _differing(self, row: Mapping[str, Any], made: Draft) -> tuple[str, ...]:
        """The arguments that differ from the recorded ones. None where those were emptied, or are
        sealed by a key that this process lacks: the first values stand all the same."""
        recorded = row["args"]
        if recorded is None or recorded == made.args:
            return ()
        try:
            recorded = open_text(
                self.settings.codec, row["args_codec"], recorded, "intents.args", str(row["id"])
            )
        except Sealed:
            return ()
        return differing(recorded, made.args)

    # -- answers -----------------------------------------------------------------------------

    def wait(self, intent: Answer | UUID | str, timeout_s: float | None = None) -> Answer:
        """The intent's answer as soon as it is settled, or after ``timeout_s`` (5 s) whatever it
        is then. An answer and never an exception, also when the database is away; raises
        ``Invalid`` only for what is no intent id or no number of seconds, or inside the transaction
        that enqueued it."""
        return wait(self._store.get, self._asked(intent, timeout_s))

    async def await_settled(
        self, intent: Answer | UUID | str, timeout_s: float | None = None
    ) -> Answer:
        """``wait`` for coroutines, any number of them at once. One that is cancelled was told
        nothing: the outcome is told again to whoever asks next."""
        return await self._poller.get().wait(self._asked(intent, timeout_s))

    def _asked(self, intent: Answer | UUID | str, timeout_s: float | None) -> Asked:
        limit_s = self.settings.wait_s if timeout_s is None else seconds(timeout_s)
        if isinstance(intent, Answer):
            return Asked(intent.intent_id, limit_s, intent)
        return Asked(as_uuid(intent, "intent"), limit_s)

    # -- results -----------------------------------------------------------------------------

    def settlements(self, session: Any, consumer: str, limit: int = _BATCH) -> list[Settlement]:
        """Results this consumer has not had yet, consumed in the caller's own transaction: each
        exactly once per consumer, whatever commits or rolls back. Up to ``limit``. A connection in
        autocommit with no transaction open is refused: what it took would be gone at once."""
        check_consumer(consumer)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise Invalid("limit", "must be an integer from 1 to 10000")
        callers.require_transaction(session)
        params = {"consumer": consumer, "limit": limit}
        if not callers.run(_one(settlements.KNOWN, params), session):
            if callers.run(_one(settlements.FORBIDS_REGISTERING, params), session):
                raise Invalid(
                    "session",
                    f"has advanced an epoch, and {consumer!r} is a new consumer: take its first "
                    "results in a transaction of their own",
                )
            settlements.register(self._store.get(), consumer)
        rows = callers.run(_one(settlements.TAKE, params), session)
        return [settlement_of({**row, "at": enqueueing.moment(row["at"])}) for row in rows]

    # -- epochs ------------------------------------------------------------------------------

    def advance_epoch(self, session: Any, tenant: str, run_id: str, epoch: str) -> int:
        """A new turn of a conversation begins, in the caller's transaction: earlier epochs of the
        run are over, and their never-sent intents whose key contains the epoch are cancelled
        (compensations are not). Returns how many were. Raises ``StaleEpoch``, and
        ``RetryTransaction`` where the caller's snapshot hides a consumer of results."""
        Scope(tenant=tenant, run_id=run_id, epoch=epoch)
        if not epoch:
            raise Invalid("epoch", "must not be empty")
        cancelled = callers.run(epochs.advance(tenant, run_id, epoch), session)
        assert isinstance(cancelled, int)
        return cancelled

    def close(self) -> None:
        """Drops the outbox's own connections."""
        store = self._store.take()
        if store is not None:
            store.close()


def _recorded_now(made: Draft, row: Mapping[str, Any]) -> Answer:
    at = enqueueing.moment(row["created_at"])
    return recorded_now(row, made.tool.name, at, made.notes)


def _one(sql: str, params: Mapping[str, Any]) -> Steps:
    rows = yield sql, params
    return rows

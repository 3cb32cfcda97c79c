"""Errors that callers can act on. ``str()`` never holds an argument's value or a secret."""

from __future__ import annotations


class OutboxError(Exception):
    """The root of what this library raises on purpose. ``told`` is the word for an agent."""

    told = "not_recorded"


class Invalid(OutboxError):
    """An input that cannot be recorded. ``field`` is a path such as ``args.lines[2].amount``.

    Raised before any SQL runs, so the caller's transaction stays usable.
    """

    told = "invalid"

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class IntentMismatch(OutboxError):
    """The same intent was enqueued before with another guarded value; nothing was changed."""

    told = "conflict"

    def __init__(self, intent_id: str, fields: tuple[str, ...]) -> None:
        self.intent_id = intent_id
        self.fields = fields
        super().__init__(
            f"intent {intent_id} is already recorded with another {', '.join(fields)}: "
            "nothing was changed; a different write needs a different identity"
        )


class KeyTaken(OutboxError):
    """A row that is not of this intent stands under its key or its id, perhaps one that this login
    may not see: nothing was recorded, nothing of that row is told, and no repeat helps. Whoever
    owns the ledger must look."""

    told = "conflict"

    def __init__(self, intent_id: str) -> None:
        self.intent_id = intent_id
        super().__init__(
            f"intent {intent_id} cannot be recorded: a row that is not of it stands under its key; "
            "nothing was recorded, and the owner of the ledger must look"
        )


class StaleEpoch(OutboxError):
    """The run has moved on to a later epoch; this turn may not start new writes."""

    told = "conflict"

    def __init__(self, run_id: str, epoch: str) -> None:
        self.run_id = run_id
        self.epoch = epoch
        super().__init__(f"scope.epoch: {epoch!r} is over in run {run_id!r}; nothing was recorded")


class Full(OutboxError):
    """As many intents of the tool, the tenant or the lane wait to be sent as may: nothing was
    recorded, and the caller's transaction stays usable. What is recorded already is never refused.

    ``limit`` names the limit (``tool.max_depth``, ``OUTBOX_MAX_TENANT_DEPTH`` or
    ``OUTBOX_MAX_LANE_DEPTH``) and ``most`` is its value; ``depth`` is how many wait, counted to one
    more than that; ``new`` how many were to be added; ``retry_after_s`` when to ask again, None
    where more were asked for at once than may ever wait.
    """

    def __init__(self, limit: str, most: int, depth: int, new: int, retry_after_s: float) -> None:
        self.limit = limit
        self.most = most
        self.depth = depth
        self.new = new
        self.retry_after_s = retry_after_s if new <= most else None
        waiting = f"{depth} wait" if depth <= most else f"more than {most} wait"
        advice = f"ask again in {retry_after_s:g} s" if new <= most else "ask for fewer at once"
        super().__init__(
            f"{limit} is {most}: {waiting} to be sent and {new} more were asked for; nothing was "
            f"recorded, {advice}"
        )


class RetryTransaction(OutboxError):
    """A concurrent transaction was in the way; roll back, repeat yours, and the intent is there.

    Under REPEATABLE READ and SERIALIZABLE because this transaction's snapshot hides the row, under
    any isolation because of a deadlock.
    """


class SettingsError(OutboxError):
    """One or more settings are wrong; ``problems`` lists all of them as (setting, problem)."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{name}: {problem}" for name, problem in problems))


class Unreachable(OutboxError):
    """A backend did not answer in its bounded time; nothing was lost, ask again."""


class Busy(Unreachable):
    """The backend is there, and this one thing could not be done in its bounded time: another
    transaction holds a row, or the statement took too long. Everything else may go on."""


class ReadOnly(Unreachable):
    """The database takes no writes, or this transaction: a standby, or read-only by its settings.
    Nothing was recorded."""


class NotFound(OutboxError):
    """No such row; ``field`` names what was looked for."""

    def __init__(self, field: str, problem: str, candidates: tuple[str, ...] = ()) -> None:
        self.field = field
        self.problem = problem
        self.candidates = candidates
        super().__init__(f"{field}: {problem}")


class Ambiguous(NotFound):
    """A prefix that names more than one row; ``candidates`` lists them."""


class Denied(OutboxError):
    """Refused by policy: the ledger's rules do not allow this move now. Nothing was changed."""

    def __init__(self, code: str, problem: str) -> None:
        self.code = code
        self.problem = problem
        super().__init__(problem)

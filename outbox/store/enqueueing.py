"""Enqueue's SQL, written once for every kind of connection: it yields statements and is sent rows.

One INSERT when the intent is new; nothing else runs on the common path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from outbox.errors import Denied, KeyTaken, NotFound, OutboxError
from outbox.intent import Draft
from outbox.store.callers import Params, Steps, retry
from outbox.store.enqueueing_sql import (
    FIND,
    INSERT,
    NOTE,
    OVER,
    SUPERSEDED,
    TOLD,
    TURN,
    as_drafts,
)

_TRIES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# So many drafts go into one statement.
_PIECE = 500


def sought(draft: Draft) -> dict[str, Any]:
    """The draft as ``FIND`` looks for it."""
    return {
        **draft.columns,
        "keys": [one.key for one in draft.ever],
        "fingerprints": [one.fingerprint for one in draft.ever],
    }


def insert_or_find(draft: Draft, is_committed: Callable[[Params], bool]) -> Steps:
    """Steps of one enqueue; returns (row, deduplicated), or (None, False) for a stale epoch: of a
    row that is new only what ``INSERT`` tells.
    ``is_committed`` looks for the draft outside the caller's transaction, by ``FIND``."""
    has_versions = len(draft.ever) > 1
    if has_versions:
        rows = yield TURN, {"turn": _turn(draft)}
        # A snapshot may hide what is recorded under another version, and no index would tell.
        if rows[0]["isolation"] != "read committed" and is_committed(sought(draft)):
            rows = yield FIND, sought(draft)
            if not rows:
                raise retry()
    # Again where the row that stood in the way stopped doing so between the two statements: a
    # guarded twin whose outcome was told just then.
    for _ in range(_TRIES):
        if has_versions or draft.columns["supersedes"] is not None:
            # What is recorded stays so, also where it could not be recorded now.
            rows = yield FIND, sought(draft)
            if rows:
                return _found(rows[0], draft), True
        if draft.columns["supersedes"] is not None:
            yield from _check_superseded(draft)
        rows = yield INSERT, {"drafts": as_drafts([draft.columns])}
        if rows:
            return rows[0], False
        rows = yield FIND, sought(draft)
        if rows:
            return _found(rows[0], draft), True
        over = yield OVER, draft.columns
        if over:
            return None, False
    if is_committed(sought(draft)):
        raise retry()
    # What stands in the way, again and again, is nothing that this login may see.
    raise KeyTaken(draft.columns["id"])


def insert_many(drafts: Sequence[Draft]) -> Steps:
    """Steps that record those of the drafts that nothing stands in the way of, in an order of locks
    that is everybody's; returns the rows of those by their place in ``drafts``. The rest is for
    ``insert_or_find``."""
    found: dict[int, Params] = {}
    if any(len(draft.ever) > 1 for draft in drafts):
        return found
    order = in_lock_order(drafts, range(len(drafts)))
    for first in range(0, len(order), _PIECE):
        piece = order[first : first + _PIECE]
        rows = yield INSERT, {"drafts": as_drafts([drafts[n].columns for n in piece])}
        by_id = {str(row["id"]): row for row in rows}
        for n in piece:
            # Of two drafts of one intent only the first was recorded.
            row = by_id.pop(drafts[n].columns["id"], None)
            if row is not None:
                found[n] = row
    return found


def all_or_nothing(steps: Steps) -> Steps:
    """Those steps; what they wrote is taken back where they refuse, so that a caller who catches
    that and commits has recorded nothing of them. An error of the database ends the caller's
    transaction by itself."""
    yield "SAVEPOINT outbox_many", {}
    try:
        made = yield from steps
    except OutboxError:
        yield "ROLLBACK TO SAVEPOINT outbox_many", {}
        yield "RELEASE SAVEPOINT outbox_many", {}
        raise
    yield "RELEASE SAVEPOINT outbox_many", {}
    return made


def in_lock_order(drafts: Sequence[Draft], places: Iterable[int]) -> list[int]:
    """Those places in ``drafts``, in the order in which they may be waited for."""
    return sorted(places, key=lambda place: _lock_order(drafts[place]))


def _lock_order(draft: Draft) -> tuple[str, ...]:
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
    order = _lock_order(draft)
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
        raise KeyTaken(draft.columns["id"])
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
    if row["successor"] is not None and str(row["successor"]) != draft.columns["id"]:
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

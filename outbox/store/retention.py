"""Retention: what is over is emptied, or deleted where it is nobody's. In pieces, each a short walk
along a partial index by age, so that a piece costs the same however much is kept back.

Undecided rows, their evidence and results that a consumer has not had are passed by; so is whatever
another transaction has in hand. It is judged under the lock, by a statement that begins after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg.types.json import Jsonb

from outbox.policy import HEARTBEATS_S
from outbox.store import redaction
from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, as_intent

IN_USE = "in use"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The next ``size`` rows that are older than ``before``, after ``after`` (time and id). ``by``
    and ``reason`` are for the audit of what is emptied; a ``dry_run`` changes nothing. Intents that
    were settled ``intents_before`` are emptied in the same round, with their events."""

    before: datetime
    after: tuple[datetime, UUID | int] | None = None
    size: int
    by: str
    reason: str
    dry_run: bool = False
    intents_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Walked:
    """``last`` is where the next piece begins, None after the last one; ``done`` rows were emptied
    or deleted (or would be), of the others ``kept`` counts why not. ``passed_by`` are those at rest
    where some of them could not be done: they were in other hands, or moved just then."""

    last: tuple[datetime, UUID | int] | None
    done: int
    kept: Counter[str] = field(default_factory=Counter)
    passed_by: Sequence[Any] = ()


Walk = Callable[[Transaction, Piece], Walked]

# Why an intent ``i`` and its evidence stay; NULL where nothing speaks for it. A question that a
# person closed counts from then on. An untold outcome guards its twin from a later epoch; elsewhere
# the twin has the same key, which stays.
_KEPT: LiteralString = f"""CASE
    WHEN i.settled_at IS NULL THEN 'unsettled'
    WHEN i.contradicted_at IS NOT NULL OR EXISTS (
        SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
        AND COALESCE(e.closed_at >= %(before)s, true)) THEN 'question'
    WHEN i.verify_at IS NOT NULL OR i.resolver_token IS NOT NULL THEN 'to be read again'
    WHEN EXISTS (SELECT FROM outbox.webhook_inbox w
        WHERE w.intent_id = i.id AND w.due_at IS NOT NULL) THEN 'to be joined'
    WHEN EXISTS (SELECT FROM {redaction.NOT_HAD} i.id) THEN 'undelivered'
    WHEN EXISTS (SELECT FROM outbox.intents s
        WHERE s.supersedes = i.id AND s.settled_at IS NULL) THEN 'successor'
    WHEN i.once_per = 'epoch' AND i.occurrence = 0 AND i.supersedes IS NULL
        AND COALESCE(i.told_at <= i.retracted_at, i.told_at IS NULL) THEN 'not told'
    END"""

# As the index has it.
_HOLDS: LiteralString = "(args IS NOT NULL OR request IS NOT NULL OR receipt IS NOT NULL)"
_INTENTS: LiteralString = f"""
SELECT i.id, i.settled_at AS at, {_KEPT} AS kept FROM (
    SELECT * FROM outbox.intents WHERE settled_at < %(before)s
    AND {_HOLDS} AND (settled_at, id) > (%(at)s, %(id)s) ORDER BY settled_at, id LIMIT %(size)s) i
ORDER BY i.settled_at, i.id
"""
# Not FOR UPDATE: what refers to the row is recorded meanwhile.
_LOCK: LiteralString = f"""
SELECT {COLUMNS} FROM outbox.intents WHERE id = ANY(%(ids)s)
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
_LOCK_BODIES = """
SELECT id FROM outbox.webhook_inbox WHERE intent_id = ANY(%(ids)s) AND body IS NOT NULL
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
_STILL: LiteralString = f"""
SELECT i.id FROM outbox.intents i
WHERE i.id = ANY(%(ids)s) AND i.settled_at < %(before)s AND {_HOLDS} AND {_KEPT} IS NULL
AND NOT EXISTS (SELECT FROM outbox.webhook_inbox w
    WHERE w.intent_id = i.id AND w.body IS NOT NULL AND w.id <> ALL(%(bodies)s))
"""
_AUDIT = """
INSERT INTO outbox.events
    (intent_id, at, actor, kind, from_status, to_status, reason, detail)
SELECT i.id, outbox.clock(), %(by)s, 'pruned', i.status, i.status, %(reason)s, e.detail
FROM unnest(%(ids)s::uuid[], %(details)s::jsonb[]) AS e (id, detail)
JOIN outbox.intents i ON i.id = e.id
"""


def intents(tx: Transaction, piece: Piece) -> Walked:
    """Settled intents: emptied as by a person's order, each with an event of kind ``pruned``."""
    found = tx.all(_INTENTS, _place(piece, UUID(int=0)))
    at_rest, walked = _judged(found, piece)
    if piece.dry_run or not at_rest:
        return walked
    locked = {row["id"]: as_intent(row, tx.codec) for row in tx.all(_LOCK, {"ids": at_rest})}
    bodies = [row["id"] for row in tx.all(_LOCK_BODIES, {"ids": at_rest})]
    ours = {"ids": list(locked), "bodies": bodies, "before": piece.before}
    still = tx.all(_STILL, ours)
    rows = [locked[row["id"]] for row in still]
    if rows:
        emptied = redaction.empty(tx, rows)
        said = {"by": piece.by, "reason": piece.reason}
        details = [Jsonb(detail) for detail in emptied.values()]
        tx.run(_AUDIT, {**said, "ids": list(emptied), "details": details})
    return _done(walked, at_rest, len(rows))


_MATCHED: LiteralString = f"""
SELECT b.id, b.received_at AS at, {_KEPT} AS kept,
    i.settled_at < %(intents_before)s::timestamptz AND {_HOLDS} AS goes_along FROM (
    SELECT id, received_at, intent_id FROM outbox.webhook_inbox WHERE received_at < %(before)s
    AND body IS NOT NULL AND intent_id IS NOT NULL
    AND (received_at, id) > (%(at)s, %(id)s) ORDER BY received_at, id LIMIT %(size)s) b
JOIN outbox.intents i ON i.id = b.intent_id
ORDER BY b.received_at, b.id
"""
_LOCK_MATCHED = """
SELECT w.id FROM outbox.webhook_inbox w JOIN outbox.intents i ON i.id = w.intent_id
WHERE w.id = ANY(%(ids)s) ORDER BY w.id
FOR NO KEY UPDATE OF w SKIP LOCKED FOR SHARE OF i SKIP LOCKED
"""
_EMPTY_MATCHED: LiteralString = f"""
UPDATE outbox.webhook_inbox b SET body = NULL, body_codec = 'plain' FROM outbox.intents i
WHERE b.id = ANY(%(ids)s) AND b.body IS NOT NULL AND i.id = b.intent_id AND {_KEPT} IS NULL
"""


def matched_events(tx: Transaction, piece: Piece) -> Walked:
    """Bodies of events that joined an intent, under the same conditions as the intent itself."""
    place = _place(piece, 0)
    found = tx.all(_MATCHED, {**place, "intents_before": piece.intents_before})
    at_rest, walked = _judged(found, piece)
    if piece.dry_run:
        # Those of an intent that would be emptied go along with it, and are not counted again.
        along = sum(row["kept"] is None and row["goes_along"] for row in found)
        return replace(walked, done=walked.done - along)
    if not at_rest:
        return walked
    locked = [row["id"] for row in tx.all(_LOCK_MATCHED, {"ids": at_rest})]
    done = tx.run(_EMPTY_MATCHED, {"ids": locked, "before": piece.before})
    return _done(walked, at_rest, done)


_AGED: LiteralString = """
    AND intent_id IS NULL AND due_at IS NULL AND received_at < %(before)s
    AND (received_at, id) > (%(at)s, %(id)s) ORDER BY received_at, id LIMIT %(size)s
"""
_UNMATCHED: LiteralString = f"""
SELECT b.id, b.received_at AS at, CASE WHEN b.state = 'mismatch' AND EXISTS (
    SELECT FROM outbox.escalations e WHERE e.holder = 'webhook:' || b.vendor || '/' || b.account
    AND COALESCE(e.closed_at >= %(before)s, true)) THEN 'question' END AS kept
FROM (SELECT id, received_at, state, vendor, account FROM outbox.webhook_inbox
    WHERE body IS NOT NULL AND state <> 'foreign' {_AGED}) b
ORDER BY b.received_at, b.id
"""
_FOREIGN: LiteralString = f"""
SELECT id, received_at AS at, NULL AS kept FROM outbox.webhook_inbox
WHERE state = 'foreign' {_AGED}
"""
_LOCK_EVENTS = """
SELECT id FROM outbox.webhook_inbox WHERE id = ANY(%(ids)s) AND due_at IS NULL
ORDER BY id FOR UPDATE SKIP LOCKED
"""


def unmatched_events(tx: Transaction, piece: Piece) -> Walked:
    """Bodies of events with our marks that no more join anything: given up, or of another account.
    The row stays, and so does doctor's finding."""
    empty = "UPDATE outbox.webhook_inbox SET body = NULL, body_codec = 'plain' "
    return _events(tx, piece, _UNMATCHED, empty + "WHERE id = ANY(%(ids)s) AND body IS NOT NULL")


def foreign_events(tx: Transaction, piece: Piece) -> Walked:
    """Events that are not ours, of which no body was kept: deleted."""
    gone = "DELETE FROM outbox.webhook_inbox WHERE id = ANY(%(ids)s) AND state = 'foreign'"
    return _events(tx, piece, _FOREIGN, gone)


def _events(tx: Transaction, piece: Piece, find: LiteralString, act: LiteralString) -> Walked:
    at_rest, walked = _judged(tx.all(find, _place(piece, 0)), piece)
    if piece.dry_run or not at_rest:
        return walked
    locked = [row["id"] for row in tx.all(_LOCK_EVENTS, {"ids": at_rest})]
    return _done(walked, at_rest, tx.run(act, {"ids": locked}))


def _place(piece: Piece, first: UUID | int) -> Mapping[str, Any]:
    at, after = piece.after or (_EPOCH, first)
    return {"before": piece.before, "at": at, "id": after, "size": piece.size}


def _judged(found: Sequence[Mapping[str, Any]], piece: Piece) -> tuple[list[Any], Walked]:
    """The ids that nothing speaks for, and the walk as it is if all of them are done."""
    at_rest = [row["id"] for row in found if row["kept"] is None]
    kept = Counter(row["kept"] for row in found if row["kept"] is not None)
    last = (found[-1]["at"], found[-1]["id"]) if len(found) == piece.size else None
    return at_rest, Walked(last, len(at_rest), kept)


def _done(walked: Walked, at_rest: Sequence[Any], done: int) -> Walked:
    passed_by = at_rest if done < len(at_rest) else ()
    return replace(walked, done=done, passed_by=passed_by)


_LEFT: Mapping[str, LiteralString] = {
    "intents": f"SELECT id FROM outbox.intents WHERE id = ANY(%(ids)s) AND {_HOLDS}",
    # Of one that is not ours there never was a body.
    "events": "SELECT id FROM outbox.webhook_inbox WHERE id = ANY(%(ids)s) "
    "AND (body IS NOT NULL OR state = 'foreign')",
}


def in_use(tx: Transaction, walk: Walk, passed_by: Sequence[Any]) -> Counter[str]:
    """Those that a piece of this walk passed by and that are still as they were. What another prune
    had in hand is done by now, and nobody keeps it."""
    if not passed_by:
        return Counter()
    find = _LEFT["intents" if walk is intents else "events"]
    return Counter({IN_USE: len(tx.all(find, {"ids": list(passed_by)}))})


_OLD_BEATS = """
SELECT h.role, h.instance FROM outbox.heartbeats h
WHERE h.at < outbox.clock() - %(after_s)s * INTERVAL '1 second'
AND EXISTS (SELECT FROM outbox.heartbeats n WHERE n.role = h.role AND n.at > h.at)
"""


def heartbeats(tx: Transaction, *, dry_run: bool) -> int:
    """Deletes those of processes that are long gone, but for the last of each role; how many."""
    params = {"after_s": HEARTBEATS_S}
    if dry_run:
        return len(tx.all(_OLD_BEATS, params))
    return tx.run(f"DELETE FROM outbox.heartbeats WHERE (role, instance) IN ({_OLD_BEATS})", params)

"""What looks said of rows in doubt, and what else a decision needs to know: many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from outbox.store.connection import Transaction

UNREADABLE = "look_unreadable"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look-up said of a row that stays in doubt, read at ``version``. ``quiet_absence_at``
    is when a look that found nothing began, if it began after quiescence; ``unread`` why it said
    nothing."""

    intent_id: UUID
    version: int
    due_in_s: float
    absent: bool = False
    quiet_absence_at: datetime | None = None
    unread: str | None = None


def note_looks(tx: Transaction, looked: Sequence[Looked], *, by: str) -> int:
    """Keeps it. Of a row that moved meanwhile it says nothing. Returns of how many it was kept."""
    unread = {one.intent_id: one.unread for one in looked if one.unread is not None}
    if unread:
        _note_unreadable(tx, unread, by=by)
    if not looked:
        return 0
    return tx.run(
        """
        UPDATE outbox.intents SET version = version + 1, looks = looks + 1,
            absent_looks = absent_looks + CASE WHEN n.absent THEN 1 ELSE 0 END,
            absent_first_at = COALESCE(absent_first_at, n.quiet),
            absent_last_at = COALESCE(n.quiet, absent_last_at),
            resolver_token = NULL, resolver_until = NULL,
            due_at = outbox.clock() + n.due_in_s * INTERVAL '1 second'
        FROM unnest(%(ids)s::uuid[], %(versions)s::bigint[], %(due_in_s)s::float8[],
            %(absent)s::boolean[], %(quiet)s::timestamptz[])
            AS n (intent_id, seen, due_in_s, absent, quiet)
        WHERE intents.id = n.intent_id AND intents.version = n.seen AND status = 'unknown'
        """,
        {
            "ids": [one.intent_id for one in looked],
            "versions": [one.version for one in looked],
            "due_in_s": [one.due_in_s for one in looked],
            "absent": [one.absent for one in looked],
            "quiet": [one.quiet_absence_at for one in looked],
        },
    )


def _note_unreadable(tx: Transaction, reasons: Mapping[UUID, str], *, by: str) -> None:
    """Keeps why a look-up said nothing; the same reason again is kept once."""
    tx.run(
        """
        INSERT INTO outbox.events (intent_id, at, actor, kind, reason, detail)
        SELECT n.intent_id, outbox.clock(), %(by)s, %(kind)s, n.reason, '{}'
        FROM unnest(%(ids)s::uuid[], %(reasons)s::text[]) AS n (intent_id, reason)
        WHERE n.reason IS DISTINCT FROM (
            SELECT e.reason FROM outbox.events e WHERE e.intent_id = n.intent_id
            AND e.kind = %(kind)s ORDER BY e.id DESC LIMIT 1)
        """,
        {"by": by, "kind": UNREADABLE, "ids": list(reasons), "reasons": list(reasons.values())},
    )


def last_unreadable(tx: Transaction, intent_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Why the last look-up that said nothing of an intent did so; of those that had one."""
    rows = tx.all(
        "SELECT DISTINCT ON (intent_id) intent_id, reason FROM outbox.events "
        "WHERE intent_id = ANY(%(ids)s) AND kind = %(kind)s ORDER BY intent_id, id DESC",
        {"ids": list(intent_ids), "kind": UNREADABLE},
    )
    return {row["intent_id"]: str(row["reason"]) for row in rows}


Question = Literal["open", "acknowledged"]


def questions(tx: Transaction, intent_ids: Sequence[UUID]) -> dict[UUID, Question]:
    """Of which intents a person is asked, and of which one is looking: re-sends wait for that."""
    rows = tx.all(
        "SELECT intent_id, bool_or(COALESCE(acked_until > outbox.clock(), false)) AS acked "
        "FROM outbox.escalations WHERE intent_id = ANY(%(ids)s) AND closed_at IS NULL "
        "GROUP BY intent_id",
        {"ids": list(intent_ids)},
    )
    return {row["intent_id"]: "acknowledged" if row["acked"] else "open" for row in rows}

"""Escalations: open questions for a person, one per intent or holder, each with its reasons.

A page is one notice of an escalation. Opening, a new reason and closing write the page rows in
the same transaction, so a crash can neither lose a page nor send it under another key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from outbox.store.connection import Transaction

if TYPE_CHECKING:
    from outbox.store.intents import Intent

# Closed by settlement. Every other reason of an intent is a contradiction: only a person closes it.
DOUBT_REASONS = frozenset(
    {"ttl", "window", "worker_lost", "lane_held", "unsendable", "predecessor"}
)
_SECOND_OBJECT = frozenset({"contradiction", "duplicate"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person is to be asked about an intent."""

    row: Intent
    reasons: list[str]
    detail: dict[str, Any]


def open_for_intent(
    tx: Transaction, row: Intent, reasons: list[str], detail: dict[str, Any]
) -> UUID:
    """Opens the intent's escalation, or adds reasons to the one that is open."""
    return _open(tx, {"intent_id": row.id, "holder": None}, reasons, _about(row, detail))


def open_for_intents(tx: Transaction, asked: Sequence[Asked]) -> None:
    """The same of many, each once: of a storm hardly any is open yet."""
    if not asked:
        return
    new = [
        {
            "id": str(uuid4()),
            "intent_id": str(one.row.id),
            "reasons": sorted(set(one.reasons)),
            "detail": _about(one.row, one.detail),
        }
        for one in asked
    ]
    opened = {row["intent_id"] for row in tx.all(_OPEN_MANY, {"asked": Jsonb(new)})}
    for one in asked:
        if one.row.id not in opened:
            open_for_intent(tx, one.row, one.reasons, one.detail)


def _about(row: Intent, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "tenant": row.tenant,
        "vendor": row.vendor,
        "account": row.account,
        "mode": row.mode,
        "tool": row.tool,
        "amount_minor": row.amount_minor,
        "currency": row.currency,
        **detail,
    }


def open_for_holder(
    tx: Transaction, holder: str, reasons: list[str], detail: dict[str, Any]
) -> UUID:
    """The same for a paused vendor or another holder that keeps many rows waiting."""
    return _open(tx, {"intent_id": None, "holder": holder}, reasons, detail)


def _open(
    tx: Transaction, about: dict[str, Any], reasons: list[str], detail: dict[str, Any]
) -> UUID:
    found = tx.one(
        "SELECT id, reasons, episode FROM outbox.escalations WHERE closed_at IS NULL "
        "AND (intent_id = %(intent_id)s OR holder = %(holder)s) FOR UPDATE",
        about,
    )
    if found is None:
        found = tx.one(
            "INSERT INTO outbox.escalations "
            "(id, intent_id, holder, episode, reasons, detail, opened_at, changed_at) "
            "SELECT %(id)s, %(intent_id)s, %(holder)s, 1 + count(*), %(reasons)s, %(detail)s, "
            "outbox.clock(), outbox.clock() FROM outbox.escalations "
            "WHERE intent_id = %(intent_id)s OR holder = %(holder)s "
            "ON CONFLICT DO NOTHING RETURNING id, reasons, episode",
            {**about, "id": uuid4(), "reasons": sorted(set(reasons)), "detail": Jsonb(detail)},
        )
        if found is None:  # another resolver opened it between the two statements
            return _open(tx, about, reasons, detail)
        _page(tx, found["id"], sorted(set(reasons)), "trigger")
        return _id(found)
    new = sorted(set(reasons) - set(found["reasons"]))
    if new:
        tx.run(
            "UPDATE outbox.escalations SET reasons = %(reasons)s, changed_at = outbox.clock(), "
            "detail = detail || %(detail)s, muted_until = NULL, acked_until = NULL "
            "WHERE id = %(id)s",
            {
                "id": found["id"],
                "reasons": sorted({*found["reasons"], *new}),
                "detail": Jsonb(detail),
            },
        )
        _page(tx, found["id"], new, "trigger")
    elif detail.get("objects") or detail.get("count"):
        tx.run(
            "UPDATE outbox.escalations SET detail = detail || %(detail)s WHERE id = %(id)s",
            {"id": found["id"], "detail": Jsonb(detail)},
        )
    return _id(found)


def _id(row: dict[str, Any]) -> UUID:
    found: UUID = row["id"]
    return found


# Each of an intent without an open one. Its key is new, and so are those of its pages.
_OPEN_MANY = """
WITH opened AS (
    INSERT INTO outbox.escalations
        (id, intent_id, episode, reasons, detail, opened_at, changed_at)
    SELECT a.id, a.intent_id, 1 + (SELECT count(*) FROM outbox.escalations e
        WHERE e.intent_id = a.intent_id), a.reasons, a.detail, outbox.clock(), outbox.clock()
    FROM jsonb_to_recordset(%(asked)s) AS a (
        id uuid, intent_id uuid, reasons text[], detail jsonb)
    ON CONFLICT DO NOTHING RETURNING id, intent_id, reasons
), paged AS (
    INSERT INTO outbox.pages (escalation_id, pager, dedup_key, action, body, due_at, created_at)
    SELECT o.id, '', 'outbox:' || o.id || ':' || r.reason, 'trigger',
        jsonb_build_object('reason', r.reason), outbox.clock(), outbox.clock()
    FROM opened o CROSS JOIN LATERAL unnest(o.reasons) r (reason)
)
SELECT intent_id FROM opened
"""
_TRIGGER = """
INSERT INTO outbox.pages
    (escalation_id, pager, dedup_key, action, body, due_at, created_at)
SELECT %(id)s, '', %(key)s || CASE WHEN n = 0 THEN '' ELSE ':' || n + 1 END, 'trigger', %(body)s,
    outbox.clock(), outbox.clock()
FROM (SELECT count(*) AS n FROM outbox.pages WHERE escalation_id = %(id)s AND action = 'trigger'
      AND body->>'reason' = %(reason)s) before
ON CONFLICT DO NOTHING
"""
_FOLLOW = """
INSERT INTO outbox.pages
    (escalation_id, pager, dedup_key, action, body, due_at, created_at)
SELECT %(id)s, '', t.dedup_key, %(action)s, %(body)s, outbox.clock(), outbox.clock()
FROM outbox.pages t WHERE t.escalation_id = %(id)s AND t.action = 'trigger'
AND t.body->>'reason' = %(reason)s AND NOT EXISTS (
    SELECT FROM outbox.pages f WHERE f.dedup_key = t.dedup_key AND f.action = %(action)s)
ON CONFLICT DO NOTHING
"""


def _page(tx: Transaction, escalation_id: UUID, reasons: list[str], action: str) -> None:
    """One page per new reason: a known key with an open alert would notify nobody again, so a
    reason that comes back gets a key of its own. What follows a trigger carries its key.

    ``pager`` is left empty: which target comes first is the paging job's to say.
    """
    for reason in reasons:
        tx.run(
            _TRIGGER if action == "trigger" else _FOLLOW,
            {
                "id": escalation_id,
                "key": f"outbox:{escalation_id}:{reason}",
                "reason": reason,
                "action": action,
                "body": Jsonb({"reason": reason}),
            },
        )


def page_again(tx: Transaction, escalation_id: UUID, reason: str) -> None:
    """One more notice of an open question, under the next key of its reason."""
    _page(tx, escalation_id, [reason], "trigger")


def close(tx: Transaction, escalation_id: UUID, *, by: str, verdict: str) -> bool:
    """Closes an open escalation and resolves its pages. False when it was closed before."""
    closed = tx.one(
        "UPDATE outbox.escalations SET closed_at = outbox.clock(), changed_at = outbox.clock(), "
        "closed_by = %(by)s, verdict = %(verdict)s WHERE id = %(id)s AND closed_at IS NULL "
        "RETURNING reasons",
        {"id": escalation_id, "by": by, "verdict": verdict},
    )
    if closed is None:
        return False
    _page(tx, escalation_id, list(closed["reasons"]), "resolve")
    return True


def close_doubt(tx: Transaction, row: Intent, *, by: str) -> None:
    """Settlement closes doubt. A contradiction stays open beside it until a person rules."""
    found = tx.one(
        "SELECT id, reasons FROM outbox.escalations WHERE intent_id = %(id)s "
        "AND closed_at IS NULL FOR UPDATE",
        {"id": row.id},
    )
    if found is None:
        return
    doubts = [r for r in found["reasons"] if r in DOUBT_REASONS]
    rest = [r for r in found["reasons"] if r not in DOUBT_REASONS]
    if not rest:
        close(tx, found["id"], by=by, verdict=f"settled:{row.status}")
        return
    if doubts:
        tx.run(
            "UPDATE outbox.escalations SET reasons = %(rest)s, changed_at = outbox.clock() "
            "WHERE id = %(id)s",
            {"id": found["id"], "rest": rest},
        )
        _page(tx, found["id"], doubts, "resolve")


def close_doubts(tx: Transaction, rows: Sequence[Intent], *, by: str) -> None:
    """The same of many, of which few were asked about."""
    asked = tx.all(
        "SELECT intent_id FROM outbox.escalations WHERE intent_id = ANY(%(ids)s) "
        "AND closed_at IS NULL",
        {"ids": [row.id for row in rows]},
    )
    known = {found["intent_id"] for found in asked}
    for row in rows:
        if row.id in known:
            close_doubt(tx, row, by=by)


def was_ruled_on(tx: Transaction, intent_id: UUID, reason: str, objects: list[str]) -> bool:
    """Whether a person has closed this very question about these objects. A second object is one
    question, whoever saw it."""
    same = sorted(_SECOND_OBJECT) if reason in _SECOND_OBJECT else [reason]
    row = tx.one(
        "SELECT EXISTS (SELECT FROM outbox.escalations WHERE intent_id = %(id)s "
        "AND closed_at IS NOT NULL AND reasons && %(same)s "
        "AND detail->'objects' @> %(objects)s) AS y",
        {"id": intent_id, "same": same, "objects": Jsonb(objects)},
    )
    return bool(objects and row and row["y"])


def settled_intents(tx: Transaction, limit: int) -> list[UUID]:
    """Intents that were settled by what may not close questions itself (a run whose epoch moved
    on), and whose doubt is still open; locked."""
    rows = tx.all(
        "SELECT e.intent_id FROM outbox.escalations e JOIN outbox.intents i ON i.id = e.intent_id "
        "WHERE e.closed_at IS NULL AND i.settled_at IS NOT NULL AND e.reasons && %(doubts)s "
        # A caller may just be told of one: its question is closed the next time.
        "ORDER BY e.intent_id LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED",
        {"doubts": sorted(DOUBT_REASONS), "limit": limit},
    )
    return [row["intent_id"] for row in rows]


def close_holder(tx: Transaction, holder: str, *, by: str, verdict: str) -> None:
    """Closes the open escalation of a holder, if there is one."""
    found = tx.one(
        "SELECT id FROM outbox.escalations WHERE holder = %(holder)s AND closed_at IS NULL",
        {"holder": holder},
    )
    if found is not None:
        close(tx, found["id"], by=by, verdict=verdict)


def close_opened(tx: Transaction, *, by: str) -> int:
    """Closes the questions about holders whose switch is gone: left open, one would hide the next
    pause. Returns how many."""
    rows = tx.all(
        "SELECT e.id FROM outbox.escalations e WHERE e.closed_at IS NULL AND e.holder IS NOT NULL "
        "AND (e.holder = 'clock' OR starts_with(e.holder, 'vendor:')) "
        "AND NOT EXISTS (SELECT FROM outbox.switches s WHERE s.holder = e.holder) "
        "ORDER BY e.id FOR UPDATE OF e SKIP LOCKED"
    )
    return sum(close(tx, row["id"], by=by, verdict="open again") for row in rows)

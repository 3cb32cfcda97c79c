"""What is due for a person, in pieces of a bounded size. Rows that a closed account keeps from
being sent are not touched: there may be a million, and they share the one question about it. A row
whose last try failed here does not: no account that is opened again helps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, COLUMNS_OF_I, Intent, as_intent
from outbox.store.lanes import head_of

# The two partial indexes: rows that wait to be sent, by account, and all others, by time.
WAITS: LiteralString = (
    "i.escalate_at IS NOT NULL AND i.status = 'pending' AND i.veto IS NULL AND NOT i.local_failure"
)
ASKS: LiteralString = (
    "i.escalate_at IS NOT NULL AND i.settled_at IS NULL "
    "AND (i.status <> 'pending' OR i.veto IS NOT NULL OR i.local_failure)"
)
# The switch that closes the whole account of a gate.
CLOSED_BY: LiteralString = """outbox.switches s WHERE s.kind <> 'clock' AND starts_with(
    split_part({gate}, '/', 1) || '/' || split_part({gate}, '/', 2) || '/', s.gate_prefix)"""


@dataclass(frozen=True, slots=True)
class Place:
    """An account with overdue rows that wait to be sent; ``holder`` is what keeps it closed (None:
    it is open), ``asked`` whether the question about that is open already."""

    vendor: str
    account: str
    holder: str | None
    asked: bool


def places(tx: Transaction, since: datetime) -> list[Place]:
    """Every account with rows that wait to be sent and were due for a person at ``since``."""
    rows = tx.all(
        f"""
        WITH RECURSIVE place AS (
            (SELECT i.vendor, i.account, i.gate FROM outbox.intents i WHERE {WAITS}
             ORDER BY i.vendor, i.account LIMIT 1)
            UNION ALL
            SELECT n.vendor, n.account, n.gate FROM place p CROSS JOIN LATERAL (
                SELECT i.vendor, i.account, i.gate FROM outbox.intents i WHERE {WAITS}
                AND (i.vendor, i.account) > (p.vendor, p.account)
                ORDER BY i.vendor, i.account LIMIT 1) n
        )
        SELECT p.vendor, p.account, s.holder, EXISTS (SELECT FROM outbox.escalations e
            WHERE e.holder = s.holder AND e.closed_at IS NULL
            AND CASE s.kind WHEN 'pause' THEN 'paused' ELSE s.kind END = ANY(e.reasons)) AS asked
        FROM place p LEFT JOIN LATERAL (
            SELECT s.holder, s.kind FROM {CLOSED_BY.format(gate="p.gate")} LIMIT 1) s ON true
        WHERE (SELECT true FROM outbox.intents i WHERE {WAITS}
            AND i.vendor = p.vendor AND i.account = p.account AND i.escalate_at <= %(since)s
            LIMIT 1)
        """,
        {"since": since},
    )
    return [Place(**row) for row in rows]


def claim_sent(tx: Transaction, since: datetime, limit: int) -> list[Intent]:
    """Rows that were sent, or never may or can be, due at ``since``; locked."""
    rows = tx.all(
        f"SELECT {COLUMNS_OF_I} FROM outbox.intents i WHERE {ASKS} "
        "AND i.escalate_at <= %(since)s ORDER BY i.escalate_at LIMIT %(limit)s "
        "FOR UPDATE SKIP LOCKED",
        {"since": since, "limit": limit},
    )
    return [as_intent(row, tx.codec) for row in rows]


def claim_waiting(
    tx: Transaction, place: Place, since: datetime, limit: int
) -> list[tuple[Intent, UUID | None]]:
    """Rows of one account that wait to be sent and were due at ``since``, locked, each with the
    head of its lane where that is another row."""
    rows = tx.all(
        f"""
        SELECT {COLUMNS_OF_I},
            NULLIF(CASE WHEN i.lane IS NOT NULL THEN {head_of("i.lane")} END, i.id) AS lane_head
        FROM outbox.intents i
        WHERE {WAITS} AND i.vendor = %(vendor)s AND i.account = %(account)s
        AND i.escalate_at <= %(since)s
        ORDER BY i.escalate_at LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED
        """,
        {"vendor": place.vendor, "account": place.account, "since": since, "limit": limit},
    )
    return [(as_intent(row, tx.codec), row["lane_head"]) for row in rows]


def last_word(tx: Transaction, intent_id: UUID) -> str:
    """What the last try of an intent came to; empty where there was none."""
    row = tx.one(
        "SELECT detail FROM outbox.attempts WHERE intent_id = %(id)s ORDER BY id DESC LIMIT 1",
        {"id": intent_id},
    )
    return str(row["detail"]) if row else ""


def lock_head(tx: Transaction, intent_id: UUID) -> Intent | None:
    """The row, locked; None where another transaction has it in hand, or it is settled."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM outbox.intents WHERE id = %(id)s AND settled_at IS NULL "
        "FOR UPDATE SKIP LOCKED",
        {"id": intent_id},
    )
    return as_intent(row, tx.codec) if row else None


def rest_lane(tx: Transaction, lane: str, since: datetime, *, in_s: float, limit: int) -> int:
    """Rows that wait behind the head of their lane share its question: those that were due at
    ``since`` are looked at again ``in_s`` later, all in one statement. Returns how many."""
    return tx.run(
        f"""
        UPDATE outbox.intents SET escalate_at = outbox.clock() + %(in_s)s * INTERVAL '1 second'
        WHERE id IN (SELECT i.id FROM outbox.intents i
            WHERE i.lane >= %(lane)s AND i.lane <= %(lane)s AND i.settled_at IS NULL AND {WAITS}
            AND i.escalate_at <= %(since)s
            ORDER BY i.lane, i.seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
        """,
        {"lane": lane, "since": since, "in_s": in_s, "limit": limit},
    )


def arm(tx: Transaction, when: Mapping[UUID, datetime | None]) -> None:
    """When each row is next due for a person; None for never. They are locked."""
    tx.run(
        "UPDATE outbox.intents i SET escalate_at = a.at "
        "FROM unnest(%(ids)s::uuid[], %(ats)s::timestamptz[]) a (id, at) WHERE i.id = a.id",
        {"ids": list(when), "ats": list(when.values())},
    )


def held_lanes(tx: Transaction, *, wait_s: float, limit: int) -> list[Intent]:
    """Heads in doubt that have kept others waiting in their lane for longer than ``wait_s``."""
    rows = tx.all(
        f"""
        SELECT {COLUMNS} FROM outbox.intents i
        WHERE lane IS NOT NULL AND on_doubt = 'hold' AND status IN ('unknown', 'retryable')
        AND first_sent_at < outbox.clock() - %(wait_s)s * INTERVAL '1 second'
        AND EXISTS (SELECT FROM outbox.intents w WHERE w.lane >= i.lane AND w.lane <= i.lane
                    AND w.settled_at IS NULL AND w.id <> i.id)
        AND NOT EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
                        AND e.closed_at IS NULL AND 'lane_held' = ANY(e.reasons))
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        """,
        {"wait_s": wait_s, "limit": limit},
    )
    return [as_intent(row, tx.codec) for row in rows]

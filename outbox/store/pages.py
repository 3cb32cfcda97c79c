"""The pages' own outbox: claimed, sent with the same dedup key, and recorded."""

from __future__ import annotations

from typing import Any

from outbox.store.connection import Transaction


def claim(tx: Transaction, *, limit: int, hold_s: float) -> list[dict[str, Any]]:
    """Due pages, held for ``hold_s``; a sender that dies leaves the page to the next, which sends
    the same dedup key. A resolve waits until its trigger was sent (or dropped)."""
    return tx.all(
        """
        UPDATE outbox.pages p SET claimed_until = outbox.clock() + %(hold_s)s * INTERVAL '1 second',
            attempts = attempts + 1
        FROM (
            SELECT p.id FROM outbox.pages p WHERE state = 'due' AND due_at <= outbox.clock()
            AND (claimed_until IS NULL OR claimed_until <= outbox.clock())
            AND (action = 'trigger' OR NOT EXISTS (
                SELECT FROM outbox.pages t WHERE t.dedup_key = p.dedup_key
                AND t.action = 'trigger' AND t.state = 'due'))
            ORDER BY due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) d, outbox.escalations e
        WHERE p.id = d.id AND e.id = p.escalation_id
        RETURNING p.id, p.escalation_id, p.pager, p.dedup_key, p.action, p.body, p.attempts,
            e.intent_id, e.holder, e.reasons, e.detail, e.opened_at, e.closed_at,
            COALESCE(e.muted_until > outbox.clock(), false) AS muted
        """,
        {"limit": limit, "hold_s": hold_s},
    )


def sent(tx: Transaction, page_id: int, *, pager: str, detail: str) -> None:
    """The target accepted the page. The target is kept: a resolve must go to the same one."""
    tx.run(
        "UPDATE outbox.pages SET state = 'sent', sent_at = outbox.clock(), pager = %(pager)s, "
        "detail = %(detail)s, claimed_until = NULL WHERE id = %(id)s",
        {"id": page_id, "pager": pager, "detail": detail[:200]},
    )


def dropped(tx: Transaction, page_id: int, detail: str) -> None:
    """Nobody is to be told: no pager is configured, or the trigger was never sent."""
    tx.run(
        "UPDATE outbox.pages SET state = 'dropped', detail = %(detail)s, claimed_until = NULL "
        "WHERE id = %(id)s",
        {"id": page_id, "detail": detail[:200]},
    )


def again(tx: Transaction, page_id: int, *, pager: str, in_s: float, detail: str) -> None:
    """The target failed: the page is due again, there or at the next target."""
    tx.run(
        "UPDATE outbox.pages SET pager = %(pager)s, claimed_until = NULL, detail = %(detail)s, "
        "due_at = outbox.clock() + %(in_s)s * INTERVAL '1 second' WHERE id = %(id)s",
        {"id": page_id, "pager": pager, "in_s": in_s, "detail": detail[:200]},
    )


def target_of(tx: Transaction, dedup_key: str) -> str | None:
    """Where the trigger of this key went; None if it was never sent."""
    row = tx.one(
        "SELECT pager FROM outbox.pages WHERE dedup_key = %(key)s AND action = 'trigger' "
        "AND state = 'sent'",
        {"key": dedup_key},
    )
    return str(row["pager"]) if row else None

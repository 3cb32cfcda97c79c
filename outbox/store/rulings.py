"""What a person's verdict reads and writes beside ``apply``. Every write is guarded by a row lock
taken in the same transaction, and compared with what the person saw."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent
from outbox.store.moves import Moved

_HELD = (
    "SELECT *, outbox.clock() AS now, COALESCE(acked_until > outbox.clock(), false) AS acked, "
    "COALESCE(muted_until > outbox.clock(), false) AS muted "
    "FROM outbox.escalations WHERE id = %(id)s"
)


def lock_escalation(tx: Transaction, escalation_id: UUID) -> dict[str, Any] | None:
    """One escalation, locked, with ``now``, ``acked`` and ``muted`` by the database's clock. Lock
    its intent first: every other writer does."""
    return tx.one(f"{_HELD} FOR UPDATE", {"id": escalation_id})


def see_escalation(tx: Transaction, escalation_id: UUID) -> dict[str, Any] | None:
    """The same without its lock, for a dry run, which writes nothing."""
    return tx.one(_HELD, {"id": escalation_id})


def lock_open_escalation(tx: Transaction, intent_id: UUID) -> dict[str, Any] | None:
    """The intent's open escalation, locked."""
    return tx.one(
        "SELECT * FROM outbox.escalations WHERE intent_id = %(id)s AND closed_at IS NULL "
        "FOR UPDATE",
        {"id": intent_id},
    )


def clear_contradiction(tx: Transaction, row: Intent, *, drop_receipt: bool = False) -> Intent:
    """The person ruled: the row is told again, also where it was told before. ``drop_receipt``
    takes away a declined object's id where another object is the one that landed. Raises
    ``Moved``."""
    written = tx.one(
        f"UPDATE outbox.intents SET contradicted_at = NULL, version = version + 1, "
        "retracted_at = CASE WHEN told_at IS NOT NULL THEN outbox.clock() ELSE retracted_at END, "
        "receipt_id = CASE WHEN %(drop)s THEN NULL ELSE receipt_id END, "
        "receipt = CASE WHEN %(drop)s THEN NULL ELSE receipt END "
        f"WHERE id = %(id)s AND version = %(version)s RETURNING {COLUMNS}",
        {"id": row.id, "version": row.version, "drop": drop_receipt},
    )
    if written is None:
        raise Moved(str(row.id))
    return as_intent(written, tx.codec)


def last_decision(tx: Transaction, intent_id: UUID) -> dict[str, Any] | None:
    """The newest event that moved the intent or ruled on it: at, actor, kind, reason."""
    return tx.one(
        "SELECT at, actor, kind, reason FROM outbox.events WHERE intent_id = %(id)s "
        "AND (from_status IS DISTINCT FROM to_status OR kind IN ('ruled_landed', "
        "'ruled_not_landed', 'cancelled', 'acked', 'muted')) ORDER BY id DESC LIMIT 1",
        {"id": intent_id},
    )


def ack(tx: Transaction, escalation_id: UUID, *, by: str, for_s: float) -> Any:
    """Somebody looks until then; returns the end."""
    until = _hold(tx, escalation_id, "acked", by=by, for_s=for_s)
    _acknowledge_pages(tx, escalation_id)
    return until


def _acknowledge_pages(tx: Transaction, escalation_id: UUID) -> None:
    """One acknowledgement for each page that was triggered, under the same key: a target with a
    policy of its own rests. One that came too late before is told now."""
    tx.run(
        "UPDATE outbox.pages SET state = 'due', due_at = outbox.clock(), attempts = 0 "
        "WHERE escalation_id = %(id)s AND action = 'acknowledge' AND state = 'dropped'",
        {"id": escalation_id},
    )
    tx.run(
        "INSERT INTO outbox.pages (escalation_id, pager, dedup_key, action, body, due_at, "
        "created_at) "
        "SELECT escalation_id, '', dedup_key, 'acknowledge', "
        "jsonb_build_object('reason', body->>'reason'), outbox.clock(), outbox.clock() "
        "FROM outbox.pages p WHERE escalation_id = %(id)s AND action = 'trigger' "
        "AND state IN ('due', 'sent') AND NOT EXISTS (SELECT FROM outbox.pages r "
        "WHERE r.dedup_key = p.dedup_key AND r.action IN ('acknowledge', 'resolve')) "
        "ON CONFLICT DO NOTHING",
        {"id": escalation_id},
    )


def unack(tx: Transaction, intent_id: UUID) -> bool:
    """Nobody looks any more: re-sends may go on. False when nobody did."""
    return bool(
        tx.run(
            "UPDATE outbox.escalations SET acked_until = NULL, acked_by = NULL, "
            "changed_at = outbox.clock() WHERE intent_id = %(id)s AND closed_at IS NULL "
            "AND acked_until > outbox.clock()",
            {"id": intent_id},
        )
    )


def mute(tx: Transaction, escalation_id: UUID, *, by: str, for_s: float) -> Any:
    """No pages until then; the escalation stays open and listed. Returns the end."""
    until = _hold(tx, escalation_id, "muted", by=by, for_s=for_s)
    _acknowledge_pages(tx, escalation_id)
    return until


def _hold(
    tx: Transaction, escalation_id: UUID, how: Literal["acked", "muted"], *, by: str, for_s: float
) -> Any:
    row = tx.one(
        f"UPDATE outbox.escalations SET {how}_by = %(by)s, changed_at = outbox.clock(), "
        f"{how}_until = outbox.clock() + %(for_s)s * INTERVAL '1 second' "
        f"WHERE id = %(id)s AND closed_at IS NULL RETURNING {how}_until AS until",
        {"id": escalation_id, "by": by, "for_s": for_s},
    )
    assert row is not None, f"{how} without its lock"
    return row["until"]


def closing_switch(tx: Transaction, gate: str) -> dict[str, Any] | None:
    """The switch that withdraws this gate's re-sends: any but a breaker, which probes by itself."""
    return tx.one(
        "SELECT holder, kind, reason, set_by, set_at FROM outbox.switches "
        "WHERE kind <> 'breaker' AND starts_with(%(gate)s, gate_prefix) LIMIT 1",
        {"gate": gate},
    )


def switch(tx: Transaction, holder: str) -> dict[str, Any] | None:
    """The switch of one holder."""
    return tx.one(
        "SELECT holder, kind, reason, set_by, set_at FROM outbox.switches "
        "WHERE holder = %(holder)s",
        {"holder": holder},
    )


def known_accounts(tx: Transaction) -> list[dict[str, Any]]:
    """Every (vendor, account) the ledger has ever sent for or still holds unsettled rows of."""
    return tx.all(
        "SELECT vendor, account FROM outbox.accounts UNION "
        "SELECT vendor, account FROM outbox.intents WHERE settled_at IS NULL "
        "ORDER BY vendor, account"
    )


def webhook(tx: Transaction, row_id: int) -> dict[str, Any] | None:
    """One kept event, locked, without its body."""
    return tx.one(
        "SELECT id, vendor, account, mode, event_id, kind, state, intent_id, due_at, detail, "
        "body IS NOT NULL AS kept FROM outbox.webhook_inbox WHERE id = %(id)s FOR UPDATE",
        {"id": row_id},
    )

"""Reads for answers, the command line and health. No write but ``told_at``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent

_LOOK = (
    "SELECT id, status, doubt, version, created_at, contradicted_at, business_status, receipt_id, "
    "failure_code, told_at, settled_at, tool FROM outbox.intents WHERE id = %(id)s"
)


def look(tx: Transaction, intent_id: UUID) -> dict[str, Any] | None:
    """What is told of one intent. A settled outcome is marked as told: the run has it now."""
    row = tx.one(_LOOK, {"id": intent_id})
    if row and row["settled_at"] and not row["contradicted_at"] and not row["told_at"]:
        tx.run(
            "UPDATE outbox.intents SET told_at = outbox.clock() WHERE id = %(id)s "
            "AND settled_at IS NOT NULL AND contradicted_at IS NULL AND told_at IS NULL",
            {"id": intent_id},
        )
    return row


def in_progress(tx: Transaction, xid: str) -> bool:
    """Whether the transaction that enqueued is still open."""
    row = tx.one("SELECT pg_xact_status(%(xid)s::xid8) AS s", {"xid": xid})
    return bool(row and row["s"] == "in progress")


_LIST: LiteralString = f"""
SELECT {COLUMNS} FROM outbox.intents
WHERE (%(status)s::text[] IS NULL OR status = ANY(%(status)s))
  AND (%(vendor)s::text IS NULL OR vendor = %(vendor)s)
  AND (%(tool)s::text IS NULL OR tool = %(tool)s)
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
  AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
  AND (%(older_s)s::float8 IS NULL
       OR created_at <= outbox.clock() - %(older_s)s * INTERVAL '1 second')
  AND (%(after)s::bigint IS NULL OR seq < %(after)s)
ORDER BY seq DESC LIMIT %(limit)s
"""


def intents(tx: Transaction, **filters: Any) -> list[Intent]:
    """Newest first; ``after`` is the seq of the last row of the page before."""
    names = ("status", "vendor", "tool", "tenant", "run_id", "older_s", "after", "limit")
    rows = tx.all(_LIST, {name: filters.get(name) for name in names})
    return [as_intent(row) for row in rows]


def history(tx: Transaction, intent_id: UUID) -> list[dict[str, Any]]:
    """Attempts and events of one intent, merged in the order they were written."""
    return tx.all(
        """
        SELECT ended_at AS at, 'sender' AS actor, 'attempt ' || outcome AS kind,
            'lease ' || lease_no || CASE WHEN late THEN ', late' ELSE '' END AS what,
            concat_ws(' ', NULLIF(detail, ''), http_status, NULLIF(vendor_request_id, ''),
                      CASE WHEN replayed THEN 'replayed' END) AS detail
        FROM outbox.attempts WHERE intent_id = %(id)s
        UNION ALL
        SELECT at, actor, kind, CASE WHEN from_status IS DISTINCT FROM to_status
            THEN concat_ws(' -> ', from_status, to_status) ELSE COALESCE(to_status, '') END,
            concat_ws(' ', NULLIF(reason, ''), NULLIF(detail::text, '{}'))
        FROM outbox.events WHERE intent_id = %(id)s
        ORDER BY at
        """,
        {"id": intent_id},
    )


def attempts(tx: Transaction, intent_id: UUID) -> list[dict[str, Any]]:
    """The attempt log of one intent."""
    return tx.all(
        "SELECT lease_no, started_at, ended_at, outcome, detail, http_status, vendor_request_id, "
        "replayed, should_retry, late FROM outbox.attempts WHERE intent_id = %(id)s ORDER BY id",
        {"id": intent_id},
    )


def webhooks_of(tx: Transaction, intent_id: UUID) -> list[dict[str, Any]]:
    """The events that joined one intent."""
    return tx.all(
        "SELECT id, event_id, kind, state, detail, received_at, deliveries "
        "FROM outbox.webhook_inbox WHERE intent_id = %(id)s ORDER BY id",
        {"id": intent_id},
    )


def webhooks(tx: Transaction, *, state: str | None, limit: int, after: int | None) -> list[Any]:
    """The inbox, newest first."""
    return tx.all(
        "SELECT id, vendor, account, mode, event_id, kind, state, intent_id, tries, deliveries, "
        "detail, received_at, body IS NOT NULL AS kept FROM outbox.webhook_inbox "
        "WHERE (%(state)s::text IS NULL OR state = %(state)s) "
        "AND (%(after)s::bigint IS NULL OR id < %(after)s) ORDER BY id DESC LIMIT %(limit)s",
        {"state": state, "limit": limit, "after": after},
    )


def escalations(tx: Transaction, *, everything: bool, limit: int) -> list[dict[str, Any]]:
    """Open escalations, the one whose window ends first on top; with ``everything`` closed too."""
    return tx.all(
        """
        SELECT e.*, i.tenant, i.tool, i.vendor, i.account, i.status, i.doubt, i.amount_minor,
            i.currency, i.window_ends_at, i.created_at, i.version,
            EXTRACT(EPOCH FROM i.window_ends_at - outbox.clock())::float8 AS window_left_s,
            EXTRACT(EPOCH FROM outbox.clock() - e.opened_at)::float8 AS open_s
        FROM outbox.escalations e LEFT JOIN outbox.intents i ON i.id = e.intent_id
        WHERE %(everything)s OR e.closed_at IS NULL
        ORDER BY e.closed_at IS NOT NULL, i.window_ends_at NULLS LAST, e.opened_at
        LIMIT %(limit)s
        """,
        {"everything": everything, "limit": limit},
    )


def escalation(tx: Transaction, escalation_id: UUID) -> dict[str, Any] | None:
    """One escalation."""
    return tx.one("SELECT * FROM outbox.escalations WHERE id = %(id)s", {"id": escalation_id})


def escalation_of(tx: Transaction, intent_id: UUID) -> dict[str, Any] | None:
    """The newest escalation of an intent, open ones first."""
    return tx.one(
        "SELECT * FROM outbox.escalations WHERE intent_id = %(id)s "
        "ORDER BY closed_at IS NOT NULL, opened_at DESC LIMIT 1",
        {"id": intent_id},
    )


def pages_of(tx: Transaction, escalation_id: UUID) -> list[dict[str, Any]]:
    """The pages of one escalation."""
    return tx.all(
        "SELECT pager, dedup_key, action, state, attempts, detail, sent_at FROM outbox.pages "
        "WHERE escalation_id = %(id)s ORDER BY id",
        {"id": escalation_id},
    )


def gauges(tx: Transaction) -> dict[str, Any]:
    """Health from Postgres itself, over partial indexes: never a scan of settled rows."""
    row = tx.one(
        """
        SELECT
            (SELECT count(*) FROM outbox.intents WHERE settled_at IS NULL) AS unsettled,
            (SELECT count(*) FROM outbox.intents WHERE status = 'unknown') AS unknown,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(due_at))::float8 FROM outbox.intents
             WHERE status IN ('pending', 'retryable') AND due_at <= outbox.clock()
             AND settled_at IS NULL) AS oldest_due_s,
            (SELECT count(*) FROM outbox.escalations WHERE closed_at IS NULL) AS escalations_open,
            (SELECT count(*) FROM outbox.pages WHERE state = 'due') AS pages_due,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(due_at))::float8
             FROM outbox.webhook_inbox WHERE due_at <= outbox.clock()) AS oldest_webhook_s,
            (SELECT count(*) FROM outbox.switches) AS switches
        """
    )
    assert row is not None
    return row


def age_s(tx: Transaction, moment: datetime) -> float:
    """Seconds since ``moment`` by the database's clock."""
    row = tx.one("SELECT EXTRACT(EPOCH FROM outbox.clock() - %(at)s)::float8 AS s", {"at": moment})
    assert row is not None
    return float(row["s"])

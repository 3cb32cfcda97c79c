"""Reads for answers, the command line and health. No write but ``told_at`` and ``retracted_at``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent

_LOOK = (
    "SELECT id, status, doubt, version, created_at, contradicted_at, business_status, receipt_id, "
    "failure_code, tool, COALESCE(told_at IS NULL OR told_at <= retracted_at, false) AS untold "
    "FROM outbox.intents WHERE id = ANY(%(ids)s)"
)
# Only the very word that was read. A row that somebody holds is not waited for: what is not marked
# guards its twin, and is told again.
_TELL = """
WITH free AS (
    SELECT i.id FROM outbox.intents i JOIN unnest(%(ids)s::uuid[], %(versions)s::integer[])
        AS t (id, version) ON i.id = t.id AND i.version = t.version
    WHERE i.settled_at IS NOT NULL AND i.contradicted_at IS NULL
    AND (i.told_at IS NULL OR i.told_at <= i.retracted_at)
    ORDER BY i.id FOR UPDATE OF i SKIP LOCKED
)
UPDATE outbox.intents i
SET told_at = GREATEST(outbox.clock(), retracted_at + INTERVAL '1 microsecond')
FROM free WHERE i.id = free.id
"""


def look(tx: Transaction, intent_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """What is told of intents, by id. To read marks nothing as told: the run does not have it."""
    return {row["id"]: row for row in tx.all(_LOOK, {"ids": list(intent_ids)})}


def tell(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Marks outcomes that ``look`` read as told. Call it with the answer in hand, and return that
    whatever comes of this."""
    told = {"ids": [row["id"] for row in rows], "versions": [row["version"] for row in rows]}
    tx.run(_TELL, told)


def take_back(tx: Transaction, intent_ids: Sequence[UUID]) -> None:
    """What was marked as told was not heard after all: it guards its twin until it is."""
    tx.run(
        "UPDATE outbox.intents SET retracted_at = GREATEST(outbox.clock(), told_at) "
        "WHERE id = ANY(%(ids)s) AND told_at IS NOT NULL",
        {"ids": list(intent_ids)},
    )


def in_progress(tx: Transaction, xid: str) -> bool:
    """Whether the transaction that enqueued is still open."""
    row = tx.one("SELECT pg_xact_status(%(xid)s::xid8) AS s", {"xid": xid})
    return bool(row and row["s"] == "in progress")


def intents(tx: Transaction, *, limit: int) -> list[Intent]:
    """Whole rows, newest first."""
    sql = f"SELECT {COLUMNS} FROM outbox.intents ORDER BY seq DESC LIMIT %(limit)s"
    return [as_intent(row, tx.codec) for row in tx.all(sql, {"limit": limit})]


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

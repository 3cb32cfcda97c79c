"""Signs of life for the health checks, over partial indexes: never a scan of settled rows."""

from __future__ import annotations

from typing import Any

from outbox.store.connection import Transaction
from outbox.store.lanes import head_of
from outbox.store.rates import SENDS_AS_IT_MAY


def revision(tx: Transaction) -> str | None:
    """The schema's revision; None where the schema is missing."""
    there = tx.one("SELECT to_regclass('outbox.alembic_version') IS NOT NULL AS y")
    if not there or not there["y"]:
        return None
    row = tx.one("SELECT version_num FROM outbox.alembic_version")
    return str(row["version_num"]) if row else None


def gauges(tx: Transaction) -> dict[str, Any]:
    """Counts and ages in seconds (None: nothing waits). ``oldest_due_s`` leaves out what rightly
    waits: for a closed switch, a rate or another row of its lane; ``oldest_page_s`` pages that a
    person has muted or acknowledged and those that wait for their group. ``oldest_undelivered_s``
    is the age of the oldest result that a consumer has not had, ``oldest_failing_s`` of one that it
    failed at. ``oldest_snapshot_s`` is the oldest transaction that keeps vacuum from cleaning up,
    by the server's own clock, and ``dead_rows`` what waits."""
    row = tx.one(
        f"""
        SELECT
            (SELECT count(*) FROM outbox.intents WHERE settled_at IS NULL) AS unsettled,
            (SELECT count(*) FROM outbox.intents WHERE status = 'unknown') AS unknown,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(i.due_at))::float8
             FROM outbox.intents i
             WHERE i.status IN ('pending', 'retryable') AND i.settled_at IS NULL
             AND i.due_at <= outbox.clock()
             AND NOT EXISTS (SELECT FROM outbox.switches s
                             WHERE starts_with(i.gate, s.gate_prefix))
             AND NOT {SENDS_AS_IT_MAY}
             AND (i.lane IS NULL OR i.id = {head_of("i.lane")})) AS oldest_due_s,
            (SELECT count(*) FROM outbox.escalations WHERE closed_at IS NULL) AS escalations_open,
            (SELECT count(*) FROM outbox.escalations
             WHERE closed_at IS NULL AND muted_until > outbox.clock()) AS escalations_muted,
            (SELECT count(*) FROM outbox.pages WHERE state = 'due') AS pages_due,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(p.created_at))::float8
             FROM outbox.pages p JOIN outbox.escalations e ON e.id = p.escalation_id
             WHERE p.state = 'due' AND p.sent_at IS NULL
             AND NOT (p.attempts = 0 AND p.due_at > outbox.clock())
             AND COALESCE(GREATEST(e.muted_until, e.acked_until) <= outbox.clock(), true)
            ) AS oldest_page_s,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(due_at))::float8
             FROM outbox.webhook_inbox WHERE due_at <= outbox.clock()) AS oldest_webhook_s,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(s.at))::float8
             FROM outbox.consumers c CROSS JOIN LATERAL (
                SELECT settlement_id FROM outbox.deliveries d
                WHERE d.consumer = c.name AND d.consumed_at IS NULL
                ORDER BY d.settlement_id LIMIT 1) d
             JOIN outbox.settlements s ON s.id = d.settlement_id) AS oldest_undelivered_s,
            (SELECT count(*) FROM outbox.deliveries
             WHERE consumed_at IS NULL AND tries > 0) AS results_failing,
            (SELECT EXTRACT(EPOCH FROM outbox.clock() - min(s.at))::float8
             FROM outbox.consumers c CROSS JOIN LATERAL (
                SELECT settlement_id FROM outbox.deliveries d
                WHERE d.consumer = c.name AND d.consumed_at IS NULL AND d.tries > 0
                ORDER BY d.settlement_id LIMIT 1) d
             JOIN outbox.settlements s ON s.id = d.settlement_id) AS oldest_failing_s,
            (SELECT EXTRACT(EPOCH FROM clock_timestamp() - min(xact_start))::float8
             FROM pg_stat_activity WHERE datname = current_database()
             AND backend_xmin IS NOT NULL) AS oldest_snapshot_s,
            pg_stat_get_dead_tuples('outbox.intents'::regclass) AS dead_rows
        """
    )
    assert row is not None
    return row

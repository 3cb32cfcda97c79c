"""The reads of ``outbox doctor``, and the counts that the command line shows. No write."""

from __future__ import annotations

from typing import Any, LiteralString

from outbox.store.connection import Transaction

SAMPLES = 10

# Rules that a constraint also holds, asked again (a constraint can be dropped), and those that
# none can express. Each names the rows that break it.
_RULES: dict[str, LiteralString] = {
    "status_against_sent": """
        SELECT id::text AS id FROM outbox.intents
        WHERE (first_sent_at IS NOT NULL
            AND status IN ('awaiting_approval', 'pending', 'cancelled'))
        OR (first_sent_at IS NULL AND status IN ('in_flight', 'unknown', 'retryable'))""",
    "lease_against_status": """
        SELECT id::text AS id FROM outbox.intents
        WHERE (status = 'in_flight') <> (lease_token IS NOT NULL)
        OR (lease_token IS NULL) <> (lease_until IS NULL)""",
    "landed_without_receipt": """
        SELECT id::text AS id FROM outbox.intents
        WHERE status = 'succeeded' AND receipt_id IS NULL""",
    "receipt_before_settlement": """
        SELECT id::text AS id FROM outbox.intents
        WHERE receipt_id IS NOT NULL AND status NOT IN ('succeeded', 'failed_poison')""",
    "settled_without_time": """
        SELECT id::text AS id FROM outbox.intents
        WHERE (settled_at IS NOT NULL)
            <> (status IN ('succeeded', 'failed_poison', 'cancelled'))""",
    "unsettled_without_request": """
        SELECT id::text AS id FROM outbox.intents WHERE settled_at IS NULL AND request IS NULL""",
    "doubt_without_send": """
        SELECT id::text AS id FROM outbox.intents
        WHERE doubt < 0 OR (doubt > 0 AND first_sent_at IS NULL AND status <> 'succeeded')""",
    "request_not_as_hashed": """
        SELECT id::text AS id FROM outbox.intents WHERE settled_at IS NULL
        AND request_sha256 <> sha256(convert_to(request, 'UTF8'))""",
    "two_in_flight_in_a_lane": """
        SELECT lane AS id FROM outbox.intents WHERE lane IS NOT NULL AND status = 'in_flight'
        GROUP BY lane HAVING count(*) > 1""",
    "sent_after_its_window": """
        SELECT DISTINCT i.id::text AS id FROM outbox.attempts a
        JOIN outbox.intents i ON i.id = a.intent_id
        WHERE a.started_at > i.window_ends_at AND a.outcome <> 'not_sent'""",
    "settled_without_settlement": """
        SELECT i.id::text AS id FROM outbox.intents i WHERE i.settled_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM outbox.settlements s WHERE s.intent_id = i.id)""",
    "settlement_without_delivery": """
        SELECT s.id::text AS id FROM outbox.settlements s CROSS JOIN outbox.consumers c
        WHERE NOT EXISTS (SELECT FROM outbox.deliveries d
            WHERE d.consumer = c.name AND d.settlement_id = s.id)""",
    "contradiction_without_escalation": """
        SELECT i.id::text AS id FROM outbox.intents i WHERE i.contradicted_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM outbox.escalations e
            WHERE e.intent_id = i.id AND e.closed_at IS NULL)""",
    "two_intents_with_one_receipt": """
        SELECT i.receipt_id AS id FROM outbox.intents i WHERE i.status = 'succeeded'
        AND i.operation = ANY(%(marked)s) AND i.receipt_id NOT LIKE 'verdict:%%'
        GROUP BY i.vendor, i.account, i.receipt_id HAVING count(*) > 1""",
    "lease_long_expired": """
        SELECT id::text AS id FROM outbox.intents WHERE status = 'in_flight'
        AND lease_until < outbox.clock() - 2 * %(tick_expire_s)s * INTERVAL '1 second'""",
    "overdue_without_escalation": """
        SELECT i.id::text AS id FROM outbox.intents i WHERE i.settled_at IS NULL
        AND LEAST(i.ttl_at, i.window_ends_at)
            < outbox.clock() - 2 * %(tick_escalate_s)s * INTERVAL '1 second'
        AND NOT EXISTS (SELECT FROM outbox.escalations e
            WHERE e.intent_id = i.id AND e.closed_at IS NULL)
        AND NOT (i.status = 'pending' AND EXISTS (SELECT FROM outbox.switches s
            JOIN outbox.escalations e ON e.holder = s.holder AND e.closed_at IS NULL
            WHERE starts_with(i.gate, s.gate_prefix)))
        AND NOT (i.lane IS NOT NULL AND EXISTS (SELECT FROM outbox.intents h
            JOIN outbox.escalations e ON e.intent_id = h.id AND e.closed_at IS NULL
            WHERE h.lane = i.lane AND h.settled_at IS NULL AND h.seq < i.seq))""",
    "page_not_going_out": """
        SELECT escalation_id::text AS id FROM outbox.pages
        WHERE state = 'failed' OR (state = 'due' AND attempts >= %(page_tries)s)
        GROUP BY escalation_id""",
    "webhook_ours_and_not_joined": """
        SELECT id::text AS id FROM outbox.webhook_inbox
        WHERE state = 'parked' AND due_at IS NULL""",
}


def broken_rules(tx: Transaction, **params: Any) -> dict[str, tuple[int, list[str]]]:
    """For each rule that something breaks: how many rows do, and the first of them."""
    found = {}
    for name, sql in _RULES.items():
        row = tx.one(
            f"SELECT count(*) AS n, (array_agg(id ORDER BY id))[1:{SAMPLES}] AS ids FROM ({sql}) r",
            params,
        )
        if row is not None and row["n"]:
            found[name] = (int(row["n"]), list(row["ids"]))
    return found


def kinds(tx: Transaction) -> list[dict[str, Any]]:
    """Vendors, accounts, operations and fingerprint versions of unsettled rows, with counts."""
    return tx.all(
        f"SELECT vendor, account, operation, fingerprint_version, count(*) AS n, "
        f"(array_agg(id::text ORDER BY seq))[1:{SAMPLES}] AS ids FROM outbox.intents "
        "WHERE settled_at IS NULL GROUP BY vendor, account, operation, fingerprint_version "
        "ORDER BY vendor, account, operation, fingerprint_version"
    )


def clock_source(tx: Transaction) -> str:
    """The body of ``outbox.clock()`` as installed; empty where it is missing."""
    row = tx.one(
        "SELECT p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'outbox' AND p.proname = 'clock' AND p.pronargs = 0"
    )
    return str(row["prosrc"]) if row else ""


def clock_is_settable(tx: Transaction) -> bool:
    """Whether a test's clock is installed instead of the migration's."""
    return " ".join(clock_source(tx).lower().split()) != "select statement_timestamp()"


def clock_doubts(tx: Transaction) -> list[dict[str, Any]]:
    """The switch that a step of the database's clock set."""
    return tx.all("SELECT holder, reason, set_at FROM outbox.switches WHERE kind = 'clock'")


def unsettled(tx: Transaction) -> list[dict[str, Any]]:
    """Unsettled rows by account, and accounts that were sent for before."""
    return tx.all(
        "SELECT vendor, account, sum(n)::int AS unsettled FROM ("
        "SELECT vendor, account, count(*) AS n FROM outbox.intents WHERE settled_at IS NULL "
        "GROUP BY vendor, account UNION ALL SELECT vendor, account, 0 FROM outbox.accounts) r "
        "GROUP BY vendor, account ORDER BY vendor, account"
    )


def waiting(tx: Transaction, vendor: str, account: str) -> dict[str, Any]:
    """What would be sent at once if the account's gates opened now."""
    rows = tx.all(
        "SELECT currency, count(*) AS n, sum(amount_minor)::bigint AS amount, "
        "min(created_at) AS oldest, array_agg(DISTINCT tenant) AS tenants FROM outbox.intents "
        "WHERE vendor = %(vendor)s AND account = %(account)s "
        "AND status IN ('pending', 'retryable') AND settled_at IS NULL "
        "GROUP BY currency ORDER BY currency",
        {"vendor": vendor, "account": account},
    )
    oldest = min((row["oldest"] for row in rows), default=None)
    return {
        "intents": sum(row["n"] for row in rows),
        "tenants": len({tenant for row in rows for tenant in row["tenants"]}),
        "amounts": [f"{r['amount']} {r['currency']} (minor units)" for r in rows if r["currency"]],
        "oldest": oldest.isoformat("T", "seconds") if oldest else None,
    }


def due(tx: Transaction, *, prefixes: list[str], lane_wait_s: float) -> dict[str, int]:
    """How much is due now for each resolver job."""
    row = tx.one(
        """
        SELECT
            (SELECT count(*) FROM outbox.intents WHERE status = 'in_flight'
             AND lease_until < outbox.clock()) AS expire,
            (SELECT count(*) FROM outbox.webhook_inbox WHERE due_at <= outbox.clock()) AS "join",
            (SELECT count(*) FROM outbox.intents WHERE status = 'unknown'
             AND due_at <= outbox.clock()
             AND (resolver_until IS NULL OR resolver_until <= outbox.clock())
             AND EXISTS (SELECT FROM unnest(%(prefixes)s::text[]) a WHERE starts_with(gate, a)))
            + (SELECT count(*) FROM outbox.intents WHERE verify_at <= outbox.clock()
             AND EXISTS (SELECT FROM unnest(%(prefixes)s::text[]) a WHERE starts_with(gate, a)))
             AS resolve,
            (SELECT count(*) FROM outbox.intents i WHERE status = 'retryable' AND (
                window_ends_at <= outbox.clock() OR veto IS NOT NULL OR contradicted_at IS NOT NULL
                OR EXISTS (SELECT FROM outbox.switches s WHERE s.kind <> 'breaker'
                    AND starts_with(i.gate, s.gate_prefix))
                OR EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
                    AND e.closed_at IS NULL AND e.acked_until > outbox.clock()))) AS withdraw,
            (SELECT count(*) FROM outbox.intents WHERE escalate_at <= outbox.clock()
             AND settled_at IS NULL)
            + (SELECT count(*) FROM outbox.intents i WHERE lane IS NOT NULL AND on_doubt = 'hold'
                AND status IN ('unknown', 'retryable')
                AND first_sent_at < outbox.clock() - %(lane_wait_s)s * INTERVAL '1 second'
                AND EXISTS (SELECT FROM outbox.intents w WHERE w.lane = i.lane
                    AND w.settled_at IS NULL AND w.seq > i.seq)
                AND NOT EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
                    AND e.closed_at IS NULL AND 'lane_held' = ANY(e.reasons))) AS escalate,
            (SELECT count(*) FROM outbox.pages WHERE state = 'due'
             AND due_at <= outbox.clock()) AS page
        """,
        {"prefixes": prefixes, "lane_wait_s": lane_wait_s},
    )
    assert row is not None
    return {name: int(count) for name, count in row.items()}

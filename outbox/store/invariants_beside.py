"""What must always hold of what is kept beside the intents: attempts, events, settlements,
questions and their pages, the inbox, and the guards of the schema itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString

from outbox.store.invariants import CLAIMED, NEWEST, OF_SEEN, SEEN, Invariant

_ATTEMPTS: LiteralString = f"(SELECT * FROM outbox.attempts ORDER BY id DESC LIMIT {NEWEST})"
_SETTLEMENTS: LiteralString = f"(SELECT * FROM outbox.settlements ORDER BY id DESC LIMIT {NEWEST})"
_NEWEST_ATTEMPTS = f"of the newest {NEWEST} attempts"
_NEWEST_SETTLEMENTS = f"of the newest {NEWEST} settlements"

BESIDE = (
    # By a person's order or by its age, and each time with an event that says so.
    Invariant(
        "emptied_without_a_record",
        11,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE i.settled_at IS NOT NULL AND i.request IS NULL
        AND NOT EXISTS (SELECT FROM outbox.events e
            WHERE e.intent_id = i.id AND e.kind IN ('redacted', 'pruned'))""",
    ),
    # A ruling settles a row anew, after it was emptied it may be.
    Invariant(
        "pruned_too_early",
        11,
        f"of the newest {NEWEST} events",
        f"""SELECT DISTINCT i.id::text AS id
        FROM (SELECT * FROM outbox.events ORDER BY id DESC LIMIT {NEWEST}) e
        JOIN outbox.intents i ON i.id = e.intent_id
        WHERE e.kind = 'pruned' AND e.at >= i.settled_at
        AND e.at < i.settled_at + %(least_retention_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "evidence_of_undecided_gone",
        11,
        f"of the events of at most {NEWEST} unsettled intents, and of {NEWEST} claimed ones",
        f"""SELECT i.id::text AS id FROM (SELECT id FROM {CLAIMED} c UNION
            (SELECT id FROM outbox.intents WHERE settled_at IS NULL
            ORDER BY vendor, account, created_at LIMIT {NEWEST})) i
        CROSS JOIN LATERAL (SELECT FROM outbox.webhook_inbox w
            WHERE w.intent_id = i.id AND w.body IS NULL LIMIT 1) w""",
    ),
    Invariant(
        "sent_without_a_claim",
        3,
        _NEWEST_ATTEMPTS,
        f"""SELECT DISTINCT i.id::text AS id FROM {_ATTEMPTS} a
        JOIN outbox.intents i ON i.id = a.intent_id
        WHERE a.lease_no NOT BETWEEN 1 AND i.lease_no
        OR (a.outcome <> 'not_sent' AND COALESCE(a.started_at < i.created_at, true))""",
    ),
    # No foreign key compares them with their intents: that would be a look for each row.
    Invariant(
        "attempt_of_no_intent",
        None,
        _NEWEST_ATTEMPTS,
        f"""SELECT a.intent_id::text AS id FROM {_ATTEMPTS} a
        WHERE NOT EXISTS (SELECT FROM outbox.intents i WHERE i.id = a.intent_id)""",
    ),
    Invariant(
        "settlement_of_no_intent",
        None,
        _NEWEST_SETTLEMENTS,
        f"""SELECT s.intent_id::text AS id FROM {_SETTLEMENTS} s
        WHERE NOT EXISTS (SELECT FROM outbox.intents i WHERE i.id = s.intent_id)""",
    ),
    # Our own sessions only; no call, and no look-up, may happen inside a transaction.
    Invariant(
        "transaction_held_open",
        3,
        "of this role's sessions",
        """SELECT 'process ' || pid AS id FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'outbox'
        AND state = 'idle in transaction'
        AND state_change < clock_timestamp() - %(idle_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "settlement_ahead_of_its_intent",
        5,
        _NEWEST_SETTLEMENTS,
        f"""SELECT s.id::text AS id FROM {_SETTLEMENTS} s
        JOIN outbox.intents i ON i.id = s.intent_id WHERE s.version > i.version""",
    ),
    Invariant(
        "two_current_epochs",
        5,
        "of the runs with epochs",
        """SELECT tenant || '/' || run_id AS id FROM outbox.epochs WHERE ended_at IS NULL
        GROUP BY tenant, run_id HAVING count(*) > 1""",
    ),
    Invariant(
        "told_against_status",
        7,
        _NEWEST_SETTLEMENTS,
        f"""SELECT id::text AS id FROM {_SETTLEMENTS} s
        WHERE (kind = 'contradiction' AND told <> 'unknown')
        OR (told <> 'unknown' AND told IS DISTINCT FROM CASE status
            WHEN 'succeeded' THEN 'settled' WHEN 'failed_poison' THEN 'failed'
            WHEN 'cancelled' THEN 'cancelled' END)""",
    ),
    Invariant(
        "sent_after_its_window",
        8,
        _NEWEST_ATTEMPTS,
        f"""SELECT DISTINCT i.id::text AS id FROM {_ATTEMPTS} a
        JOIN outbox.intents i ON i.id = a.intent_id
        WHERE a.started_at > i.window_ends_at AND a.outcome <> 'not_sent'""",
    ),
    # An attempt starts, for the log, with its claim: a veto that came later does not count.
    Invariant(
        "sent_after_a_veto",
        8,
        _NEWEST_ATTEMPTS,
        f"""SELECT DISTINCT i.id::text AS id FROM {_ATTEMPTS} a
        JOIN outbox.intents i ON i.id = a.intent_id
        WHERE a.outcome <> 'not_sent' AND (a.started_at > i.contradicted_at
            OR EXISTS (SELECT FROM outbox.attempts v WHERE v.intent_id = a.intent_id
                AND v.lease_no < a.lease_no AND v.outcome <> 'receipt' AND v.should_retry = false
                AND v.ended_at < a.started_at))""",
    ),
    Invariant(
        "doubt_closed_and_still_asked",
        9,
        "of the open escalations",
        """SELECT e.id::text AS id FROM outbox.escalations e
        JOIN outbox.intents i ON i.id = e.intent_id
        WHERE e.closed_at IS NULL AND e.reasons <@ %(doubts)s::text[]
        AND i.settled_at < outbox.clock() - 4 * %(tick_escalate_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "contradiction_closed_by_settlement",
        9,
        "of the closed escalations",
        """SELECT id::text AS id FROM outbox.escalations
        WHERE closed_at IS NOT NULL AND intent_id IS NOT NULL
        AND starts_with(verdict, 'settled:') AND NOT reasons <@ %(doubts)s::text[]""",
    ),
    Invariant(
        "left_a_terminal_status",
        10,
        f"of the newest {NEWEST} events",
        f"""SELECT DISTINCT intent_id::text AS id
        FROM (SELECT * FROM outbox.events ORDER BY id DESC LIMIT {NEWEST}) e
        WHERE from_status IN ('succeeded', 'failed_poison', 'cancelled')
        AND to_status <> from_status
        AND NOT (kind = 'ruled_landed' AND to_status = 'succeeded'
            AND from_status <> 'succeeded')""",
    ),
    Invariant(
        "unsettled_after_its_settlement",
        10,
        _NEWEST_SETTLEMENTS,
        f"""SELECT DISTINCT i.id::text AS id FROM {_SETTLEMENTS} s
        JOIN outbox.intents i ON i.id = s.intent_id
        WHERE s.kind <> 'contradiction' AND i.settled_at IS NULL""",
    ),
    # What a consumer that is still being registered has not been handed yet is not lost.
    Invariant(
        "settlement_without_delivery",
        11,
        _NEWEST_SETTLEMENTS,
        f"""SELECT c.name || ':' || s.id AS id FROM {_SETTLEMENTS} s CROSS JOIN outbox.consumers c
        WHERE (c.filled_to IS NULL OR s.id <= c.filled_to OR s.at > c.registered_at)
        AND NOT EXISTS (SELECT FROM outbox.deliveries d
            WHERE d.consumer = c.name AND d.settlement_id = s.id)""",
    ),
    Invariant(
        "settlement_not_taken",
        None,
        "of the oldest 1000 undelivered settlements of each consumer",
        """SELECT c.name || ':' || d.settlement_id AS id FROM outbox.consumers c
        CROSS JOIN LATERAL (SELECT settlement_id, tries FROM outbox.deliveries d
            WHERE d.consumer = c.name AND d.consumed_at IS NULL
            ORDER BY d.settlement_id LIMIT 1000) d
        JOIN outbox.settlements s ON s.id = d.settlement_id
        WHERE s.at < outbox.clock() - INTERVAL '1 day' OR d.tries >= 5""",
    ),
    Invariant(
        "webhook_waits",
        None,
        "of the stored events that are due",
        """SELECT id::text AS id FROM outbox.webhook_inbox
        WHERE due_at < outbox.clock() - %(due_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "webhook_ours_and_not_joined",
        None,
        f"of the newest {NEWEST} stored events",
        f"""SELECT id::text AS id
        FROM (SELECT * FROM outbox.webhook_inbox ORDER BY id DESC LIMIT {NEWEST}) w
        WHERE state = 'parked' AND due_at IS NULL""",
    ),
    Invariant(
        "page_not_going_out",
        9,
        "of the pages",
        """SELECT escalation_id::text AS id FROM outbox.pages
        WHERE state = 'failed' OR (state = 'due' AND attempts >= %(page_tries)s)
        GROUP BY escalation_id""",
    ),
)

# What the schema itself forbids, and the rule that it guards.
GUARDS: Mapping[str, int] = {
    "intents_pkey": 1,
    "intents_key": 1,
    "intents_supersedes": 1,
    "never_sent": 3,
    "sent_has_a_time": 3,
    "lease_while_in_flight": 4,
    "intents_lane_head": 4,
    "epochs_current": 5,
    "escalations_open_intent": 9,
    "escalations_open_holder": 9,
    "landed_has_a_receipt": 10,
    "settled_has_a_time": 10,
    "unsettled_has_no_receipt": 10,
    "unsettled_keeps_its_request": 11,
    "settlements_intent_id_version_kind_key": 11,
    "deliveries_pkey": 11,
    "events_append_only": 11,
    "attempts_append_only": 11,
    "intents_kept": 11,
    "inbox_kept": 11,
    "intents_twin": 13,
    "intents_version": 5,
    "intents_times_bounded": 14,
    "intents_readable": 14,
}
# A check that is not valid is enforced all the same: a migration put it in place of a longer one
# that held for the same rows. One that is not enforced says so, from Postgres 18 on.
STANDING: LiteralString = """
SELECT conname AS name FROM pg_constraint
WHERE connamespace = 'outbox'::regnamespace AND contype = 'c'
AND NOT pg_get_constraintdef(oid) LIKE '%NOT ENFORCED'
UNION ALL SELECT c.relname FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid
WHERE c.relnamespace = 'outbox'::regnamespace AND x.indisunique AND x.indisvalid
UNION ALL SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'outbox'::regnamespace AND t.tgenabled IN ('O', 'A')
"""

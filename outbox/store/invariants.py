"""What must always hold, as questions to the ledger: each names the rows that break it.

A constraint holds some of them too; a constraint can be dropped, and a restored or hand-edited
table need not have had it. What no partial index serves is bounded: all unsettled rows, and the
newest of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from outbox.store.lanes import head_of
from outbox.store.rates import SENDS_AS_IT_MAY

NEWEST = 20_000
_SETTLED: LiteralString = f"""(SELECT * FROM outbox.intents WHERE settled_at IS NOT NULL
    ORDER BY seq DESC LIMIT {NEWEST})"""
# The rows that anything can still happen to, and the last that something happened to.
OF_SEEN: LiteralString = f"""(
    SELECT * FROM outbox.intents WHERE settled_at IS NULL UNION ALL
    {_SETTLED})"""
# In the order of their index: without one a LIMIT is served by the first of the whole table, and
# what is unsettled lies at its end.
CLAIMED: LiteralString = f"""(SELECT id, vendor, status, lease_no, doubt FROM outbox.intents
    WHERE settled_at IS NULL AND lease_no > 0
    ORDER BY vendor, account, created_at LIMIT {NEWEST})"""
SEEN = f"of the unsettled intents and the newest {NEWEST} settled ones"
_UNSETTLED = "of the unsettled intents"
# A row ``i`` that can be read and reckoned with, of what an agent's login may write. The schema
# lets no other in; should its constraints be gone, such a row keeps no other from being claimed.
IS_SOUND: LiteralString = """(i.ttl_s <= 366 * 86400.0
        AND GREATEST(i.created_at, i.due_at, i.ttl_at, i.escalate_at, i.told_at, i.retracted_at)
            < '3000-01-01 00:00+00'
        AND LEAST(i.created_at, i.due_at, i.ttl_at, i.escalate_at, i.told_at, i.retracted_at)
            > '1970-01-01 00:00+00')"""


@dataclass(frozen=True, slots=True)
class Invariant:
    """``broken`` selects the ``id`` (text) of whatever breaks rule ``rule`` of the design (None:
    no rule of its own, but nothing that may be); ``looks_at`` says how much of the ledger it reads.
    """

    check: str
    rule: int | None
    looks_at: str
    broken: LiteralString


OF_INTENTS = (
    Invariant(
        "two_intents_with_one_key",
        1,
        SEEN,
        f"""SELECT id FROM (SELECT i.id::text AS id, count(*) OVER (PARTITION BY i.key) AS n
            FROM {OF_SEEN} i) k WHERE n > 1""",
    ),
    Invariant(
        "request_not_as_hashed",
        2,
        f"of at most {NEWEST} unsettled intents whose request is in the clear",
        f"""SELECT id::text AS id FROM (SELECT id, request, request_sha256 FROM outbox.intents
            WHERE settled_at IS NULL AND request_codec = 'plain' LIMIT {NEWEST}) i
        WHERE request_sha256 <> sha256(convert_to(request, 'UTF8'))""",
    ),
    Invariant(
        "status_against_sent",
        3,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE (first_sent_at IS NOT NULL
            AND status IN ('awaiting_approval', 'pending', 'cancelled'))
        OR (first_sent_at IS NULL AND status IN ('in_flight', 'unknown', 'retryable'))
        OR (first_sent_at IS NOT NULL AND lease_no = 0)""",
    ),
    Invariant(
        "lease_against_status",
        4,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE (status = 'in_flight') <> (lease_token IS NOT NULL)
        OR (lease_token IS NULL) <> (lease_until IS NULL)
        OR (resolver_token IS NULL) <> (resolver_until IS NULL)""",
    ),
    Invariant(
        "two_sent_in_a_lane",
        4,
        _UNSETTLED,
        """SELECT id FROM (SELECT id::text AS id, count(*) OVER (PARTITION BY lane) AS n
            FROM outbox.intents WHERE lane IS NOT NULL AND settled_at IS NULL
            AND (status = 'in_flight'
                 OR (status IN ('unknown', 'retryable') AND on_doubt = 'hold'))) l
        WHERE n > 1""",
    ),
    Invariant(
        "lease_long_expired",
        4,
        "of the leased intents",
        """SELECT id::text AS id FROM outbox.intents WHERE status = 'in_flight'
        AND lease_until < outbox.clock() - 2 * %(tick_expire_s)s * INTERVAL '1 second'""",
    ),
    # Each claim raises the version, and so does each end of one.
    Invariant(
        "version_went_back",
        5,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE version < 1 + 2 * lease_no - (status = 'in_flight')::integer""",
    ),
    Invariant(
        "ended_epoch_still_waits",
        5,
        "of the never-sent intents that are once per epoch",
        """SELECT i.id::text AS id FROM outbox.intents i JOIN outbox.epochs e
            ON e.tenant = i.tenant AND e.run_id = i.run_id AND e.epoch <> i.epoch
        WHERE e.ended_at IS NULL AND i.once_per = 'epoch' AND i.side_effect <> 'compensation'
        AND i.status IN ('pending', 'awaiting_approval') AND i.settled_at IS NULL
        AND GREATEST(e.started_at, i.created_at)
            < outbox.clock() - 10 * %(tick_expire_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "doubt_without_send",
        6,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE doubt < 0
        OR (doubt > 0 AND first_sent_at IS NULL AND status <> 'succeeded')
        OR (doubt > 0 AND status = 'cancelled')""",
    ),
    # A confirmed absence at a vendor without keys sets doubt to 0, and ends in an approval.
    Invariant(
        "doubt_below_lost_attempts",
        6,
        f"of at most {NEWEST} unsettled intents",
        f"""SELECT i.id::text AS id FROM {CLAIMED} i
        WHERE doubt < (SELECT count(DISTINCT a.lease_no) FROM outbox.attempts a
            WHERE a.intent_id = i.id AND a.outcome IN ('lost', 'lease_expired')
            AND NOT EXISTS (SELECT FROM outbox.attempts b WHERE b.intent_id = i.id
                AND b.lease_no = a.lease_no AND b.outcome IN ('receipt', 'refused', 'not_sent'))
            AND a.ended_at > COALESCE((SELECT max(e.at) FROM outbox.events e
                WHERE e.intent_id = i.id AND e.kind = 'resend_approved'
                AND i.vendor = ANY(%(keyless)s)), '-infinity'))""",
    ),
    Invariant(
        "settled_without_evidence",
        6,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE settled_at IS NOT NULL AND COALESCE(settled_by, '') = ''""",
    ),
    Invariant(
        "failed_without_a_refusal",
        7,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE status = 'failed_poison' AND settled_by IN ('reply', 'replay', 'late_reply')
        AND NOT EXISTS (SELECT FROM outbox.attempts a
            WHERE a.intent_id = i.id AND a.outcome = 'refused')""",
    ),
    Invariant(
        "sent_again_without_approval",
        8,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i CROSS JOIN LATERAL (
            SELECT count(DISTINCT a.lease_no) AS n FROM outbox.attempts a
            WHERE a.intent_id = i.id AND a.outcome <> 'not_sent'
            AND NOT EXISTS (SELECT FROM outbox.attempts b WHERE b.intent_id = i.id
                AND b.lease_no = a.lease_no AND b.outcome = 'not_sent')) sent
        WHERE i.attempts > 1 AND sent.n > 1
        AND ((i.vendor = ANY(%(keyless)s) AND NOT i.resend_when_absent)
            OR sent.n - 1 > (SELECT count(*) FROM outbox.events e
                WHERE e.intent_id = i.id AND e.kind = 'resend_approved'))""",
    ),
    Invariant(
        "overdue_without_escalation",
        9,
        _UNSETTLED,
        """SELECT i.id::text AS id FROM outbox.intents i WHERE i.settled_at IS NULL
        AND LEAST(i.ttl_at, i.window_ends_at)
            < outbox.clock() - 2 * %(tick_escalate_s)s * INTERVAL '1 second'
        AND NOT EXISTS (SELECT FROM outbox.escalations e
            WHERE e.intent_id = i.id AND e.closed_at IS NULL)
        AND NOT (i.status = 'pending' AND NOT i.local_failure
            AND EXISTS (SELECT FROM outbox.switches s
            JOIN outbox.escalations e ON e.holder = s.holder AND e.closed_at IS NULL
            WHERE starts_with(i.gate, s.gate_prefix)))
        AND NOT (i.lane IS NOT NULL AND EXISTS (SELECT FROM outbox.intents h
            JOIN outbox.escalations e ON e.intent_id = h.id AND e.closed_at IS NULL
            WHERE h.lane = i.lane AND h.settled_at IS NULL))""",
    ),
    Invariant(
        "contradiction_without_escalation",
        9,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE i.contradicted_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM outbox.escalations e
            WHERE e.intent_id = i.id AND e.closed_at IS NULL)""",
    ),
    Invariant(
        "landed_without_receipt",
        10,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE status = 'succeeded' AND receipt_id IS NULL""",
    ),
    Invariant(
        "receipt_before_settlement",
        10,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE receipt_id IS NOT NULL AND status NOT IN ('succeeded', 'failed_poison')""",
    ),
    Invariant(
        "settled_without_time",
        10,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE (settled_at IS NOT NULL)
            <> (status IN ('succeeded', 'failed_poison', 'cancelled'))""",
    ),
    Invariant(
        "two_intents_with_one_receipt",
        10,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE i.status = 'succeeded'
        AND i.operation = ANY(%(marked)s) AND NOT starts_with(i.receipt_id, 'verdict:')
        AND (SELECT true FROM outbox.intents o WHERE o.vendor = i.vendor
            AND o.account = i.account AND o.receipt_id = i.receipt_id AND o.id <> i.id
            AND o.status = 'succeeded' AND o.operation = ANY(%(marked)s) LIMIT 1)""",
    ),
    Invariant(
        "unsettled_without_request",
        11,
        _UNSETTLED,
        """SELECT id::text AS id FROM outbox.intents WHERE settled_at IS NULL
        AND request IS NULL""",
    ),
    Invariant(
        "attempt_without_a_record",
        11,
        f"of at most {NEWEST} unsettled intents",
        f"""SELECT i.id::text AS id FROM {CLAIMED} i
        WHERE lease_no - (status = 'in_flight')::integer > (
            SELECT count(DISTINCT a.lease_no) FROM outbox.attempts a WHERE a.intent_id = i.id)""",
    ),
    Invariant(
        "settled_without_settlement",
        11,
        f"of the newest {NEWEST} settled intents",
        f"""SELECT i.id::text AS id FROM {_SETTLED} i
        WHERE (SELECT true FROM outbox.settlements s WHERE s.intent_id = i.id LIMIT 1) IS NULL""",
    ),
    Invariant(
        "time_ahead_of_the_clock",
        12,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i
        WHERE GREATEST(created_at, last_sent_at, settled_at)
            > outbox.clock() + %(clock_step_s)s * INTERVAL '1 second'""",
    ),
    Invariant(
        "beyond_all_bounds",
        14,
        SEEN,
        f"""SELECT i.id::text AS id FROM {OF_SEEN} i WHERE NOT {IS_SOUND}""",
    ),
    Invariant(
        "two_untold_twins",
        13,
        SEEN,
        f"""SELECT unnest(ids)::text AS id FROM (SELECT array_agg(id) AS ids FROM {OF_SEEN} i
            WHERE told_at IS NULL AND occurrence = 0 AND supersedes IS NULL
            GROUP BY fingerprint, tenant, vendor, account, run_id, tool HAVING count(*) > 1) t""",
    ),
    # What rightly waits is left out: by a closed gate, a rate, a lane, a veto, another release.
    Invariant(
        "due_and_not_sent",
        14,
        f"of at most {NEWEST} due intents",
        f"""SELECT i.id::text AS id FROM (SELECT * FROM outbox.intents
            WHERE status IN ('pending', 'retryable') AND settled_at IS NULL
            AND due_at < outbox.clock() - %(due_s)s * INTERVAL '1 second'
            ORDER BY due_at LIMIT {NEWEST}) i
        WHERE veto IS NULL AND contradicted_at IS NULL
        AND (vendor || '/' || account) = ANY(%(reached)s)
        AND (status = 'pending' OR window_ends_at > outbox.clock())
        AND NOT EXISTS (SELECT FROM outbox.switches s WHERE starts_with(i.gate, s.gate_prefix))
        AND NOT {SENDS_AS_IT_MAY}
        AND (i.lane IS NULL OR i.id = {head_of("i.lane")})""",
    ),
)

"""The one statement that records a batch of ended attempts."""

from __future__ import annotations

from typing import Any, LiteralString

_TYPES = {
    "id": "uuid",
    "version": "integer",
    "token": "uuid",
    "lease_no": "integer",
    "status": "text",
    "doubt": "integer",
    "settles": "boolean",
    "due_in_s": "float8",
    "not_sent": "integer",
    "local": "boolean",
    "veto": "text",
    "receipt_id": "text",
    "receipt": "text",
    "receipt_codec": "text",
    "business": "text",
    "word": "text",
    "vendor_time": "bigint",
    "failure_code": "text",
    "contradicts": "text",
    "settled_by": "text",
    "started_at": "timestamptz",
    "outcome": "text",
    "detail": "text",
    "http_status": "integer",
    "request_id": "text",
    "replayed": "boolean",
    "should_retry": "boolean",
}
_COLUMNS: Any = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())

RECORD: LiteralString = f"""
WITH ended AS (
    -- One parameter, which is written and read faster than an array for each column.
    SELECT * FROM json_to_recordset(%(ended)s) AS t ({_COLUMNS})
), locked AS (
    -- One by one in the order of their ids. A row in another transaction's hands, a caller's it may
    -- be, keeps no other one waiting.
    SELECT r.id FROM (SELECT id FROM ended ORDER BY id) e CROSS JOIN LATERAL (
        SELECT i.id FROM outbox.intents i WHERE i.id = e.id FOR NO KEY UPDATE SKIP LOCKED) r
), moved AS (
    UPDATE outbox.intents i SET
        version = i.version + 1,
        status = e.status,
        doubt = e.doubt,
        crashes = 0,
        veto = COALESCE(i.veto, e.veto, CASE WHEN e.contradicts IS NOT NULL
                                             THEN 'contradiction' END),
        contradicted_at = CASE WHEN e.contradicts IS NOT NULL
            THEN COALESCE(i.contradicted_at, outbox.clock()) ELSE i.contradicted_at END,
        resends = GREATEST(i.resends - e.not_sent, 0),
        lease_token = NULL, lease_until = NULL, lease_owner = NULL,
        last_lease_end = CASE WHEN e.status = 'pending' THEN i.last_lease_end
                              ELSE GREATEST(i.last_lease_end, i.lease_until) END,
        due_at = outbox.clock() + e.due_in_s * INTERVAL '1 second',
        not_sent_count = i.not_sent_count + e.not_sent,
        local_failure = e.local,
        first_sent_at = CASE WHEN e.status = 'pending' THEN NULL ELSE i.first_sent_at END,
        window_ends_at = CASE WHEN e.status = 'pending' THEN NULL ELSE i.window_ends_at END,
        ttl_at = CASE WHEN e.status = 'pending'
                      THEN i.created_at + i.ttl_s * INTERVAL '1 second' ELSE i.ttl_at END,
        escalate_at = CASE WHEN e.settles THEN NULL
                           WHEN e.doubt = 0 AND COALESCE(i.veto, e.veto) IS NOT NULL
                                AND i.contradicted_at IS NULL
                           THEN outbox.clock()  -- nothing was sent, and nothing ever will be
                           WHEN i.escalate_at IS NULL THEN NULL
                           WHEN e.status = 'pending'
                           THEN i.created_at + i.ttl_s * INTERVAL '1 second'
                           ELSE i.escalate_at END,
        receipt_id = e.receipt_id,
        receipt = e.receipt,
        receipt_codec = e.receipt_codec,
        business_status = e.business,
        business_word = e.word,
        business_vendor_time = COALESCE(e.vendor_time, 0),
        failure_code = e.failure_code,
        settled_by = CASE WHEN e.settles THEN e.settled_by END,
        settled_at = CASE WHEN e.settles THEN outbox.clock() END
    -- Joined first: for each row that is written, all of the batch would be read again.
    FROM (SELECT e.* FROM ended e JOIN locked l ON l.id = e.id OFFSET 0) e
    -- Of an array of one, and the status as an expression: the plan is made once, on an empty table
    -- it may be, and must not begin with all rows, or with all that are in flight or ever were.
    WHERE i.id = ANY(ARRAY[e.id])
        AND i.version = e.version AND i.lease_token = e.token AND i.status || '' = 'in_flight'
    RETURNING i.id, i.version, i.status, i.settled_at, i.settled_by, i.contradicted_at,
        i.business_status, i.business_word, i.receipt_id, i.failure_code
), logged AS (
    INSERT INTO outbox.attempts (intent_id, lease_no, started_at, ended_at, outcome, detail,
        http_status, vendor_request_id, replayed, should_retry, late)
    SELECT e.id, e.lease_no, e.started_at, outbox.clock(), e.outcome, e.detail, e.http_status,
        e.request_id, e.replayed, e.should_retry, m.id IS NULL
    FROM ended e JOIN locked l ON l.id = e.id LEFT JOIN moved m ON m.id = e.id
), settled AS (
    INSERT INTO outbox.settlements (intent_id, version, kind, status, told, business_status,
        business_word, receipt_id, failure_code, settled_by, at)
    SELECT m.id, m.version, 'settled', m.status,
        CASE WHEN k.told IS NULL THEN 'unknown'
             WHEN m.status = 'succeeded' THEN 'settled' ELSE 'failed' END,
        k.business_status, k.business_word, k.receipt_id, k.failure_code, m.settled_by, m.settled_at
    FROM moved m LEFT JOIN LATERAL (SELECT true AS told, m.business_status, m.business_word,
        m.receipt_id, m.failure_code WHERE m.contradicted_at IS NULL) k ON true
    WHERE m.settled_at IS NOT NULL RETURNING id
), delivered AS (
    INSERT INTO outbox.deliveries (consumer, settlement_id)
    SELECT c.name, s.id FROM settled s CROSS JOIN outbox.consumers c
)
SELECT l.id, m.id IS NOT NULL AS moved, COALESCE(m.settled_at IS NOT NULL AND EXISTS (
    SELECT FROM outbox.escalations x WHERE x.intent_id = m.id AND x.closed_at IS NULL), false)
    AS escalated
FROM locked l LEFT JOIN moved m ON m.id = l.id
"""

"""Recording outcomes in batches: one statement for whatever has finished.

Rows are locked in id order. A row whose compare-and-set fails was moved by evidence meanwhile:
its outcome is applied as late evidence in the same transaction. A batch that fails for any other
reason is repeated row by row, so that one bad row cannot lose its neighbours' receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, assert_never
from uuid import UUID

from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Refused, veto_of
from outbox.states import MAYBE_SENT, TERMINAL, Event, Facts, Status, transition
from outbox.store import escalations, settlements
from outbox.store.business import move_business
from outbox.store.connection import Transaction
from outbox.store.intents import Intent, lock
from outbox.store.moves import Change, apply, contradict, note


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt that ended. ``back_off_s`` is when a row that was not sent is due again;
    ``look_in_s`` when one that is in doubt shall be looked up. ``contradicts`` says in which way
    a receipt is not of what was asked for."""

    intent: Intent
    outcome: Outcome
    started_at: datetime | None = None
    back_off_s: float = 0.0
    look_in_s: float = 0.0
    contradicts: str = ""


def event_of(outcome: Outcome) -> Event:
    """The event that an outcome is to the state table."""
    match outcome:
        case Receipt():
            return Event.RECEIPT_FOUND
        case Refused():
            return Event.REFUSED
        case NotSent():
            return Event.NOT_SENT
        case Lost():
            return Event.LOST
        case _:
            assert_never(outcome)


def _detail(outcome: Outcome) -> str:
    match outcome:
        case Receipt(reading=reading):
            return reading.word
        case Refused(code=code):
            return code
        case NotSent(reason=reason) | Lost(reason=reason):
            return reason
        case _:
            assert_never(outcome)


def _values(ended: Ended) -> dict[str, Any]:
    """The row of the batch: what this outcome makes of an ``in_flight`` intent."""
    intent, outcome = ended.intent, ended.outcome
    covers = isinstance(outcome, Refused) and outcome.covers_key
    event = event_of(outcome)
    doubt = intent.doubt + (1 if event is Event.LOST else 0)
    verdict = transition(Status.IN_FLIGHT, event, Facts(doubt=doubt, covers_key=covers))
    reading = None
    if isinstance(outcome, Receipt) or (
        isinstance(outcome, Refused) and verdict.status is Status.FAILED_POISON
    ):
        reading = outcome.reading
    due_in_s = 0.0
    if verdict.status is Status.PENDING:
        due_in_s = ended.back_off_s
    elif verdict.status is Status.UNKNOWN:
        # A re-send that was proved not sent is approved again, at the pace of its back-off.
        not_sent = event is Event.NOT_SENT
        due_in_s = max(ended.look_in_s, ended.back_off_s if not_sent else 0.0)
    wire = outcome.wire
    return {
        "id": intent.id,
        "version": intent.version,
        "token": intent.lease_token,
        "lease_no": intent.lease_no,
        "status": verdict.status.value,
        "doubt": 0 if verdict.status is Status.SUCCEEDED else doubt,
        "settles": verdict.status in TERMINAL,
        "due_in_s": due_in_s,
        "not_sent": 1 if event is Event.NOT_SENT else 0,
        "veto": veto_of(outcome) or None,
        "receipt_id": reading.receipt_id if reading else None,
        "receipt": reading.document if reading else None,
        "business": reading.business.value if reading else None,
        "word": reading.word if reading else None,
        "vendor_time": reading.vendor_time if reading else 0,
        "failure_code": outcome.code if isinstance(outcome, Refused) else None,
        "contradicts": ended.contradicts or None,
        "settled_by": "replay" if wire.replayed else "reply",
        "started_at": ended.started_at,
        "outcome": event.value if event is not Event.RECEIPT_FOUND else "receipt",
        "detail": _detail(outcome)[:200],
        "http_status": wire.http_status,
        "request_id": wire.request_id[:200],
        "replayed": wire.replayed,
        "should_retry": wire.should_retry,
    }


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
    "veto": "text",
    "receipt_id": "text",
    "receipt": "text",
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
_UNNEST: Any = ", ".join(f"%({name})s::{kind}[]" for name, kind in _TYPES.items())
_NAMES: Any = ", ".join(_TYPES)

_RECORD: LiteralString = f"""
WITH ended AS (
    SELECT * FROM unnest({_UNNEST}) AS t ({_NAMES})
), locked AS (
    SELECT i.id FROM outbox.intents i WHERE i.id IN (SELECT id FROM ended)
    ORDER BY i.id FOR UPDATE
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
        business_status = e.business,
        business_word = e.word,
        business_vendor_time = COALESCE(e.vendor_time, 0),
        failure_code = e.failure_code,
        settled_by = CASE WHEN e.settles THEN e.settled_by END,
        settled_at = CASE WHEN e.settles THEN outbox.clock() END
    FROM ended e
    WHERE i.id = e.id AND i.id IN (SELECT id FROM locked)
        AND i.version = e.version AND i.lease_token = e.token AND i.status = 'in_flight'
    RETURNING i.*
), logged AS (
    INSERT INTO outbox.attempts (intent_id, lease_no, started_at, ended_at, outcome, detail,
        http_status, vendor_request_id, replayed, should_retry, late)
    SELECT e.id, e.lease_no, e.started_at, outbox.clock(), e.outcome, e.detail, e.http_status,
        e.request_id, e.replayed, e.should_retry, m.id IS NULL
    FROM ended e LEFT JOIN moved m ON m.id = e.id
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
SELECT m.id, m.settled_at IS NOT NULL AND EXISTS (
    SELECT FROM outbox.escalations x WHERE x.intent_id = m.id AND x.closed_at IS NULL) AS escalated
FROM moved m
"""


def record(tx: Transaction, batch: Sequence[Ended]) -> int:
    """Writes a batch of ended attempts; returns how many were late evidence."""
    if not batch:
        return 0
    settlements.lock_consumers(tx)
    rows = [_values(ended) for ended in batch]
    params = {name: [row[name] for row in rows] for name in _TYPES}
    moved = {row["id"]: row["escalated"] for row in tx.all(_RECORD, params)}
    for intent_id in sorted(i for i, escalated in moved.items() if escalated):
        _close_escalation(tx, intent_id)
    for ended in batch:
        if ended.contradicts and ended.intent.id in moved:
            _contradict(tx, ended)
    late = sorted((e for e in batch if e.intent.id not in moved), key=lambda e: e.intent.id)
    for ended in late:
        record_late(tx, ended)
    return len(late)


def _close_escalation(tx: Transaction, intent_id: UUID) -> None:
    row = lock(tx, intent_id)
    if row is not None:
        escalations.close_doubt(tx, row, by="sender")


def _contradict(tx: Transaction, ended: Ended) -> None:
    row = lock(tx, ended.intent.id)
    reading = ended.outcome.reading if isinstance(ended.outcome, Receipt) else None
    if row is not None and reading is not None:
        why = "the answer shows it"
        contradict(tx, row, ended.contradicts, [reading.receipt_id], why, found=[reading])


def _was_lost(tx: Transaction, intent: Intent) -> bool:
    """Whether this attempt was counted lost and this is its first answer. A batch whose commit
    was applied and whose reply was lost is recorded twice, and must count once."""
    row = tx.one(
        "SELECT count(*) FILTER (WHERE outcome IN ('lost', 'lease_expired')) AS lost, "
        "count(*) FILTER (WHERE outcome IN ('not_sent', 'refused', 'receipt')) AS answers "
        "FROM outbox.attempts WHERE intent_id = %(id)s AND lease_no = %(lease_no)s",
        {"id": intent.id, "lease_no": intent.lease_no},
    )
    # The answer at hand is in the log already.
    return bool(row and row["lost"] and row["answers"] == 1)


def record_late(tx: Transaction, ended: Ended) -> None:
    """An outcome whose lease was gone: evidence about one attempt that had been counted lost."""
    row = lock(tx, ended.intent.id)
    if row is None:
        return
    outcome = ended.outcome
    event = event_of(outcome)
    still_ours = row.lease_token is not None and row.lease_token == ended.intent.lease_token
    reading = outcome.reading if isinstance(outcome, Receipt | Refused) else None
    if event is Event.REFUSED and reading is not None and reading.receipt_id == row.receipt_id:
        # It landed, and then failed: the same object moved, which contradicts nothing.
        move_business(tx, row, reading, actor="sender", source="late answer")
        return
    covers = isinstance(outcome, Refused) and outcome.covers_key
    # The very object that a person has ruled on, or that settled the row, says nothing new.
    is_known = reading is not None and reading.receipt_id == row.receipt_id
    answered = event in (Event.NOT_SENT, Event.REFUSED) and _was_lost(tx, ended.intent)
    change = Change(
        actor="sender",
        reason="late answer",
        detail={"lease_no": ended.intent.lease_no, "detail": _detail(outcome)[:200]},
        reading=reading,
        covers_key=covers,
        answers_doubt=answered and row.state in MAYBE_SENT,
        adds_doubt=still_ours and event is Event.LOST,
        contradicts="" if is_known else ended.contradicts,
        resends=-1 if answered and event is Event.NOT_SENT else 0,
        failure_code=outcome.code if isinstance(outcome, Refused) else "",
        veto=veto_of(outcome),
        settled_by="late_reply",
        due_in_s=_due_in_s(ended, row, event, still_ours=still_ours),
    )
    next_is_in_the_air = row.state is Status.IN_FLIGHT and not still_ours
    if next_is_in_the_air and event is not Event.RECEIPT_FOUND and not covers:
        # Only what the vendor stored under the key says anything of the next attempt too.
        note(tx, row, event, change)
    else:
        apply(tx, row, event, change)


def _due_in_s(ended: Ended, row: Intent, event: Event, *, still_ours: bool) -> float | None:
    if still_ours:
        back_to_pending = event is Event.NOT_SENT and row.doubt == 0
        return ended.back_off_s if back_to_pending else ended.look_in_s
    return 0.0 if row.state is Status.UNKNOWN else None

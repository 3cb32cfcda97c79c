"""Recording outcomes in batches: one statement for whatever has finished.

Rows are locked in id order; one that another transaction has in hand is left for later. A row
whose compare-and-set fails was moved by evidence meanwhile: its outcome is applied as late evidence
in the same transaction. A batch that fails for any other reason is repeated row by row, so that one
bad row cannot lose its neighbours' receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from psycopg.types.json import Json

from outbox.codec import PLAIN_NAME, Codec, seal_text
from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Refused, veto_of
from outbox.states import MAYBE_SENT, TERMINAL, Event, Facts, Status, transition
from outbox.store import escalations, settlements
from outbox.store.business import move_business
from outbox.store.connection import Transaction
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent, lock
from outbox.store.moves import Change, apply, note, refusals
from outbox.store.records_sql import RECORD


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


def _is_unsent(ended: Ended) -> bool:
    """Whether it says that nothing is in doubt of an intent that was tried before: what becomes of
    it is then said by the earlier answers."""
    intent = ended.intent
    return isinstance(ended.outcome, NotSent) and intent.doubt == 0 and intent.attempts > 1


def _values(ended: Ended, codec: Codec, refused: str = "") -> dict[str, Any]:
    """The row of the batch, as JSON takes it: what this outcome makes of an ``in_flight`` intent
    that was ``refused`` with this code before."""
    intent, outcome = ended.intent, ended.outcome
    covers = isinstance(outcome, Refused) and outcome.covers_key
    event = event_of(outcome)
    doubt = intent.doubt + (1 if event is Event.LOST else 0)
    verdict = transition(Status.IN_FLIGHT, event, Facts(doubt, covers, refused=bool(refused)))
    reading = None
    if isinstance(outcome, Receipt) or (
        isinstance(outcome, Refused) and verdict.status is Status.FAILED_POISON
    ):
        reading = outcome.reading
    document, document_codec = None, PLAIN_NAME
    if reading is not None:
        document, document_codec = seal_text(
            codec, reading.document, "intents.receipt", str(intent.id)
        )
    wire = outcome.wire
    return {
        "id": str(intent.id),
        "version": intent.version,
        "token": str(intent.lease_token),
        "lease_no": intent.lease_no,
        "status": verdict.status.value,
        "doubt": 0 if verdict.status is Status.SUCCEEDED else doubt,
        "settles": verdict.status in TERMINAL,
        "due_in_s": _next_in_s(ended, event, verdict.status),
        "not_sent": 1 if event is Event.NOT_SENT else 0,
        "local": isinstance(outcome, NotSent) and outcome.local,
        "veto": veto_of(outcome) or None,
        "receipt_id": reading.receipt_id if reading else None,
        "receipt": document,
        "receipt_codec": document_codec,
        "business": reading.business.value if reading else None,
        "word": reading.word if reading else None,
        "vendor_time": reading.vendor_time if reading else 0,
        "failure_code": outcome.code if isinstance(outcome, Refused) else refused or None,
        "contradicts": ended.contradicts or None,
        "settled_by": "replay" if wire.replayed else "reply",
        "started_at": ended.started_at.isoformat() if ended.started_at else None,
        "outcome": event.value if event is not Event.RECEIPT_FOUND else "receipt",
        "detail": _detail(outcome)[:200],
        "http_status": wire.http_status,
        "request_id": wire.request_id[:200],
        "replayed": wire.replayed,
        "should_retry": wire.should_retry,
    }


def _next_in_s(ended: Ended, event: Event, status: Status) -> float:
    if status is Status.PENDING:
        return ended.back_off_s
    if status is not Status.UNKNOWN:
        return 0.0
    # A re-send that was proved not sent is approved again, at the pace of its back-off.
    return max(ended.look_in_s, ended.back_off_s if event is Event.NOT_SENT else 0.0)


@dataclass(frozen=True, slots=True)
class Recorded:
    """How many attempts were late evidence, and the intents of which nothing was written because
    another transaction has the row in hand: they are to be offered again."""

    late: int = 0
    held: frozenset[UUID] = frozenset()


def record(tx: Transaction, batch: Sequence[Ended]) -> Recorded:
    """Writes a batch of ended attempts, one of each intent."""
    if not batch:
        return Recorded()
    settlements.lock_consumers(tx)
    refused = refusals(tx, [ended.intent.id for ended in batch if _is_unsent(ended)])
    rows = [_values(ended, tx.codec, refused.get(ended.intent.id, "")) for ended in batch]
    seen = {row["id"]: row for row in tx.all(RECORD, {"ended": Json(rows)})}
    for intent_id in sorted(i for i, row in seen.items() if row["escalated"]):
        _close_escalation(tx, intent_id)
    for ended in batch:
        if ended.contradicts and ended.intent.id in seen and seen[ended.intent.id]["moved"]:
            _contradict(tx, ended)
    late = sorted(
        (e for e in batch if e.intent.id in seen and not seen[e.intent.id]["moved"]),
        key=lambda e: e.intent.id,
    )
    for ended in late:
        record_late(tx, ended)
    return Recorded(len(late), frozenset({e.intent.id for e in batch} - set(seen)))


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

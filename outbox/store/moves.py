"""``apply``: the single-row write of every transition outside the sender's batches.

Each write is compare-and-set on (id, version). Whoever gets nothing back was too late: stop, read
again, decide again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from outbox.codec import PLAIN_NAME, seal_text
from outbox.outcomes import Reading, Standing
from outbox.states import TERMINAL, Event, Facts, Status, Verdict, transition
from outbox.store import contradictions, escalations, settlements
from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent


class Moved(Exception):
    """Somebody else wrote the row first; nothing was changed by this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an event brings. Durations in seconds from the database's now.

    ``answers_doubt``: the event answers one attempt that was counted lost. ``confirmed_absent``
    sets doubt to 0 (two quiet look-ups found nothing). ``due_in_s`` is when the sender or the
    resolver shall look at the row again. ``contradicts`` names in which way an object of ours is
    not what was asked for: the row settles and is told as unknown until a person has ruled.
    """

    actor: str
    reason: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    reading: Reading | None = None
    covers_key: bool = False
    quiescent: bool = False
    answers_doubt: bool = False
    adds_doubt: bool = False
    confirmed_absent: bool = False
    failure_code: str = ""
    veto: str = ""
    settled_by: str = ""
    due_in_s: float | None = None
    resends: int = 0
    contradicts: str = ""


@dataclass(slots=True)
class Settled:
    """What follows when rows settle, for all that one transaction settles: a statement for each
    kind and not for each row. ``write`` ends it."""

    rows: list[Intent] = field(default_factory=list)
    by: list[str] = field(default_factory=list)
    logged: list[dict[str, Any]] = field(default_factory=list)

    def lock_consumers(self, tx: Transaction) -> None:
        """Once, before the first row is written."""
        if not self.rows:
            settlements.lock_consumers(tx)

    def write(self, tx: Transaction) -> None:
        """The events, the settlements, and the doubts that are closed by them."""
        if not self.rows:
            return
        log_all(tx, self.logged)
        settlements.write_all(tx, self.rows, "settled")
        for by in sorted(set(self.by)):
            theirs = [row for row, one in zip(self.rows, self.by, strict=True) if one == by]
            escalations.close_doubts(tx, theirs, by=by)


def apply(
    tx: Transaction,
    intent: Intent,
    event: Event,
    change: Change,
    *,
    together: Settled | None = None,
) -> tuple[Intent, Verdict]:
    """Moves or notes. Returns the row as written and what the table said. What follows where it
    settles without a contradiction is left to ``together``, where that is given.

    Raises ``Moved`` when the version is no longer the one that was read, and
    ``IllegalTransition`` for our own bugs.
    """
    doubt = _doubt(intent, change)
    refused = ""
    if event is Event.NOT_SENT and intent.attempts > 1 and doubt == 0:
        refused = refusals(tx, [intent.id]).get(intent.id, "")
        change = replace(change, failure_code=refused)
    verdict = transition(
        intent.state,
        event,
        Facts(
            doubt=doubt,
            covers_key=change.covers_key,
            same_object=_same_object(intent, change.reading),
            declined_object=_same_object(intent, change.reading) and _is_declined(change.reading),
            quiescent=change.quiescent,
            tried=intent.attempts > 0,
            refused=bool(refused),
        ),
    )
    if verdict.denied:
        return intent, verdict
    objects = [change.reading.receipt_id] if change.reading else []
    reason = change.contradicts or "contradiction"
    if change.contradicts or verdict.contradiction:
        ruled = contradictions.is_ruled(tx, intent, reason, objects)
        verdict = replace(verdict, contradiction=not ruled)
    settles = verdict.moved and verdict.status in TERMINAL and intent.state not in TERMINAL
    rules = verdict.moved and intent.state in TERMINAL
    plain = together if settles and not verdict.contradiction else None
    if settles or rules or verdict.contradiction:
        if plain is not None:
            plain.lock_consumers(tx)
        else:
            settlements.lock_consumers(tx)
    written = _write(tx, intent, change, verdict, doubt)
    if plain is not None:
        plain.rows.append(written)
        plain.by.append(change.actor)
        plain.logged.append(_event(intent, event, change, verdict))
        return written, verdict
    log_all(tx, [_event(intent, event, change, verdict)])
    if settles or rules:
        settlements.write(tx, written, "settled" if settles else "ruled")
    if settles and not verdict.contradiction:
        escalations.close_doubt(tx, written, by=change.actor)
    if verdict.contradiction:
        known = settles or intent.contradicted_at is not None
        found = [change.reading] if change.reading else []
        contradictions.put(tx, written, reason, objects, change.reason, told=known, found=found)
    return written, verdict


def refusals(tx: Transaction, intent_ids: Collection[UUID]) -> dict[UUID, str]:
    """Of each intent that the vendor has refused in an attempt, the code of the last refusal."""
    if not intent_ids:
        return {}
    rows = tx.all(
        "SELECT DISTINCT ON (intent_id) intent_id, detail FROM outbox.attempts "
        "WHERE intent_id = ANY(%(ids)s) AND outcome = 'refused' ORDER BY intent_id, id DESC",
        {"ids": list(intent_ids)},
    )
    return {row["intent_id"]: row["detail"] for row in rows}


def note(tx: Transaction, intent: Intent, event: Event, change: Change) -> Intent:
    """Keeps an event about an earlier attempt while another one is in flight: the lease is not its
    to end. Only what it answers is taken off the doubt. Raises ``Moved``."""
    verdict = Verdict(intent.state, moved=False)
    written = _write(tx, intent, change, verdict, _doubt(intent, change))
    log_all(tx, [_event(intent, event, change, verdict)])
    return written


def _doubt(intent: Intent, change: Change) -> int:
    if change.confirmed_absent:
        return 0
    doubt = intent.doubt + (1 if change.adds_doubt else 0)
    return max(doubt - 1, 0) if change.answers_doubt else doubt


def _same_object(intent: Intent, reading: Reading | None) -> bool:
    return reading is not None and intent.receipt_id == reading.receipt_id


def _is_declined(reading: Reading | None) -> bool:
    # The very object that was told as refused may be paid later: then money moved after all.
    return reading is not None and reading.standing is Standing.DECLINED


_UPDATE = f"""
UPDATE outbox.intents SET
    version = version + 1,
    status = %(status)s,
    doubt = %(doubt)s,
    veto = COALESCE(veto, %(veto)s),
    lease_token = CASE WHEN %(status)s = 'in_flight' THEN lease_token END,
    lease_until = CASE WHEN %(status)s = 'in_flight' THEN lease_until END,
    lease_owner = CASE WHEN %(status)s = 'in_flight' THEN lease_owner END,
    last_lease_end = CASE WHEN %(status)s IN ('in_flight', 'pending') THEN last_lease_end
                          ELSE GREATEST(last_lease_end, lease_until) END,
    resolver_token = CASE WHEN %(moved)s THEN NULL ELSE resolver_token END,
    resolver_until = CASE WHEN %(moved)s THEN NULL ELSE resolver_until END,
    due_at = CASE WHEN %(due_in_s)s::float8 IS NULL THEN due_at
                  ELSE outbox.clock() + %(due_in_s)s::float8 * INTERVAL '1 second' END,
    first_sent_at = CASE WHEN %(unsent)s THEN NULL ELSE first_sent_at END,
    window_ends_at = CASE WHEN %(unsent)s THEN NULL ELSE window_ends_at END,
    resends = GREATEST(resends + %(resends)s, 0),
    receipt_id = COALESCE(receipt_id, %(receipt_id)s),
    receipt = COALESCE(receipt, %(receipt)s),
    receipt_codec = CASE WHEN receipt IS NULL THEN %(receipt_codec)s ELSE receipt_codec END,
    business_status = COALESCE(%(business)s, business_status),
    business_word = COALESCE(%(word)s, business_word),
    business_vendor_time = GREATEST(business_vendor_time, %(vendor_time)s),
    failure_code = CASE WHEN %(status)s = 'succeeded' THEN NULL
                        WHEN %(settles)s THEN %(failure_code)s ELSE failure_code END,
    settled_by = CASE WHEN %(settles)s THEN %(settled_by)s ELSE settled_by END,
    settled_at = CASE WHEN %(settles)s THEN outbox.clock() ELSE settled_at END,
    escalate_at = CASE WHEN %(settles)s THEN NULL
                       WHEN %(doubt)s = 0 AND %(status)s IN ('pending', 'unknown')
                            AND COALESCE(veto, %(veto)s) IS NOT NULL
                            AND contradicted_at IS NULL AND NOT %(contradiction)s
                       THEN outbox.clock()  -- nothing was sent, and nothing ever will be
                       ELSE escalate_at END,
    contradicted_at = CASE WHEN %(contradiction)s THEN COALESCE(contradicted_at, outbox.clock())
                           ELSE contradicted_at END,
    retracted_at = CASE WHEN told_at IS NOT NULL AND (%(contradiction)s OR %(settles)s)
                        THEN outbox.clock() ELSE retracted_at END
WHERE id = %(id)s AND version = %(version)s
RETURNING {COLUMNS}
"""


def _write(tx: Transaction, intent: Intent, change: Change, verdict: Verdict, doubt: int) -> Intent:
    settles = verdict.moved and verdict.status in TERMINAL
    # A receipt is written only where the row ends with one; elsewhere the object is evidence.
    keeps = settles and change.reading is not None and verdict.status is not Status.CANCELLED
    reading = change.reading if keeps else None
    document, document_codec = None, PLAIN_NAME
    if reading is not None:
        document, document_codec = seal_text(
            tx.codec, reading.document, "intents.receipt", str(intent.id)
        )
    row = tx.one(
        _UPDATE,
        {
            "id": intent.id,
            "version": intent.version,
            "status": verdict.status.value,
            "moved": verdict.moved,
            "settles": settles,
            "contradiction": verdict.contradiction,
            "doubt": 0 if verdict.status is Status.SUCCEEDED and settles else doubt,
            "veto": change.veto or None,
            "due_in_s": change.due_in_s,
            "unsent": verdict.status is Status.PENDING and verdict.moved,
            "resends": change.resends,
            "receipt_id": reading.receipt_id if reading else None,
            "receipt": document,
            "receipt_codec": document_codec,
            "business": reading.business.value if reading else None,
            "word": reading.word if reading else None,
            "vendor_time": reading.vendor_time if reading else 0,
            "failure_code": change.failure_code or None,
            "settled_by": change.settled_by or change.actor,
        },
    )
    if row is None:
        raise Moved(str(intent.id))
    return as_intent(row, tx.codec)


def _event(intent: Intent, event: Event, change: Change, verdict: Verdict) -> dict[str, Any]:
    detail = dict(change.detail)
    if change.reading is not None:
        detail["object"] = change.reading.receipt_id
    return {
        "intent_id": intent.id,
        "actor": change.actor,
        "kind": event.value,
        "from_status": intent.status,
        "to_status": verdict.status.value,
        "reason": change.reason,
        "detail": detail,
    }


def log(tx: Transaction, *, kind: str, actor: str, **columns: Any) -> None:
    """One append-only row of who did what, when and why."""
    log_all(tx, [{"kind": kind, "actor": actor, **columns}])


def log_all(tx: Transaction, events: Sequence[Mapping[str, Any]]) -> None:
    """Such rows, in their order."""
    known = ("intent_id", "holder", "actor", "kind", "from_status", "to_status")
    columns = {name: [event.get(name) for event in events] for name in known}
    tx.run(
        "INSERT INTO outbox.events "
        "(intent_id, holder, at, actor, kind, from_status, to_status, reason, detail) "
        "SELECT n.intent_id, n.holder, outbox.clock(), n.actor, n.kind, n.from_status, "
        "n.to_status, n.reason, n.detail FROM unnest(%(intent_id)s::uuid[], %(holder)s::text[], "
        "%(actor)s::text[], %(kind)s::text[], %(from_status)s::text[], %(to_status)s::text[], "
        "%(reason)s::text[], %(detail)s::jsonb[]) WITH ORDINALITY AS n (intent_id, holder, actor, "
        "kind, from_status, to_status, reason, detail, place) ORDER BY n.place",
        {
            **columns,
            "reason": [event.get("reason", "") for event in events],
            "detail": [Jsonb(event.get("detail", {})) for event in events],
        },
    )

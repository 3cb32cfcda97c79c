"""One question as a person sees it: the intent, its escalation, and what a ruling came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.errors import Ambiguous, Denied, Invalid, NotFound
from outbox.store import intents, reading, rulings
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent


@dataclass(frozen=True, slots=True)
class Case:
    """What was read when the person was asked; a ruling is refused if it has changed since.

    ``escalation`` is the newest one of the intent (open ones first), or the holder's.
    """

    intent: Intent | None
    escalation: dict[str, Any] | None = field(repr=False)
    now: datetime

    @property
    def asked(self) -> Intent:
        """The intent in question. Raises ``Denied`` for a question about a holder."""
        if self.intent is None:
            holder = self.escalation["holder"] if self.escalation else ""
            raise Denied(
                "not_an_intent", f"this escalation is about {holder} and not about one intent"
            )
        return self.intent

    @property
    def is_contradicted(self) -> bool:
        """Whether a contradiction waits for a person's ruling."""
        return self.intent is not None and self.intent.contradicted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a verb came to. ``changed`` is False for a repeat and for a dry run; ``said`` is the
    sentence for the person; ``becomes`` the status that a dry run's verb would leave, by the table
    of states."""

    verb: str
    said: str
    changed: bool
    dry_run: bool = False
    intent_id: UUID | None = None
    escalation_id: UUID | None = None
    holder: str | None = None
    status: str | None = None
    becomes: str | None = None
    receipt_id: str | None = None
    until: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; times in ISO 8601."""
        body: dict[str, Any] = {
            "verb": self.verb,
            "changed": self.changed,
            "dry_run": self.dry_run,
            "said": self.said,
        }
        for name in ("intent_id", "escalation_id", "holder", "status", "becomes", "receipt_id"):
            value = getattr(self, name)
            if value is not None:
                body[name] = str(value)
        if self.until is not None:
            body["until"] = self.until.isoformat()
        return body


def read_case(store: Store, reference: str | UUID) -> Case:
    """The case of an escalation or an intent, by id or unique prefix of at least 6 hex digits.

    Raises ``Invalid``, ``NotFound`` or ``Ambiguous`` with the candidates.
    """
    with store.transaction() as tx:
        return _read(tx, str(reference))


def read_intent_case(store: Store, reference: str | UUID) -> Case:
    """The case of an intent, by the intent's id or prefix only."""
    with store.transaction() as tx:
        found = intents.expand(tx, "intent", str(reference))
        row = intents.read(tx, found)
        return Case(row, reading.escalation_of(tx, found), intents.now(tx))


def _read(tx: Transaction, reference: str) -> Case:
    escalation_id, intent_id = _expand(tx, reference)
    if escalation_id is not None:
        escalation = reading.escalation(tx, escalation_id)
        assert escalation is not None
        about = escalation["intent_id"]
        row = intents.read(tx, about) if about is not None else None
        return Case(row, escalation, intents.now(tx))
    assert intent_id is not None
    row = intents.read(tx, intent_id)
    return Case(row, reading.escalation_of(tx, intent_id), intents.now(tx))


def _expand(tx: Transaction, reference: str) -> tuple[UUID | None, UUID | None]:
    found: dict[str, UUID] = {}
    candidates: list[str] = []
    for table in ("escalations", "intents"):
        try:
            found[table] = intents.expand(tx, "id", reference, table=table)
        except Ambiguous as error:
            candidates += error.candidates
        except NotFound:
            continue
    every = [*candidates, *(str(i) for i in found.values())]
    if len(every) > 1:
        raise Ambiguous("id", f"{reference} names more than one", tuple(every))
    if not every:
        raise NotFound("id", f"no escalation and no intent has the id {reference}")
    return found.get("escalations"), found.get("intents")


def said_by(by: str, reason: str) -> tuple[str, str]:
    """Who rules and why; both must be said, and are shown to the next operator as they are."""
    by, reason = by.strip(), reason.strip()
    if not by:
        raise Invalid("OUTBOX_ACTOR", "must name who decides")
    if not reason:
        raise Invalid("reason", "must say why")
    for name, text in (("OUTBOX_ACTOR", by), ("reason", reason)):
        if not text.isprintable():
            raise Invalid(name, "must be printable text on one line")
    return by, reason


def lock_unmoved(tx: Transaction, seen: Intent, *, dry_run: bool = False) -> Intent:
    """The row, locked (a dry run only reads it), if nothing that the person judged has changed
    since it was read. A look-up or a page in between is no change. Raises ``Denied`` naming who
    decided, and when."""
    row = intents.read(tx, seen.id) if dry_run else intents.lock(tx, seen.id)
    if row is None:
        raise NotFound("id", f"no intent has the id {seen.id}")
    if _judged(row) != _judged(seen):
        raise Denied("decided", f"this was decided meanwhile: {decided(tx, row)}")
    return row


def _judged(row: Intent) -> tuple[Any, ...]:
    return (
        row.status,
        row.doubt,
        row.receipt_id,
        row.contradicted_at,
        row.veto,
        row.lease_no,
        row.first_sent_at,
        row.settled_at,
    )


def decided(tx: Transaction, row: Intent) -> str:
    """Who moved the intent to where it is, and when, in words."""
    last = rulings.last_decision(tx, row.id)
    if last is None or (row.settled_at is not None and last["at"] < row.settled_at):
        if row.settled_at is None:
            return f"it is {row.status}"
        return f"{row.status} by {row.settled_by} at {moment(row.settled_at)}"
    why = f" ({last['reason']})" if last["reason"] else ""
    return f"{last['kind']} by {last['actor']} at {moment(last['at'])}{why}; it is {row.status}"


def moment(at: datetime) -> str:
    """A time as people and scripts read it: UTC, whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%S") + "Z" if _is_utc(at) else at.isoformat("T", "seconds")


def _is_utc(at: datetime) -> bool:
    offset = at.utcoffset()
    return offset is not None and not offset

"""Answers and settlements: what the ledger knows, in the words an agent may be told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.states import Status, Told, told


@dataclass(frozen=True, slots=True)
class Answer:
    """What the ledger knows of an intent, in the words an agent may be told.

    ``told`` is one of accepted, unknown, awaiting_approval, settled, failed, cancelled;
    ``next`` the complete instruction that goes with it. ``deduplicated`` says that an earlier
    enqueue had recorded it (at ``recorded_at``), ``notes`` what differed and was not used.
    """

    intent_id: UUID
    told: str
    status: str
    next: str
    tool: str = ""
    deduplicated: bool = False
    recorded_at: datetime | None = None
    business_status: str | None = None
    receipt_id: str | None = None
    failure_code: str | None = None
    notes: tuple[str, ...] = ()
    xid: str = field(default="", repr=False)

    def as_json(self) -> dict[str, Any]:
        """A JSON object for an agent's tool result."""
        body: dict[str, Any] = {
            "state": self.told,
            "intent_id": str(self.intent_id),
            "deduplicated": self.deduplicated,
            "next": self.next,
        }
        for name in ("business_status", "receipt_id", "failure_code"):
            if getattr(self, name) is not None:
                body[name] = getattr(self, name)
        return body


@dataclass(frozen=True, slots=True)
class Settlement:
    """One result, handed to one consumer once: a terminal status, a move of the business status,
    a contradiction, or a person's ruling (``kind``)."""

    id: int
    intent_id: UUID
    kind: str
    status: str
    told: str
    business_status: str | None
    business_word: str | None
    receipt_id: str | None
    failure_code: str | None
    settled_by: str | None
    at: datetime
    tenant: str
    vendor: str
    account: str
    tool: str
    run_id: str
    epoch: str
    identity: Mapping[str, Any] = field(repr=False)
    guard: Mapping[str, Any] = field(repr=False)
    amount_minor: int | None = None
    currency: str | None = None


_NEXT = {
    Told.ACCEPTED: "recorded; do not call {tool} again for this; ask again with this intent_id",
    Told.UNKNOWN: "the outcome is not known yet; do NOT retry; ask again with this intent_id",
    Told.AWAITING_APPROVAL: "a person must approve it; do not retry; ask again with this intent_id",
    Told.SETTLED: "done; use the receipt",
    Told.FAILED: "refused and nothing was applied; correct the cause before a new request",
    Told.CANCELLED: "withdrawn; it will not be sent",
}


def differing(recorded: str, given: str) -> tuple[str, ...]:
    """The names of fields whose values differ between two canonical objects."""
    first, second = json.loads(recorded), json.loads(given)
    names = {**first, **second}
    return tuple(sorted(n for n in names if first.get(n, _MISSING) != second.get(n, _MISSING)))


_MISSING = object()
_NEW = Status.PENDING
_NEW_WORD = told(_NEW, doubt=0)


def recorded_now(row: Mapping[str, Any], tool: str, at: datetime, notes: tuple[str, ...]) -> Answer:
    """The answer of an intent that was not there before, and that nobody has seen yet."""
    return Answer(
        intent_id=_id_of(row),
        told=_NEW_WORD.value,
        status=_NEW.value,
        next=_NEXT[_NEW_WORD].format(tool=tool),
        tool=tool,
        recorded_at=at,
        notes=notes,
        xid=row["xid"],
    )


def answer_of(
    row: Mapping[str, Any], *, deduplicated: bool = False, notes: Sequence[str] = ()
) -> Answer:
    """The answer that a row stands for; receipts only where the outcome is decided."""
    word = told(
        Status(row["status"]), row["doubt"], contradicted=row["contradicted_at"] is not None
    )
    settled = word in (Told.SETTLED, Told.FAILED)
    return Answer(
        intent_id=_id_of(row),
        told=word.value,
        status=row["status"],
        next=_NEXT[word].format(tool=row["tool"]),
        tool=row["tool"],
        deduplicated=deduplicated,
        recorded_at=row["created_at"],
        business_status=row["business_status"] if settled else None,
        receipt_id=row["receipt_id"] if settled else None,
        failure_code=row["failure_code"] if settled else None,
        notes=tuple(notes),
        xid=row.get("xid") or "",
    )


def _id_of(row: Mapping[str, Any]) -> UUID:
    """As most drivers read it, or as another one does."""
    id_ = row["id"]
    return id_ if type(id_) is UUID else UUID(str(id_))


def not_seen(intent_id: UUID) -> Answer:
    """The answer where no row could be read in time."""
    # The row may be uncommitted, or the database away: either way nothing may be said to be done.
    return Answer(
        intent_id=intent_id,
        told=Told.UNKNOWN.value,
        status="not_seen",
        next=(
            "the ledger could not be read, or your transaction has not committed yet; "
            "do NOT retry; ask again with this intent_id"
        ),
    )


def settlement_of(row: Mapping[str, Any]) -> Settlement:
    """A delivered row as the consumer gets it."""
    values = {name: row[name] for name in Settlement.__dataclass_fields__}
    values["identity"] = json.loads(row["identity"])
    values["guard"] = json.loads(row["guard"])
    values["intent_id"] = UUID(str(row["intent_id"]))
    return Settlement(**values)

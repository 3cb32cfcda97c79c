"""The one table that decides a status: who may move an intent, and where to.

A cell is a move to a status, ``n`` (note: kept as evidence), ``c`` (note and contradiction),
``d`` (denied to the operator) or ``b`` (our bug: ``IllegalTransition``). Nothing else in the
product assigns a status; SQL that moves a batch repeats a row of this table and is held to it by
compare-and-set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class Status(StrEnum):
    """What the ledger knows of an intent. See ``TOLD`` for what its caller hears."""

    AWAITING_APPROVAL = "awaiting_approval"  # a person must allow it first
    PENDING = "pending"  # recorded; every attempt so far is proved not sent
    IN_FLIGHT = "in_flight"  # a consumer holds the lease; bytes may leave at any moment
    UNKNOWN = "unknown"  # maybe sent; outcome not seen
    RETRYABLE = "retryable"  # the resolver approved a re-send under the same key
    SUCCEEDED = "succeeded"  # landed: the vendor's receipt is stored
    FAILED_POISON = "failed_poison"  # refused; nothing applied
    CANCELLED = "cancelled"  # withdrawn before any send


class Event(StrEnum):
    """What can happen to an intent; past tense, from the sender, the resolvers or a person."""

    CLAIMED = "claimed"
    NOT_SENT = "not_sent"
    LOST = "lost"
    LEASE_EXPIRED = "lease_expired"
    REFUSED = "refused"
    RECEIPT_FOUND = "receipt_found"
    RESEND_APPROVED = "resend_approved"
    RESEND_WITHDRAWN = "resend_withdrawn"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RULED_LANDED = "ruled_landed"
    RULED_NOT_LANDED = "ruled_not_landed"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED_POISON, Status.CANCELLED})
UNSETTLED = frozenset(Status) - TERMINAL
MAYBE_SENT = frozenset({Status.IN_FLIGHT, Status.UNKNOWN, Status.RETRYABLE})


class IllegalTransition(Exception):
    """Our bug: this event cannot happen to a row of this status."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditional cells ask. ``doubt`` counts attempts claimed and never answered,
    the live one not included; ``tried`` says that there was any attempt, however it ended, and
    ``refused`` that the vendor has refused one and left nothing under the key."""

    doubt: int = 0
    covers_key: bool = False
    same_object: bool = False
    declined_object: bool = False
    quiescent: bool = False
    tried: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a cell came to: the status after the event, and what must be written beside it."""

    status: Status
    moved: bool
    contradiction: bool = False
    denied: bool = False


_NOT_SENT = "pending, failed_poison if refused before, if doubt = 0, else unknown"
_LATE_NOT_SENT = "failed_poison if doubt becomes 0 and refused before, else n"
_POISON_OR_UNKNOWN = "failed_poison if doubt = 0 or covers_key, else unknown"
_POISON_OR_NOTE = "failed_poison if doubt becomes 0 or covers_key, else n"
_POISON_IF_QUIET = "failed_poison after quiescence, else d"
_CONTRADICTION_IF_COVERED = "n; c if covers_key"
_NOTE_IF_SAME = "n if the same object, else c"
_CONTRADICTION_UNLESS_DECLINED = "c, unless the same declined object"
_SUCCEEDED_AND_CONTRADICTION = "succeeded + c"
_CONTRADICTION_IF_NEVER_TRIED = "succeeded; + c if never tried"

_COLUMNS = (
    (Event.CLAIMED,),
    (Event.NOT_SENT,),
    (Event.LOST, Event.LEASE_EXPIRED),
    (Event.REFUSED,),
    (Event.RECEIPT_FOUND,),
    (Event.RESEND_APPROVED,),
    (Event.RESEND_WITHDRAWN,),
    (Event.APPROVED,),
    (Event.REJECTED, Event.EXPIRED),
    (Event.CANCELLED,),
    (Event.RULED_LANDED,),
    (Event.RULED_NOT_LANDED,),
)

# fmt: off
_ROWS: dict[Status, tuple[str, ...]] = {
    Status.AWAITING_APPROVAL: (
        "b", "b", "b", "b", _SUCCEEDED_AND_CONTRADICTION, "b", "b",
        "pending", "cancelled", "cancelled", "d", "d"),
    Status.PENDING: (
        "in_flight", "n", "n", "n", _CONTRADICTION_IF_NEVER_TRIED, "b", "b",
        "d", "d", "cancelled", "d", "d"),
    Status.IN_FLIGHT: (
        "b", _NOT_SENT, "unknown", _POISON_OR_UNKNOWN, "succeeded", "b", "b",
        "d", "d", "d", "d", "d"),
    Status.UNKNOWN: (
        "b", _LATE_NOT_SENT, "n", _POISON_OR_NOTE, "succeeded", "retryable", "n",
        "d", "d", "d", "succeeded", _POISON_IF_QUIET),
    Status.RETRYABLE: (
        "in_flight", _LATE_NOT_SENT, "n", _POISON_OR_NOTE, "succeeded", "n", "unknown",
        "d", "d", "d", "succeeded", _POISON_IF_QUIET),
    Status.SUCCEEDED: (
        "b", "n", "n", _CONTRADICTION_IF_COVERED, _NOTE_IF_SAME, "n", "n",
        "d", "d", "d", "n", "d"),
    Status.FAILED_POISON: (
        "b", "n", "n", "n", _CONTRADICTION_UNLESS_DECLINED, "n", "n",
        "d", "d", "d", "succeeded", "n"),
    Status.CANCELLED: (
        "b", "n", "n", "n", "c", "b", "n",
        "d", "d", "n", "succeeded", "n"),
}
# fmt: on

TABLE: dict[tuple[Status, Event], str] = {
    (status, event): cell
    for status, row in _ROWS.items()
    for column, cell in zip(_COLUMNS, row, strict=True)
    for event in column
}


_WORDS = frozenset(status.value for status in Status)


def transition(status: Status, event: Event, facts: Facts = Facts()) -> Verdict:
    """What ``event`` does to a row of ``status``. Raises ``IllegalTransition`` for a ``b`` cell.

    ``facts.doubt`` is the doubt that remains once the event has been counted: a refusal or a
    not-sent report that answers an earlier attempt is passed with that attempt already taken off.
    """
    cell = TABLE[status, event]
    if cell == "b":
        raise IllegalTransition(f"{event} cannot happen to an intent that is {status}")
    if cell == "n":
        return Verdict(status, moved=False)
    if cell == "d":
        return Verdict(status, moved=False, denied=True)
    if cell == "c":
        return Verdict(status, moved=False, contradiction=True)
    if cell == _SUCCEEDED_AND_CONTRADICTION:
        return Verdict(Status.SUCCEEDED, moved=True, contradiction=True)
    if cell == _CONTRADICTION_IF_NEVER_TRIED:
        return Verdict(Status.SUCCEEDED, moved=True, contradiction=not facts.tried)
    if cell in _WORDS:
        return Verdict(Status(cell), moved=True)
    return _conditional(status, cell, facts)


def _conditional(status: Status, cell: str, facts: Facts) -> Verdict:
    settles = facts.doubt == 0 or facts.covers_key
    if cell == _NOT_SENT:
        return Verdict(Status.UNKNOWN if facts.doubt else _unsent(facts), moved=True)
    if cell == _LATE_NOT_SENT:
        ends = facts.doubt == 0 and facts.refused
        return Verdict(Status.FAILED_POISON if ends else status, moved=ends)
    if cell == _POISON_OR_UNKNOWN:
        return Verdict(Status.FAILED_POISON if settles else Status.UNKNOWN, moved=True)
    if cell == _POISON_OR_NOTE:
        return Verdict(Status.FAILED_POISON if settles else status, moved=settles)
    if cell == _POISON_IF_QUIET:
        return Verdict(
            Status.FAILED_POISON if facts.quiescent else status,
            moved=facts.quiescent,
            denied=not facts.quiescent,
        )
    if cell == _CONTRADICTION_IF_COVERED:
        return Verdict(status, moved=False, contradiction=facts.covers_key)
    if cell == _NOTE_IF_SAME:
        return Verdict(status, moved=False, contradiction=not facts.same_object)
    if cell == _CONTRADICTION_UNLESS_DECLINED:
        return Verdict(status, moved=False, contradiction=not facts.declined_object)
    raise AssertionError(f"a cell without a meaning: {cell}")


def _unsent(facts: Facts) -> Status:
    # Answers come in any order, and the last of them decides by all that were given.
    return Status.FAILED_POISON if facts.refused else Status.PENDING


class Told(StrEnum):
    """The words that an agent hears; an answer never says failed where it means unknown."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    AWAITING_APPROVAL = "awaiting_approval"
    SETTLED = "settled"
    FAILED = "failed"
    CANCELLED = "cancelled"


def told(status: Status, doubt: int, *, contradicted: bool = False) -> Told:
    """What the caller is told. An open contradiction is told as unknown until a person ruled."""
    if contradicted:
        return Told.UNKNOWN
    match status:
        case Status.AWAITING_APPROVAL:
            return Told.AWAITING_APPROVAL
        case Status.PENDING:
            return Told.ACCEPTED
        case Status.IN_FLIGHT:
            return Told.ACCEPTED if doubt == 0 else Told.UNKNOWN
        case Status.UNKNOWN | Status.RETRYABLE:
            return Told.UNKNOWN
        case Status.SUCCEEDED:
            return Told.SETTLED
        case Status.FAILED_POISON:
            return Told.FAILED
        case Status.CANCELLED:
            return Told.CANCELLED
        case _:
            assert_never(status)

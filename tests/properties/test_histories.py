"""The table of states over arbitrary histories: what a row's whole past allows it to be now.

The table's cells are held to the design one by one elsewhere; here a bookkeeper that knows what
became of each attempt follows any sequence of events, possible or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given

from outbox.states import (
    MAYBE_SENT,
    TERMINAL,
    Event,
    Facts,
    IllegalTransition,
    Status,
    Told,
    Verdict,
    told,
    transition,
)
from tests.properties.picks import Picks, picked
from tests.properties.profiles import bounded

_ENDS_OF_LEASES = frozenset({Event.NOT_SENT, Event.LOST, Event.LEASE_EXPIRED, Event.REFUSED})
_BY_A_PERSON = frozenset({Event.RULED_LANDED, Event.RULED_NOT_LANDED})
_RULED_OR_SEEN = _BY_A_PERSON | {Event.RECEIPT_FOUND}


@dataclass
class Row:
    """A row as the store keeps it, and the bookkeeper's own account of each attempt."""

    status: Status
    doubt: int = 0
    contradicted: bool = False
    lost: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    claims: int = 0
    covered: bool = False
    refused: bool = False

    @property
    def open_doubts(self) -> int:
        """Attempts that were lost and never answered by themselves."""
        return len(self.lost - self.answered)


@dataclass(frozen=True)
class Step:
    """An event and what is true about it: which earlier attempt it answers, if any."""

    event: Event
    covers_key: bool
    same_object: bool
    declined: bool
    quiescent: bool
    of: int


_STEPS = 20
# What leads on is said more often than what is refused or noted.
_OFTEN = [
    Event.CLAIMED,
    Event.CLAIMED,
    Event.CLAIMED,
    Event.LOST,
    Event.NOT_SENT,
    Event.RESEND_APPROVED,
    Event.RESEND_APPROVED,
]


def _step(picks: Picks) -> Step:
    return Step(
        event=picks.of([*_OFTEN, *Event]),
        covers_key=picks.of([False, False, True]),
        same_object=picks.flag(),
        declined=picks.flag(),
        quiescent=picks.flag(),
        of=picks.of(range(4)),
    )


def _history(picks: Picks) -> tuple[Status, list[Step]]:
    first = picks.of([Status.PENDING, Status.AWAITING_APPROVAL])
    return first, [_step(picks) for _ in range(_STEPS)]


HISTORIES = picked(_history, 1 + 6 * _STEPS)


def take(row: Row, step: Step) -> Verdict | None:
    """Lets the event happen to the row as the store does; None where it cannot happen."""
    live = row.status is Status.IN_FLIGHT
    doubt, lost, answered = row.doubt, set(row.lost), set(row.answered)
    if step.event in (Event.LOST, Event.LEASE_EXPIRED) and live:
        lost.add(row.claims)
        doubt += 1
    elif step.event in (Event.NOT_SENT, Event.REFUSED):
        # The live attempt's own answer, or a late one of an attempt that had been counted lost.
        number = row.claims if live else 1 + step.of % max(row.claims, 1)
        if not live and number in lost - answered:
            doubt -= 1
        answered |= {number} if row.claims else set()
    facts = Facts(
        doubt=doubt,
        covers_key=step.covers_key,
        same_object=step.same_object,
        declined_object=step.same_object and step.declined,
        quiescent=step.quiescent,
        tried=row.claims > 0,
        refused=row.refused,
    )
    try:
        verdict = transition(row.status, step.event, facts)
    except IllegalTransition:
        return None
    if verdict.denied:
        return verdict
    row.lost, row.answered = lost, answered
    row.claims += step.event is Event.CLAIMED
    settled = verdict.moved and verdict.status is Status.SUCCEEDED
    row.doubt = 0 if settled else doubt
    row.contradicted = row.contradicted or verdict.contradiction
    row.refused = row.refused or (step.event is Event.REFUSED and row.claims > 0)
    row.covered = row.covered or (step.event is Event.REFUSED and step.covers_key)
    row.status = verdict.status
    return verdict


def check(before: Row, step: Step, verdict: Verdict | None, row: Row) -> None:
    """What one step may have done to a row with that past."""
    moved_to = row.status if row.status is not before.status else None
    if verdict is None or verdict.denied:
        assert (row.status, row.doubt) == (before.status, before.doubt)
        return
    # Rule 10: an end is an end, but for a person who says that it landed after all.
    if before.status in TERMINAL and moved_to is not None:
        assert (step.event, moved_to) == (Event.RULED_LANDED, Status.SUCCEEDED)
        assert before.status is not Status.SUCCEEDED
    # Rule 6: doubt falls by an answer or by evidence that settles, never by itself.
    if row.doubt < before.doubt:
        assert step.event in (Event.NOT_SENT, Event.REFUSED, *_RULED_OR_SEEN)
    if before.doubt > 0 and moved_to in TERMINAL:
        covers = step.event is Event.REFUSED and step.covers_key
        answers_all = covers or (row.refused and row.open_doubts == 0)
        assert step.event in _RULED_OR_SEEN or answers_all
    # Rule 7: what was lost is never told as failed by that.
    if step.event in (Event.LOST, Event.LEASE_EXPIRED):
        assert moved_to is not Status.FAILED_POISON
    if moved_to is Status.SUCCEEDED:
        assert step.event in (Event.RECEIPT_FOUND, Event.RULED_LANDED)
    if moved_to is Status.CANCELLED:
        assert before.status in (Status.AWAITING_APPROVAL, Status.PENDING)
        assert not before.open_doubts
    # Rules 4 and 8: only what is free and due is claimed, and never what has ended.
    if step.event is Event.CLAIMED:
        assert before.status in (Status.PENDING, Status.RETRYABLE)
        assert moved_to is Status.IN_FLIGHT


def standing(row: Row) -> None:
    """What must be true of any row, whatever happened to it."""
    if row.status not in TERMINAL:
        assert row.doubt == row.open_doubts
    if row.status in (Status.PENDING, Status.AWAITING_APPROVAL):
        assert row.open_doubts == 0
        assert row.claims == 0 or row.claims in row.answered
    if row.status in (Status.UNKNOWN, Status.RETRYABLE):
        assert row.claims > 0
    if row.status is Status.AWAITING_APPROVAL:
        assert row.claims == 0
    word = told(row.status, row.doubt, contradicted=row.contradicted)
    if row.open_doubts and row.status in MAYBE_SENT:
        assert word is Told.UNKNOWN, "no word but unknown while something may have landed"
    if word is Told.FAILED:
        assert row.status is Status.FAILED_POISON
    if row.contradicted:
        assert word is Told.UNKNOWN


@given(HISTORIES)
@bounded(400)
def test_whatever_happens_a_row_is_what_its_past_allows(history: tuple[Status, list[Step]]) -> None:
    first, steps = history
    row = Row(first)
    for step in steps:
        before = Row(**{**row.__dict__, "lost": set(row.lost), "answered": set(row.answered)})
        check(before, step, take(row, step), row)
        standing(row)


@given(HISTORIES)
@bounded(150)
def test_without_a_person_and_without_an_object_nothing_is_ever_told_as_landed(
    history: tuple[Status, list[Step]],
) -> None:
    first, steps = history
    row = Row(first)
    for step in steps:
        if step.event not in _RULED_OR_SEEN:
            take(row, step)
    assert row.status is not Status.SUCCEEDED
    assert row.status is not Status.FAILED_POISON or row.covered or row.open_doubts == 0


@given(HISTORIES)
@bounded(150)
def test_whatever_is_not_settled_can_still_be_settled(
    history: tuple[Status, list[Step]],
) -> None:
    """No history leads where no evidence helps any more."""
    row = Row(Status.PENDING)
    for step in history[1]:
        take(row, step)
    if row.status not in TERMINAL:
        seen = transition(row.status, Event.RECEIPT_FOUND, Facts(doubt=row.doubt))
        assert seen.status is Status.SUCCEEDED
        # And a person can end it, once nothing is in the air.
        if row.status is not Status.IN_FLIGHT:
            event = Event.CANCELLED if row.status is Status.PENDING else Event.RULED_NOT_LANDED
            ended = transition(row.status, event, Facts(doubt=row.doubt, quiescent=True))
            assert ended.status in TERMINAL

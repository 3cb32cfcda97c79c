"""The state table is the design's, cell by cell; it is total, and its ends are sticky."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.states import (
    MAYBE_SENT,
    TABLE,
    TERMINAL,
    UNSETTLED,
    Event,
    Facts,
    IllegalTransition,
    Status,
    Told,
    Verdict,
    told,
    transition,
)

# The table as it was designed, by hand ("as unknown" repeats the cell of that row), with the
# cells that were changed since: README, Decisions.
DESIGN = """
| status \\ event | claimed | not_sent | lost, lease_expired | refused | receipt_found | resend_approved | resend_withdrawn | approved | rejected, expired | cancelled | ruled_landed | ruled_not_landed |
| awaiting_approval | b | b | b | b | succeeded + c | b | b | pending | cancelled | cancelled | d | d |
| pending | in_flight | n | n | n | succeeded; + c if never tried | b | b | d | d | cancelled | d | d |
| in_flight | b | pending, failed_poison if refused before, if doubt = 0, else unknown | unknown | failed_poison if doubt = 0 or covers_key, else unknown | succeeded | b | b | d | d | d | d | d |
| unknown | b | failed_poison if doubt becomes 0 and refused before, else n | n | failed_poison if doubt becomes 0 or covers_key, else n | succeeded | retryable | n | d | d | d | succeeded | failed_poison after quiescence, else d |
| retryable | in_flight | as unknown | n | as unknown | succeeded | n | unknown | d | d | d | succeeded | as unknown |
| succeeded | b | n | n | n; c if covers_key | n if the same object, else c | n | n | d | d | d | n | d |
| failed_poison | b | n | n | n | c, unless the same declined object | n | n | d | d | d | succeeded | n |
| cancelled | b | n | n | n | c | b | n | d | d | n | succeeded | n |
"""  # noqa: E501 - the lines are the design's own

FACTS = [
    Facts(doubt, *flags)
    for doubt, flags in itertools.product((0, 1, 2), itertools.product((False, True), repeat=6))
]
PAIRS = list(itertools.product(Status, Event))


def design() -> dict[tuple[Status, Event], str]:
    head, *lines = [line.strip("| ").split(" | ") for line in DESIGN.strip().splitlines()]
    columns = [[Event(name) for name in names.split(", ")] for names in head[1:]]
    by_status = {Status(line[0]): line[1:] for line in lines}
    cells: dict[tuple[Status, Event], str] = {}
    for status, row in by_status.items():
        for position, cell in enumerate(row):
            said = by_status[Status.UNKNOWN][position] if cell == "as unknown" else cell
            for event in columns[position]:
                cells[status, event] = said
    return cells


def test_the_table_is_the_designs_cell_by_cell() -> None:
    # How a note counts doubt is the store's affair: the row gets the doubt that remains.
    assert design() == TABLE


def test_the_table_is_total_over_status_event_and_facts() -> None:
    assert set(TABLE) == set(PAIRS)
    for (status, event), facts in itertools.product(PAIRS, FACTS):
        try:
            verdict = transition(status, event, facts)
        except IllegalTransition:
            assert TABLE[status, event] == "b"
        else:
            assert TABLE[status, event] != "b"
            assert verdict.moved or verdict.status is status


def meaning(cell: str, status: Status, facts: Facts) -> Verdict:
    """A second reading of the design's words, independent of the product's."""
    doubtless = facts.doubt == 0
    stays = Verdict(status, moved=False)
    if cell.startswith("pending,"):
        unsent = Status.FAILED_POISON if facts.refused else Status.PENDING
        return Verdict(unsent if doubtless else Status.UNKNOWN, moved=True)
    if cell.startswith("failed_poison if doubt becomes 0 and refused"):
        ended = Verdict(Status.FAILED_POISON, moved=True)
        return ended if doubtless and facts.refused else stays
    if cell.startswith("failed_poison if doubt"):
        if doubtless or facts.covers_key:
            return Verdict(Status.FAILED_POISON, moved=True)
        return stays if cell.endswith("else n") else Verdict(Status.UNKNOWN, moved=True)
    if cell.startswith("failed_poison after"):
        moved = Verdict(Status.FAILED_POISON, moved=True)
        return moved if facts.quiescent else replace(stays, denied=True)
    if cell == "n; c if covers_key":
        return replace(stays, contradiction=facts.covers_key)
    if cell == "n if the same object, else c":
        return replace(stays, contradiction=not facts.same_object)
    if cell == "c, unless the same declined object":
        return replace(stays, contradiction=not facts.declined_object)
    if cell == "succeeded; + c if never tried":
        return Verdict(Status.SUCCEEDED, moved=True, contradiction=not facts.tried)
    if cell in ("n", "c", "d"):
        return replace(stays, contradiction=cell == "c", denied=cell == "d")
    word, _, also = cell.partition(" + ")
    return Verdict(Status(word), moved=True, contradiction=also == "c")


@pytest.mark.parametrize(("status", "event"), [p for p in PAIRS if TABLE[p] != "b"])
def test_every_cell_does_what_its_words_say(status: Status, event: Event) -> None:
    for facts in FACTS:
        assert transition(status, event, facts) == meaning(design()[status, event], status, facts)


@given(
    status=st.sampled_from(sorted(TERMINAL)),
    event=st.sampled_from(sorted(set(Event) - {Event.RULED_LANDED})),
    facts=st.builds(
        Facts,
        doubt=st.integers(0, 1000),
        covers_key=st.booleans(),
        same_object=st.booleans(),
        declined_object=st.booleans(),
        quiescent=st.booleans(),
        tried=st.booleans(),
        refused=st.booleans(),
    ),
)
def test_nothing_but_a_persons_ruling_moves_a_settled_intent(
    status: Status, event: Event, facts: Facts
) -> None:
    if TABLE[status, event] == "b":
        with pytest.raises(IllegalTransition):
            transition(status, event, facts)
    else:
        verdict = transition(status, event, facts)
        assert (verdict.status, verdict.moved) == (status, False)


def test_a_ruling_moves_only_what_was_told_as_not_done() -> None:
    moved = [s for s in TERMINAL if transition(s, Event.RULED_LANDED).moved]
    assert set(moved) == {Status.FAILED_POISON, Status.CANCELLED}


def test_while_in_doubt_only_evidence_settles() -> None:
    for status, event in PAIRS:
        if status not in MAYBE_SENT or TABLE[status, event] == "b":
            continue
        verdict = transition(status, event, Facts(doubt=1))
        if verdict.status in TERMINAL:
            assert event in (Event.RECEIPT_FOUND, Event.RULED_LANDED)


def test_only_a_receipt_or_a_ruling_ever_says_landed() -> None:
    landing = {
        event
        for (status, event), facts in itertools.product(PAIRS, FACTS)
        if TABLE[status, event] != "b"
        and status is not Status.SUCCEEDED
        and transition(status, event, facts).status is Status.SUCCEEDED
    }
    assert landing == {Event.RECEIPT_FOUND, Event.RULED_LANDED}


def test_a_lost_reply_never_reads_failed() -> None:
    for status, event in itertools.product(Status, (Event.LOST, Event.LEASE_EXPIRED)):
        if TABLE[status, event] != "b":
            verdict = transition(status, event, Facts(doubt=1))
            assert status is Status.FAILED_POISON or verdict.status is not Status.FAILED_POISON


WORDS = {
    (Status.AWAITING_APPROVAL, 0): "awaiting_approval",
    (Status.PENDING, 0): "accepted",
    (Status.IN_FLIGHT, 0): "accepted",
    (Status.IN_FLIGHT, 1): "unknown",
    (Status.UNKNOWN, 0): "unknown",
    (Status.UNKNOWN, 3): "unknown",
    (Status.RETRYABLE, 0): "unknown",
    (Status.RETRYABLE, 1): "unknown",
    (Status.SUCCEEDED, 0): "settled",
    (Status.FAILED_POISON, 0): "failed",
    (Status.CANCELLED, 0): "cancelled",
}


@pytest.mark.parametrize(("status", "doubt"), WORDS)
def test_what_is_told_is_the_designs_word(status: Status, doubt: int) -> None:
    assert told(status, doubt).value == WORDS[status, doubt]


def test_a_contradiction_is_told_as_unknown_whatever_the_status() -> None:
    assert {told(status, 0, contradicted=True) for status in Status} == {Told.UNKNOWN}


def test_settled_and_unsettled_are_a_partition() -> None:
    assert set(Status) == TERMINAL | UNSETTLED
    assert not TERMINAL & UNSETTLED
    assert MAYBE_SENT < UNSETTLED

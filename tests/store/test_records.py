"""Recording outcomes: batches, late answers, and what a repeated batch must not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Refused, Standing, Wire
from outbox.states import Event
from outbox.store import doubt, escalations, intents, records, settlements
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import ONCE, Book, reading, receipt

LOST = Lost("no reply")
NOT_SENT = NotSent("connect_refused")
REFUSED = Refused("invalid_request", covers_key=False)
STORED = Refused("card_declined", covers_key=True)


def record(book: Book, *ended: tuple[Intent, Outcome]) -> int:
    with book.store.transaction() as tx:
        batch = [Ended(row, outcome, look_in_s=5.0) for row, outcome in ended]
        return records.record(tx, batch).late


def resend(book: Book, row: Intent) -> Intent:
    """The resolver approves a re-send and the next worker claims it."""
    with book.store.transaction() as tx:
        current = intents.lock(tx, row.id)
        assert current is not None
        apply(tx, current, Event.RESEND_APPROVED, Change(actor="resolver", due_in_s=0.0))
    (claimed,) = book.claimer(owner="second").claim(64)
    assert claimed.id == row.id
    return claimed


def state(row: Intent) -> tuple[str, int]:
    return row.status, row.doubt


def test_a_batch_of_mixed_outcomes_moves_each_row_by_its_own_outcome(book: Book) -> None:
    for _ in range(5):
        book.enqueue()
    rows = book.claimer().claim(64)
    outcomes: list[Outcome] = [receipt(rows[0]), LOST, NOT_SENT, REFUSED, STORED]
    assert record(book, *zip(rows, outcomes, strict=True)) == 0
    assert [state(book.row(row.id)) for row in rows] == [
        ("succeeded", 0),
        ("unknown", 1),
        ("pending", 0),
        ("failed_poison", 0),
        ("failed_poison", 0),
    ]
    landed, lost, unsent = (book.row(row.id) for row in rows[:3])
    assert (landed.receipt_id, landed.business_status, landed.settled_by) == (
        "pi_1",
        "paid",
        "reply",
    )
    assert lost.last_lease_end == rows[1].lease_until
    assert (unsent.first_sent_at, unsent.window_ends_at, unsent.not_sent_count) == (None, None, 1)
    assert book.count("attempts") == 5
    assert book.count("settlements") == 3


def test_a_replayed_receipt_says_so(book: Book) -> None:
    row = book.in_flight()
    record(book, (row, replace(receipt(row), wire=Wire(200, "req_1", replayed=True))))
    assert book.row(row.id).settled_by == "replay"


def test_a_repeated_batch_after_a_lost_commit_changes_nothing_twice(book: Book) -> None:
    for _ in range(4):
        book.enqueue()
    rows = book.claimer().claim(64)
    outcomes: list[Outcome] = [receipt(rows[0]), LOST, NOT_SENT, REFUSED]
    batch = list(zip(rows, outcomes, strict=True))
    record(book, *batch)
    before = [state(book.row(row.id)) for row in rows]
    settled = book.sql("SELECT intent_id, kind, told FROM outbox.settlements ORDER BY id")
    for _ in range(2):
        assert record(book, *batch) == 4
    assert [state(book.row(row.id)) for row in rows] == before
    after = book.sql("SELECT intent_id, kind, told FROM outbox.settlements ORDER BY id")
    assert after == settled
    assert book.count("escalations") == 0


@pytest.mark.parametrize("again", [NOT_SENT, LOST, REFUSED])
def test_a_repeated_record_does_not_end_the_lease_of_the_next_attempt(
    book: Book, again: Outcome
) -> None:
    first = book.in_flight()
    record(book, (first, NOT_SENT))
    book.forward(5)
    (second,) = book.claimer(owner="second").claim(64)
    record(book, (first, again))
    row = book.row(first.id)
    assert (row.status, row.lease_token, row.doubt) == ("in_flight", second.lease_token, 0)
    assert row.first_sent_at == second.first_sent_at
    record(book, (second, LOST))
    assert state(book.row(first.id)) == ("unknown", 1)


def test_a_late_not_sent_of_an_earlier_attempt_takes_off_its_doubt_and_leaves_the_live_one(
    book: Book,
) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    second = resend(book, first)
    record(book, (first, NOT_SENT))
    row = book.row(first.id)
    assert (row.status, row.doubt, row.lease_token) == ("in_flight", 0, second.lease_token)
    record(book, (second, LOST))
    assert state(book.row(first.id)) == ("unknown", 1)


def test_a_late_refusal_under_the_key_settles_while_the_next_attempt_is_in_the_air(
    book: Book,
) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    second = resend(book, first)
    record(book, (first, STORED))
    assert state(book.row(first.id)) == ("failed_poison", 0)
    record(book, (second, LOST))
    assert book.row(first.id).status == "failed_poison"


@pytest.mark.parametrize("late", [NOT_SENT, REFUSED])
def test_a_late_answer_of_a_lost_attempt_counts_once(book: Book, late: Outcome) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    second = resend(book, first)
    record(book, (second, LOST))
    assert state(book.row(first.id)) == ("unknown", 2)
    for _ in range(3):
        record(book, (first, late))
    assert state(book.row(first.id)) == ("unknown", 1)
    assert book.row(first.id).failure_code is None


def test_a_refusal_settles_once_every_attempt_has_been_answered(book: Book) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    record(book, (first, REFUSED))
    row = book.row(first.id)
    assert (row.status, row.doubt, row.failure_code) == ("failed_poison", 0, "invalid_request")
    assert row.settled_by == "late_reply"


def test_a_refusal_that_does_not_cover_the_key_settles_nothing_while_an_attempt_is_in_doubt(
    book: Book,
) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    second = resend(book, first)
    record(book, (second, REFUSED))
    assert state(book.row(first.id)) == ("unknown", 1)


def test_an_answer_after_the_lease_ran_out_is_late_evidence(book: Book) -> None:
    row = book.in_flight()
    book.forward(61)
    with book.store.transaction() as tx:
        assert doubt.expire_leases(tx, limit=10, look_after_s=5.0, max_crashes=3) == 1
    assert record(book, (row, receipt(row))) == 1
    written = book.row(row.id)
    assert (written.status, written.doubt, written.settled_by) == ("succeeded", 0, "late_reply")
    attempts = book.sql("SELECT outcome, late FROM outbox.attempts ORDER BY id")
    assert attempts == [
        {"outcome": "lease_expired", "late": False},
        {"outcome": "receipt", "late": True},
    ]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (NOT_SENT, ("pending", 0)),
        (LOST, ("unknown", 1)),
        (REFUSED, ("failed_poison", 0)),
        (receipt, ("succeeded", 0)),
    ],
)
def test_an_answer_to_a_row_that_was_written_meanwhile_still_ends_its_own_attempt(
    book: Book, outcome: Any, expected: tuple[str, int]
) -> None:
    row = book.in_flight()
    book.sql("UPDATE outbox.intents SET version = version + 1")
    record(book, (row, outcome(row) if callable(outcome) else outcome))
    written = book.row(row.id)
    assert (state(written), written.lease_token) == (expected, None)


def test_a_zombies_late_finish_is_a_no_op_a_note_or_a_contradiction(book: Book) -> None:
    first = book.in_flight()
    record(book, (first, LOST))
    second = resend(book, first)
    record(book, (second, receipt(second)))
    record(book, (first, receipt(first)))
    record(book, (first, LOST))
    row = book.row(first.id)
    assert (row.status, row.receipt_id, row.contradicted_at) == ("succeeded", "pi_1", None)
    record(book, (first, receipt(first, "pi_2")))
    row = book.row(first.id)
    assert (row.status, row.receipt_id) == ("succeeded", "pi_1")
    assert row.contradicted_at is not None
    (question,) = book.sql("SELECT reasons, detail FROM outbox.escalations")
    assert question["reasons"] == ["contradiction"]
    assert question["detail"]["objects"] == ["pi_1", "pi_2"]


def test_a_declined_object_is_kept_as_the_receipt_of_the_refusal(book: Book) -> None:
    row = book.in_flight()
    declined = reading(row, standing=Standing.DECLINED, word="requires_payment_method")
    record(book, (row, Refused("card_declined", covers_key=True, reading=declined)))
    written = book.row(row.id)
    assert (written.status, written.receipt_id) == ("failed_poison", "pi_1")


def test_one_row_that_cannot_be_written_leaves_the_whole_batch_unwritten(book: Book) -> None:
    first, second = book.in_flight(), book.in_flight()
    bad = Receipt(reading(second, document="\x00", receipt_id="pi_2"))
    with pytest.raises(Exception, match="u0000"):
        record(book, (first, receipt(first)), (second, bad))
    assert [book.row(r.id).status for r in (first, second)] == ["in_flight", "in_flight"]
    assert book.count("attempts") == 0


def test_settling_closes_the_doubt_and_leaves_a_contradiction_open(book: Book) -> None:
    first, second = book.in_flight(), book.in_flight(ONCE)
    with book.store.transaction() as tx:
        for row, reasons in ((first, ["ttl"]), (second, ["ttl", "window"])):
            escalations.open_for_intent(tx, row, reasons, {})
    with book.store.transaction() as tx:
        contradict(tx, second, "duplicate", ["pi_1", "pi_2"], "look-up")
    record(book, (first, receipt(first)), (second, receipt(second)))
    questions = book.sql("SELECT reasons, closed_at FROM outbox.escalations ORDER BY opened_at")
    assert questions[0]["closed_at"] is not None
    assert (questions[1]["reasons"], questions[1]["closed_at"]) == (["duplicate"], None)


def test_a_batch_reaches_every_consumer_in_the_same_transaction(book: Book) -> None:
    for name in ("billing", "mail"):
        settlements.register(book.store, name)
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
        tx.connection.rollback()
    assert (book.row(row.id).status, book.count("settlements")) == ("in_flight", 0)
    record(book, (row, receipt(row)))
    assert book.count("deliveries") == 2


def test_no_attempts_are_no_work(book: Book) -> None:
    with book.store.transaction() as tx:
        assert records.record(tx, []) == records.Recorded()


def test_an_answer_of_another_amount_is_told_as_unknown_from_the_first(book: Book) -> None:
    """No consumer may see it as paid, not for the length of a transaction."""
    settlements.register(book.store, "billing")
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row), contradicts="another_amount")])
    after = book.row(row.id)
    assert (after.status, after.veto) == ("succeeded", "contradiction")
    assert after.contradicted_at is not None
    told = book.sql("SELECT told, business_status, receipt_id FROM outbox.settlements")
    assert told == [{"told": "unknown", "business_status": None, "receipt_id": None}]
    (question,) = book.sql("SELECT reasons FROM outbox.escalations")
    assert question["reasons"] == ["another_amount"]


def test_a_late_answer_of_another_amount_is_told_as_unknown_from_the_first(book: Book) -> None:
    row = book.in_flight()
    record(book, (row, LOST))
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row), contradicts="another_amount")])
    assert book.row(row.id).contradicted_at is not None
    told = book.sql("SELECT told, business_status FROM outbox.settlements")
    assert told == [{"told": "unknown", "business_status": None}]
    (question,) = book.sql("SELECT reasons FROM outbox.escalations")
    assert question["reasons"] == ["another_amount"]


def test_a_resend_that_was_proved_not_sent_is_given_back_and_backs_off(book: Book) -> None:
    """An outage of the vendor's limiter must not use up the re-sends of the day."""
    row = book.in_flight()
    record(book, (row, LOST))
    again = resend(book, row)
    before = book.row(row.id)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(again, NOT_SENT, back_off_s=40.0, look_in_s=5.0)])
    after = book.row(row.id)
    assert (after.status, after.doubt) == ("unknown", 1)
    assert after.resends == max(before.resends - 1, 0)
    assert (after.due_at - before.due_at).total_seconds() > 30

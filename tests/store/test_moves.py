"""Every single-row write: compare-and-set, sticky ends, and what is written beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Scope
from outbox.outcomes import Business, Refused, Standing
from outbox.states import Event, IllegalTransition
from outbox.store import escalations, intents, records, settlements
from outbox.store.business import move_business
from outbox.store.connection import Transaction
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.moves import Change, Moved, apply
from outbox.store.records import Ended
from tests.store.book import CHARGE, TURN, Book, charge, reading, receipt

BY_WEBHOOK = Change(actor="webhook", settled_by="webhook")


def locked(tx: Transaction, intent_id: UUID) -> Intent:
    row = intents.lock(tx, intent_id)
    assert row is not None
    return row


def moved(book: Book, intent_id: UUID, event: Event, **change: Any) -> Intent:
    """Applies an event to the row as it is."""
    with book.store.transaction() as tx:
        row, _ = apply(tx, locked(tx, intent_id), event, replace(BY_WEBHOOK, **change))
    return row


def land(book: Book, row: Intent, receipt_id: str = "pi_1") -> Intent:
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, receipt_id))])
    return book.row(row.id)


def decline(book: Book, row: Intent) -> Intent:
    declined = reading(row, standing=Standing.DECLINED, word="requires_payment_method")
    with book.store.transaction() as tx:
        refusal = Refused("card_declined", covers_key=True, reading=declined)
        records.record(tx, [Ended(row, refusal)])
    return book.row(row.id)


def questions(book: Book) -> list[dict[str, Any]]:
    return book.sql("SELECT reasons, detail, closed_at, closed_by FROM outbox.escalations")


def test_a_writer_that_read_an_older_version_is_too_late_and_changes_nothing(book: Book) -> None:
    row = book.in_flight()
    moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    before = book.sql("SELECT * FROM outbox.intents")
    with pytest.raises(Moved), book.store.transaction() as tx:
        apply(tx, row, Event.RECEIPT_FOUND, replace(BY_WEBHOOK, reading=reading(row, "pi_2")))
    assert book.sql("SELECT * FROM outbox.intents") == before
    assert (book.count("events"), book.count("settlements")) == (1, 1)


def test_our_own_bug_is_raised_and_writes_nothing(book: Book) -> None:
    answer = book.enqueue()
    with pytest.raises(IllegalTransition), book.store.transaction() as tx:
        apply(tx, locked(tx, answer.intent_id), Event.RESEND_APPROVED, BY_WEBHOOK)
    assert (book.row(answer.intent_id).version, book.count("events")) == (1, 0)


@pytest.mark.parametrize("event", [Event.APPROVED, Event.REJECTED, Event.RULED_LANDED])
def test_what_an_operator_may_not_do_writes_nothing(book: Book, event: Event) -> None:
    answer = book.enqueue()
    with book.store.transaction() as tx:
        _, verdict = apply(tx, locked(tx, answer.intent_id), event, BY_WEBHOOK)
    assert (verdict.denied, verdict.moved) == (True, False)
    assert (book.row(answer.intent_id).version, book.count("events")) == (1, 0)


def test_a_receipt_settles_and_its_settlement_and_log_are_in_the_same_transaction(
    book: Book,
) -> None:
    row = book.in_flight()
    settlements.register(book.store, "billing")
    with pytest.raises(RuntimeError, match="killed"):
        _settle_and_die(book, row)
    assert book.row(row.id).status == "in_flight"
    assert [book.count(t) for t in ("settlements", "deliveries", "events")] == [0, 0, 0]
    moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert [book.count(t) for t in ("settlements", "deliveries", "events")] == [1, 1, 1]


def _settle_and_die(book: Book, row: Intent) -> None:
    with book.store.transaction() as tx:
        apply(
            tx, locked(tx, row.id), Event.RECEIPT_FOUND, replace(BY_WEBHOOK, reading=reading(row))
        )
        raise RuntimeError("killed")


def test_a_receipt_ends_the_lease_the_doubt_and_the_alarm(book: Book) -> None:
    row = book.in_flight()
    after = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert (after.status, after.doubt, after.receipt_id) == ("succeeded", 0, "pi_1")
    assert (after.lease_token, after.lease_until, after.escalate_at) == (None, None, None)
    assert after.last_lease_end == row.lease_until
    assert (after.settled_by, after.settled_at is not None) == ("webhook", True)


@pytest.mark.parametrize(
    "event",
    [
        Event.NOT_SENT,
        Event.LOST,
        Event.LEASE_EXPIRED,
        Event.REFUSED,
        Event.RESEND_APPROVED,
        Event.RESEND_WITHDRAWN,
        Event.CANCELLED,
        Event.REJECTED,
        Event.EXPIRED,
        Event.APPROVED,
        Event.RULED_NOT_LANDED,
    ],
)
def test_what_landed_stays_landed(book: Book, event: Event) -> None:
    before = land(book, book.in_flight())
    after = moved(book, before.id, event, failure_code="late", veto="late")
    assert (after.status, after.receipt_id, after.failure_code) == ("succeeded", "pi_1", None)
    assert (after.settled_at, after.settled_by) == (before.settled_at, before.settled_by)
    assert (after.contradicted_at, book.count("settlements")) == (None, 1)


def test_a_later_refusal_does_not_reword_an_earlier_one(book: Book) -> None:
    before = decline(book, book.in_flight())
    after = moved(book, before.id, Event.REFUSED, covers_key=True, failure_code="other")
    assert (after.failure_code, after.settled_at) == ("card_declined", before.settled_at)


def test_a_note_on_an_unsettled_row_gives_it_no_failure_code(book: Book) -> None:
    answer = book.enqueue()
    assert moved(book, answer.intent_id, Event.REFUSED, failure_code="x").failure_code is None


# -- contradictions ------------------------------------------------------------------------------


def test_a_second_object_is_a_contradiction_that_is_told_as_unknown(book: Book) -> None:
    row = land(book, book.in_flight())
    after = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row, "pi_2"))
    assert (after.status, after.receipt_id) == ("succeeded", "pi_1")
    assert after.contradicted_at is not None
    (question,) = questions(book)
    assert question["reasons"] == ["contradiction"]
    assert question["detail"]["objects"] == ["pi_1", "pi_2"]
    assert book.outbox.wait(row.id, timeout_s=0).told == "unknown"
    (last,) = book.sql("SELECT kind, told FROM outbox.settlements ORDER BY id DESC LIMIT 1")
    assert last == {"kind": "contradiction", "told": "unknown"}


def test_the_same_contradiction_twice_is_one_question(book: Book) -> None:
    row = land(book, book.in_flight())
    for number in (2, 3):
        moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row, f"pi_{number}"))
    (question,) = questions(book)
    assert question["detail"]["objects"][-1] == "pi_3"
    assert len(book.sql("SELECT 1 FROM outbox.pages WHERE action = 'trigger'")) == 1


def test_money_that_moved_on_an_intent_told_as_failed_is_a_contradiction(book: Book) -> None:
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("declined", covers_key=True))])
    after = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert (after.status, after.receipt_id) == ("failed_poison", None)
    assert after.contradicted_at is not None


def test_a_declined_object_seen_again_is_known_and_its_payment_is_a_contradiction(
    book: Book,
) -> None:
    row = decline(book, book.in_flight())
    same = reading(row, standing=Standing.DECLINED, word="requires_payment_method")
    assert moved(book, row.id, Event.RECEIPT_FOUND, reading=same).contradicted_at is None
    paid = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert (paid.status, paid.contradicted_at is not None) == ("failed_poison", True)


def test_a_receipt_on_what_was_never_sent_settles_it_and_asks_a_person(book: Book) -> None:
    answer = book.enqueue()
    row = book.row(answer.intent_id)
    after = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert (after.status, after.receipt_id) == ("succeeded", "pi_1")
    assert [q["closed_at"] for q in questions(book)] == [None]
    told = book.sql("SELECT kind, told FROM outbox.settlements ORDER BY id")
    assert told == [{"kind": "settled", "told": "unknown"}]


def test_a_receipt_on_a_cancelled_intent_leaves_it_cancelled_and_asks_a_person(
    book: Book,
) -> None:
    answer = book.enqueue()
    row = moved(book, answer.intent_id, Event.CANCELLED)
    after = moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    assert (after.status, after.receipt_id) == ("cancelled", None)
    assert [q["reasons"] for q in questions(book)] == [["contradiction"]]


def test_a_refusal_that_covers_the_key_of_what_landed_is_a_contradiction(book: Book) -> None:
    row = land(book, book.in_flight())
    assert moved(book, row.id, Event.REFUSED).contradicted_at is None
    assert moved(book, row.id, Event.REFUSED, covers_key=True).contradicted_at is not None


def test_settling_closes_doubt_and_resolves_its_pages(book: Book) -> None:
    row = book.in_flight()
    with book.store.transaction() as tx:
        escalations.open_for_intent(tx, row, ["ttl", "window"], {})
    moved(book, row.id, Event.RECEIPT_FOUND, reading=reading(row))
    (question,) = questions(book)
    assert question["closed_at"] is not None
    assert question["closed_by"] == "webhook"
    pages = book.sql("SELECT action, count(*) AS n FROM outbox.pages GROUP BY action")
    assert {page["action"]: page["n"] for page in pages} == {"trigger": 2, "resolve": 2}


def test_a_contradiction_is_a_veto_on_every_further_send(book: Book) -> None:
    answer = book.enqueue()
    with book.store.transaction() as tx:
        contradict(tx, locked(tx, answer.intent_id), "another_amount", ["pi_1"], "look-up")
    assert book.row(answer.intent_id).veto == "contradiction"
    assert book.claimer().claim(64) == []


# -- business status -----------------------------------------------------------------------------


def test_the_business_status_moves_without_contradiction(book: Book) -> None:
    row = land(book, book.in_flight())
    with book.store.transaction() as tx:
        failed = reading(row, business=Business.FAILED, word="canceled", vendor_time=5)
        assert move_business(tx, locked(tx, row.id), failed, actor="webhook", source="lookup")
    after = book.row(row.id)
    assert (after.status, after.business_status) == ("succeeded", "failed")
    assert after.business_vendor_time == row.business_vendor_time
    assert after.contradicted_at is None


def test_a_move_of_an_older_version_changes_nothing(book: Book) -> None:
    row = land(book, book.in_flight())
    book.sql("UPDATE outbox.intents SET version = version + 1")
    with book.store.transaction() as tx:
        assert not move_business(
            tx, row, reading(row, word="canceled"), actor="webhook", source="late"
        )
    assert book.count("settlements") == 1


@pytest.mark.parametrize("what", ["business", "ruling"])
def test_a_told_intent_that_moves_does_not_collide_with_its_successor(
    book: Book, what: str
) -> None:
    args, turn = charge(), Scope(tenant="acme", run_id="run-1", epoch="turn-1")
    first = book.in_flight(TURN, scope=turn, args=args)
    row = land(book, first) if what == "business" else decline(book, first)
    book.outbox.wait(row.id)
    later = book.enqueue(TURN, replace(turn, epoch="turn-2"), args)
    assert later.intent_id != row.id
    if what == "business":
        with book.store.transaction() as tx:
            reversed_ = reading(row, business=Business.REVERSED, word="refunded")
            assert move_business(tx, locked(tx, row.id), reversed_, actor="w", source="w")
        assert book.row(row.id).business_status == "reversed"
    else:
        ruled = moved(book, row.id, Event.RULED_LANDED, reading=reading(row))
        assert (ruled.status, ruled.failure_code) == ("succeeded", None)


def test_marks_of_a_resend_are_kept_and_its_withdrawal_brings_doubt_back(book: Book) -> None:
    row = book.in_flight(CHARGE)
    moved(book, row.id, Event.LOST, adds_doubt=True)
    approved = moved(book, row.id, Event.RESEND_APPROVED, resends=1, due_in_s=0.0)
    assert (approved.status, approved.doubt, approved.resends) == ("retryable", 1, 1)
    back = moved(book, row.id, Event.RESEND_WITHDRAWN, due_in_s=30.0)
    assert (back.status, back.doubt) == ("unknown", 1)
    assert back.due_at > approved.due_at


def test_confirmed_absence_takes_all_doubt_away(book: Book) -> None:
    row = book.in_flight()
    moved(book, row.id, Event.LOST, adds_doubt=True)
    after = moved(book, row.id, Event.RESEND_APPROVED, confirmed_absent=True)
    assert (after.status, after.doubt) == ("retryable", 0)


def test_an_approved_intent_was_never_sent(book: Book) -> None:
    answer = book.enqueue()
    book.sql("UPDATE outbox.intents SET status = 'awaiting_approval'")
    after = moved(book, answer.intent_id, Event.APPROVED)
    assert (after.status, after.first_sent_at) == ("pending", None)


def test_a_doubted_intent_is_ruled_not_landed_only_after_quiescence(book: Book) -> None:
    row = book.in_flight()
    moved(book, row.id, Event.LOST, adds_doubt=True)
    assert moved(book, row.id, Event.RULED_NOT_LANDED).status == "unknown"
    after = moved(book, row.id, Event.RULED_NOT_LANDED, quiescent=True, failure_code="ruled")
    assert (after.status, after.failure_code, after.receipt_id) == ("failed_poison", "ruled", None)

"""One row for one intent: re-emits, races, twins, mismatches and intended repeats."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from outbox import (
    Answer,
    Denied,
    IntentMismatch,
    Invalid,
    NotFound,
    RetryTransaction,
    Scope,
    StaleEpoch,
)
from outbox.outcomes import Refused
from outbox.store import doubt, intents, records
from outbox.store.contradictions import contradict
from outbox.store.records import Ended
from tests.statements import fetched
from tests.store.book import (
    CHARGE,
    ONCE,
    SCOPE,
    TURN,
    Book,
    charge,
    receipt,
    wait_until,
)

TURN_1 = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
TURN_2 = replace(TURN_1, epoch="turn-2")


def settle(book: Book, answer: Answer, *, refused: bool = False) -> None:
    (row,) = [r for r in book.claimer().claim(64) if r.id == answer.intent_id]
    outcome = Refused("card_declined", covers_key=True) if refused else receipt(row)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, outcome)])


def waiting(book: Book) -> bool:
    return bool(book.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def test_a_reworded_re_emit_with_another_call_id_is_the_same_row(book: Book) -> None:
    args = charge("in_7", memo="Pay invoice 7", tool_call_id="call_a", idempotency_key="uuid-1")
    other = charge("in_7", memo="Settling invoice #7", toolCallId="call_b", idempotencyKey="uuid-2")
    first = book.enqueue(args=args)
    again = book.enqueue(args=other)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    assert "another memo was given later and not used" in again.notes
    assert "stripped the reserved argument toolCallId, idempotencyKey" in again.notes
    (row,) = book.sql("SELECT args, key, request FROM outbox.intents")
    assert "Pay invoice 7" in row["args"]
    assert "uuid" not in row["args"] + row["request"]
    (event,) = book.sql("SELECT kind, reason, detail FROM outbox.events")
    assert event["kind"] == "enqueue_noted"
    assert "Settling" not in str(event)


def test_a_re_emit_after_the_end_returns_what_became_of_it(book: Book) -> None:
    args = charge()
    first = book.enqueue(args=args)
    settle(book, first)
    again = book.enqueue(args=args)
    assert (again.told, again.receipt_id, again.business_status) == ("settled", "pi_1", "paid")
    assert again.deduplicated
    assert book.row(first.intent_id).told_at is not None


def test_a_re_emit_of_a_refused_intent_is_told_as_failed_and_not_sent_again(book: Book) -> None:
    args = charge()
    settle(book, book.enqueue(args=args), refused=True)
    again = book.enqueue(args=args)
    assert (again.told, again.failure_code) == ("failed", "card_declined")
    assert book.claimer().claim(64) == []


def test_two_connections_at_once_name_the_same_row(book: Book) -> None:
    args, start = charge(), threading.Barrier(8)

    def emit(_: int) -> Answer:
        with psycopg.connect(book.url) as connection:
            start.wait()
            return book.outbox.enqueue(connection, CHARGE, SCOPE, args)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(emit, range(8)))
    assert len({answer.intent_id for answer in answers}) == 1
    assert sorted(answer.deduplicated for answer in answers) == [False, *[True] * 7]
    assert book.count() == 1


def test_the_second_of_a_race_waits_for_the_first_and_takes_over_when_it_rolls_back(
    book: Book,
) -> None:
    args = charge()
    with psycopg.connect(book.url) as first, ThreadPoolExecutor(1) as pool:
        book.outbox.enqueue(first, CHARGE, SCOPE, args)
        second = pool.submit(book.enqueue, args=args)
        wait_until(lambda: waiting(book))
        first.rollback()
        assert not second.result().deduplicated
    assert book.count() == 1


def test_another_run_another_tenant_another_account_and_another_tool_are_other_intents(
    book: Book,
) -> None:
    args = charge()
    scopes = [
        SCOPE,
        replace(SCOPE, run_id="run-2"),
        replace(SCOPE, tenant="other"),
        replace(SCOPE, account="second"),
    ]
    answers = [book.enqueue(scope=scope, args=args) for scope in scopes]
    answers.append(book.enqueue(replace(CHARGE, name="charge_again"), args=args))
    assert len({answer.intent_id for answer in answers}) == 5
    assert not any(answer.deduplicated for answer in answers)


def test_another_tenant_never_sees_the_first_ones_receipt(book: Book) -> None:
    args = charge()
    settle(book, book.enqueue(args=args))
    theirs = book.enqueue(scope=replace(SCOPE, tenant="other"), args=args)
    assert (theirs.told, theirs.receipt_id) == ("accepted", None)


def test_an_intended_repeat_is_said_by_the_application(book: Book) -> None:
    args = charge()
    first, second = book.enqueue(args=args), book.enqueue(args=args, occurrence=1)
    assert second.intent_id != first.intent_id
    assert book.enqueue(args=args, occurrence=1).deduplicated
    assert book.count() == 2


def test_once_per_run_holds_across_epochs(book: Book) -> None:
    args = charge()
    assert (
        book.enqueue(CHARGE, TURN_1, args).intent_id == book.enqueue(CHARGE, TURN_2, args).intent_id
    )


def test_once_per_tenant_holds_across_runs(book: Book) -> None:
    args = charge()
    first = book.enqueue(ONCE, SCOPE, args)
    again = book.enqueue(ONCE, replace(SCOPE, run_id="run-2"), args)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    assert book.enqueue(ONCE, replace(SCOPE, tenant="b"), args).intent_id != first.intent_id


def test_doubt_guards_its_twin_until_the_outcome_was_told(book: Book) -> None:
    args = charge()
    first = book.enqueue(TURN, TURN_1, args)
    twin = book.enqueue(TURN, TURN_2, args)
    assert (twin.intent_id, twin.deduplicated) == (first.intent_id, True)
    settle(book, first)
    told = book.enqueue(TURN, TURN_2, args)
    assert (told.intent_id, told.told) == (first.intent_id, "settled")
    after = book.enqueue(TURN, TURN_2, args)
    assert (after.intent_id == first.intent_id, after.deduplicated) == (False, False)
    assert book.enqueue(TURN, TURN_1, args).intent_id == first.intent_id


def test_waiting_for_the_outcome_frees_the_twin(book: Book) -> None:
    args = charge()
    first = book.enqueue(TURN, TURN_1, args)
    settle(book, first)
    assert book.outbox.wait(first).told == "settled"
    assert book.enqueue(TURN, TURN_2, args).intent_id != first.intent_id


def test_a_twin_with_another_amount_is_a_mismatch(book: Book) -> None:
    book.enqueue(TURN, TURN_1, charge("in_1"))
    with pytest.raises(IntentMismatch):
        book.enqueue(TURN, TURN_2, charge("in_1", amount=1))


def test_a_marked_repeat_is_no_twin(book: Book) -> None:
    args = charge()
    first = book.enqueue(TURN, TURN_1, args)
    assert book.enqueue(TURN, TURN_2, args, occurrence=1).intent_id != first.intent_id


def test_two_epochs_that_race_make_one_intent(book: Book) -> None:
    args, start = charge(), threading.Barrier(6)

    def emit(number: int) -> Answer:
        with psycopg.connect(book.url) as connection:
            start.wait()
            scope = replace(TURN_1, epoch=f"turn-{number}")
            return book.outbox.enqueue(connection, TURN, scope, args)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(emit, range(6)))
    assert len({answer.intent_id for answer in answers}) == 1


def test_a_twin_that_is_told_between_two_statements_is_not_a_stale_epoch(book: Book) -> None:
    args = charge()
    first = book.enqueue(TURN, TURN_1, args)
    settle(book, first)
    steps = book.outbox._steps(book.outbox._draft(TURN, TURN_2, args, 0, None, None, None))
    with psycopg.connect(book.url, row_factory=psycopg.rows.dict_row) as connection:
        sql, params = next(steps)
        assert connection.execute(sql.encode(), params).fetchall() == []
        book.outbox.wait(first)
        sql, params = steps.send([])
        rows: list[Any] = connection.execute(sql.encode(), params).fetchall()
        answer: Answer | None = None
        while answer is None:
            try:
                sql, params = steps.send(rows)
                rows = fetched(connection.execute(sql.encode(), params))
            except StopIteration as done:
                answer = done.value
    assert (answer.deduplicated, book.count()) == (False, 2)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_hidden_row_asks_for_the_transaction_again_and_then_returns_it(
    book: Book, level: Any
) -> None:
    args = charge()
    engine = create_engine(book.settings.database_url, isolation_level=level)
    with Session(engine) as session:
        session.connection().exec_driver_sql("SELECT 1 FROM outbox.intents")
        first = book.enqueue(args=args)
        with pytest.raises(RetryTransaction):
            book.outbox.enqueue(session, CHARGE, SCOPE, args)
        session.rollback()
        again = book.outbox.enqueue(session, CHARGE, SCOPE, args)
        session.commit()
    engine.dispose()
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)


def test_a_hidden_row_asks_for_the_transaction_again_on_psycopg_too(book: Book) -> None:
    args = charge()
    with psycopg.connect(book.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM outbox.intents")
        book.enqueue(args=args)
        with pytest.raises(RetryTransaction):
            book.outbox.enqueue(connection, CHARGE, SCOPE, args)
        connection.rollback()
        assert book.outbox.enqueue(connection, CHARGE, SCOPE, args).deduplicated


# -- supersedes ----------------------------------------------------------------------------------


def test_a_refused_intent_may_be_superseded_once(book: Book) -> None:
    args = charge()
    first = book.enqueue(args=args)
    settle(book, first, refused=True)
    second = book.enqueue(args=args, supersedes=first.intent_id)
    assert second.intent_id != first.intent_id
    assert book.enqueue(args=args, supersedes=str(first.intent_id)).deduplicated
    with pytest.raises(Denied) as denied:
        book.enqueue(args=charge(), supersedes=first.intent_id)
    assert denied.value.code == "superseded_twice"


@pytest.mark.parametrize("settled", [False, True])
def test_only_what_did_not_happen_may_be_superseded(book: Book, settled: bool) -> None:
    first = book.enqueue()
    if settled:
        settle(book, first)
    with pytest.raises(Denied) as denied:
        book.enqueue(supersedes=first.intent_id)
    assert denied.value.code == "not_superseded"


def test_another_tenants_intent_cannot_be_superseded(book: Book) -> None:
    first = book.enqueue()
    settle(book, first, refused=True)
    for scope, wanted in ((replace(SCOPE, tenant="b"), first.intent_id), (SCOPE, uuid4())):
        with pytest.raises(NotFound) as missing:
            book.enqueue(scope=scope, supersedes=wanted)
        assert missing.value.field == "supersedes"
    with pytest.raises(Invalid) as refused:
        book.enqueue(supersedes="the last one")
    assert refused.value.field == "supersedes"


def test_two_successors_that_race_are_told_apart_from_a_stale_epoch(book: Book) -> None:
    first = book.enqueue()
    settle(book, first, refused=True)
    with psycopg.connect(book.url) as one, ThreadPoolExecutor(1) as pool:
        book.outbox.enqueue(one, CHARGE, SCOPE, charge(), supersedes=first.intent_id)
        other = pool.submit(book.enqueue, args=charge(), supersedes=first.intent_id)
        wait_until(lambda: waiting(book))
        one.commit()
        with pytest.raises(Denied) as denied:
            other.result()
    assert denied.value.code == "superseded_twice"


# -- many ----------------------------------------------------------------------------------------


def test_many_answers_come_in_the_order_given_and_count_their_duplicates(book: Book) -> None:
    args = [charge() for _ in range(5)]
    with book.engine.begin() as connection:
        answers = book.outbox.enqueue_many(
            connection, CHARGE, [(SCOPE, each) for each in [*args, args[0]]]
        )
    assert [answer.deduplicated for answer in answers] == [False] * 5 + [True]
    assert answers[5].intent_id == answers[0].intent_id
    for answer, each in zip(answers, args, strict=False):
        assert each["invoice_id"] in book.row(answer.intent_id).identity


def test_one_bad_request_of_many_records_none(book: Book) -> None:
    with book.engine.begin() as connection, pytest.raises(Invalid) as refused:
        book.outbox.enqueue_many(
            connection, CHARGE, [(SCOPE, charge()), (SCOPE, charge(amount=1.5))]
        )
    assert refused.value.field == "requests[1].args.amount"
    assert book.count() == 0


def test_many_go_into_few_statements_and_what_is_recorded_already_is_found(book: Book) -> None:
    args = [charge() for _ in range(1001)]
    before = book.enqueue(args=args[700])
    inserts: list[str] = []

    def counted(_: Any, __: Any, statement: str, *___: Any) -> None:
        inserts.extend(["one"] if statement.startswith("INSERT") else [])

    with book.engine.begin() as connection:
        event.listen(connection, "before_cursor_execute", counted)
        asks = [(SCOPE, each) for each in args]
        answers = book.outbox.enqueue_many(connection, CHARGE, asks)
    assert [n for n, answer in enumerate(answers) if answer.deduplicated] == [700]
    assert answers[700].intent_id == before.intent_id
    assert len({answer.intent_id for answer in answers}) == book.count() == 1001
    # Three pieces of 500, and the one that something stood in the way of.
    assert len(inserts) == 4


def test_a_mismatch_among_many_is_raised_and_the_others_go_with_the_transaction(book: Book) -> None:
    args = charge()
    book.enqueue(args=args)
    asks = [(SCOPE, charge()), (SCOPE, {**args, "amount": args["amount"] + 1})]
    with pytest.raises(IntentMismatch), book.engine.begin() as connection:
        book.outbox.enqueue_many(connection, CHARGE, asks)
    assert book.count() == 1


@pytest.mark.parametrize("tool", [CHARGE, ONCE, TURN])
def test_many_in_any_order_never_deadlock(book: Book, tool: Any) -> None:
    args = [charge() for _ in range(25)]
    start = threading.Barrier(4)

    def emit(number: int) -> int:
        mine = args if number % 2 else args[::-1]
        scope = replace(TURN_1, epoch=f"turn-{number}")
        with psycopg.connect(book.url) as connection:
            start.wait()
            answers = book.outbox.enqueue_many(connection, tool, [(scope, each) for each in mine])
        return sum(not answer.deduplicated for answer in answers)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(emit, range(4))) == 25
    assert book.count() == 25


# -- epochs --------------------------------------------------------------------------------------


def test_an_epoch_that_is_over_may_start_nothing_and_still_finds_its_own(book: Book) -> None:
    args = charge()
    first = book.enqueue(CHARGE, TURN_1, args)
    with book.engine.begin() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")
    with pytest.raises(StaleEpoch) as stale:
        book.enqueue(CHARGE, TURN_1)
    assert (stale.value.run_id, stale.value.epoch) == ("run-1", "turn-1")
    assert book.enqueue(CHARGE, TURN_1, args).intent_id == first.intent_id
    assert not book.enqueue(CHARGE, TURN_2).deduplicated
    assert not book.enqueue(CHARGE, replace(TURN_1, run_id="run-2")).deduplicated


def test_advancing_cancels_never_sent_intents_of_earlier_turns_alone(book: Book) -> None:
    undo = replace(TURN, name="undo", side_effect="compensation")
    answers = {
        "sent": book.enqueue(TURN, TURN_1),
    }
    book.claimer().claim(64)
    answers |= {
        "gone": book.enqueue(TURN, TURN_1),
        "by run": book.enqueue(CHARGE, TURN_1),
        "undo": book.enqueue(undo, TURN_1),
        "other run": book.enqueue(TURN, replace(TURN_1, run_id="run-2")),
        "other tenant": book.enqueue(TURN, replace(TURN_1, tenant="b")),
    }
    with book.engine.begin() as connection:
        assert book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2") == 1
        assert book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2") == 0
    statuses = {name: book.row(answer.intent_id).status for name, answer in answers.items()}
    assert statuses == {
        "sent": "in_flight",
        "gone": "cancelled",
        "by run": "pending",
        "undo": "pending",
        "other run": "pending",
        "other tenant": "pending",
    }
    (settlement,) = book.sql("SELECT intent_id, told, settled_by FROM outbox.settlements")
    assert settlement["intent_id"] == answers["gone"].intent_id
    assert (settlement["told"], settlement["settled_by"]) == ("cancelled", "epoch")


def test_an_approval_that_was_waiting_is_logged_as_what_it_was(book: Book) -> None:
    book.enqueue(TURN, TURN_1)
    book.sql("UPDATE outbox.intents SET status = 'awaiting_approval'")
    with book.engine.begin() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")
    (event,) = book.sql("SELECT from_status, to_status FROM outbox.events")
    assert event == {"from_status": "awaiting_approval", "to_status": "cancelled"}


def test_advancing_rolls_back_with_the_callers_transaction(book: Book) -> None:
    answer = book.enqueue(TURN, TURN_1)
    with book.engine.connect() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")
        connection.rollback()
    assert book.row(answer.intent_id).status == "pending"
    assert not book.enqueue(TURN, TURN_1).deduplicated


def test_turns_that_begin_at_once_end_each_other_and_one_is_left(book: Book) -> None:
    start = threading.Barrier(5)

    def begin(number: int) -> None:
        with psycopg.connect(book.url) as connection:
            start.wait()
            book.outbox.advance_epoch(connection, "acme", "run-1", f"turn-{number}")

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(begin, range(5)))
    assert book.value("SELECT count(*) FROM outbox.epochs WHERE ended_at IS NULL") == 1
    assert book.count("epochs") == 5


def test_an_ended_epoch_does_not_begin_again(book: Book) -> None:
    """A turn that is delivered again after its successor began ends nothing."""
    for epoch in ("turn-1", "turn-2"):
        with book.engine.begin() as connection:
            book.outbox.advance_epoch(connection, "acme", "run-1", epoch)
    kept = book.enqueue(TURN, TURN_2)
    with book.engine.begin() as connection, pytest.raises(StaleEpoch):
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-1")
    with pytest.raises(StaleEpoch):
        book.enqueue(TURN, TURN_1)
    assert book.row(kept.intent_id).status == "pending"


def test_a_turn_that_was_never_announced_is_over_once_another_has_begun(book: Book) -> None:
    """Its straggler, or a transaction of it that commits late, must not charge once more."""
    late = psycopg.connect(book.url)
    book.outbox.enqueue(late, TURN, TURN_1, charge())
    with book.engine.begin() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")
    late.commit()
    late.close()
    with pytest.raises(StaleEpoch):
        book.enqueue(TURN, TURN_1, charge())
    assert book.claimer().claim(64) == []
    with book.store.transaction() as tx:
        assert len(doubt.cancel_stale_epochs(tx, 10)) == 1


def test_what_a_person_must_still_rule_on_has_no_successor(book: Book) -> None:
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("card_declined", covers_key=True))])
    with book.store.transaction() as tx:
        settled = intents.lock(tx, row.id)
        assert settled is not None
        contradict(tx, settled, "contradiction", ["pi_1"], "it was paid after all")
    with pytest.raises(Denied) as denied:
        book.enqueue(args=json.loads(row.args or ""), supersedes=row.id)
    assert denied.value.code == "contradicted"


def test_an_epoch_has_a_name(book: Book) -> None:
    with book.engine.begin() as connection, pytest.raises(Invalid) as refused:
        book.outbox.advance_epoch(connection, "acme", "run-1", "")
    assert refused.value.field == "epoch"

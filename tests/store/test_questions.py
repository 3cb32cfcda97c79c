"""Questions for a person and the switches that hold rows: one of each, and what closes them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Scope
from outbox.intent import gate_of, gate_prefix
from outbox.store import doubt, escalations, intents, switches
from outbox.store.intents import Intent
from tests.store.book import ACCOUNT, SCOPE, TURN, Book

TURN_1 = Scope(tenant="acme", run_id="run-1", epoch="turn-1")


def ask(book: Book, row: Intent, *reasons: str, **detail: Any) -> UUID:
    with book.store.transaction() as tx:
        return escalations.open_for_intent(tx, row, list(reasons), detail)


def questions(book: Book) -> list[dict[str, Any]]:
    return book.sql("SELECT * FROM outbox.escalations ORDER BY opened_at")


def pages(book: Book) -> list[tuple[str, str]]:
    rows = book.sql("SELECT action, body->>'reason' AS reason FROM outbox.pages ORDER BY id")
    return [(row["action"], row["reason"]) for row in rows]


def test_an_intent_has_one_open_question_with_a_set_of_reasons(book: Book) -> None:
    row = book.in_flight()
    first = ask(book, row, "ttl")
    assert ask(book, row, "window", "ttl") == first
    assert ask(book, row, "ttl") == first
    (question,) = questions(book)
    assert question["reasons"] == ["ttl", "window"]
    assert pages(book) == [("trigger", "ttl"), ("trigger", "window")]


def test_a_new_reason_is_heard_whatever_was_muted_or_acknowledged(book: Book) -> None:
    row = book.in_flight()
    ask(book, row, "ttl")
    book.sql(
        "UPDATE outbox.escalations SET muted_until = now() + INTERVAL '1 day', "
        "acked_until = now() + INTERVAL '1 day'"
    )
    ask(book, row, "ttl")
    assert questions(book)[0]["muted_until"] is not None
    ask(book, row, "window")
    (question,) = questions(book)
    assert (question["muted_until"], question["acked_until"]) == (None, None)


def test_resolvers_that_ask_at_once_ask_one_question(book: Book) -> None:
    row, start = book.in_flight(), threading.Barrier(6)

    def work(number: int) -> UUID:
        start.wait()
        return ask(book, row, "ttl" if number % 2 else "window")

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(work, range(6)))) == 1
    assert sorted(pages(book)) == [("trigger", "ttl"), ("trigger", "window")]


def test_a_reason_that_comes_back_is_paged_under_a_key_of_its_own(book: Book) -> None:
    row = book.in_flight()
    for _ in range(2):
        question = ask(book, row, "ttl")
        with book.store.transaction() as tx:
            assert escalations.close(tx, question, by="me", verdict="settled")
            assert not escalations.close(tx, question, by="me", verdict="again")
    assert [q["episode"] for q in questions(book)] == [1, 2]
    assert [action for action, _ in pages(book)] == ["trigger", "resolve"] * 2
    keys = book.sql("SELECT DISTINCT dedup_key FROM outbox.pages")
    assert len(keys) == 2


def test_what_an_epoch_cancelled_does_not_keep_its_question(book: Book) -> None:
    kept = book.in_flight()
    answer = book.enqueue(TURN, TURN_1)
    ask(book, book.row(answer.intent_id), "ttl")
    ask(book, kept, "ttl")
    with book.engine.begin() as connection:
        book.outbox.advance_epoch(connection, "acme", "run-1", "turn-2")
    with book.store.transaction() as tx:
        assert escalations.settled_intents(tx, 10) == [answer.intent_id]
        row = intents.lock(tx, answer.intent_id)
        assert row is not None
        escalations.close_doubt(tx, row, by="epoch")
        assert escalations.settled_intents(tx, 10) == []
    closed = [q["intent_id"] for q in questions(book) if q["closed_at"] is not None]
    assert closed == [answer.intent_id]


@pytest.mark.parametrize("status", ["pending", "awaiting_approval"])
def test_a_row_that_was_enqueued_while_its_epoch_ended_is_found(book: Book, status: str) -> None:
    answer = book.enqueue(TURN, TURN_1)
    book.enqueue(replace(TURN, name="undo", side_effect="compensation"), TURN_1)
    book.sql(f"UPDATE outbox.intents SET status = '{status}'")
    book.sql(
        "INSERT INTO outbox.epochs (tenant, run_id, epoch, started_at) "
        "VALUES ('acme', 'run-1', 'turn-2', now())"
    )
    with book.store.transaction() as tx:
        assert [row.id for row in doubt.cancel_stale_epochs(tx, 10)] == [answer.intent_id]


# -- switches ------------------------------------------------------------------------------------


def test_a_gate_is_closed_by_every_switch_above_it_and_by_no_other(book: Book) -> None:
    gate = gate_of("stripe", "default", "charge_invoice", "acme")
    for prefix, closes in (
        (gate_prefix("stripe", "default"), True),
        (gate_prefix("stripe", "default", "charge_invoice"), True),
        (gate_prefix("stripe", "default", "charge"), False),
        (gate_prefix("stripe", "other"), False),
    ):
        book.sql("DELETE FROM outbox.switches")
        book.sql(
            "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
            "VALUES ('x', 'freeze', %(prefix)s, '', 'test', now())",
            {"prefix": prefix},
        )
        with book.store.transaction() as tx:
            assert switches.is_closed(tx, gate) is closes


def test_a_doubted_clock_closes_no_gate(book: Book) -> None:
    with book.store.transaction() as tx:
        assert switches.doubt_clock(tx, "it stepped")
        assert not switches.doubt_clock(tx, "it stepped again")
        assert switches.clock_is_doubted(tx)
        assert not switches.is_closed(tx, gate_of("stripe", "default", "t", "acme"))
        assert switches.accept_clock(tx, by="me", reason="looked")
        assert not switches.clock_is_doubted(tx)
    assert [q["closed_at"] is not None for q in questions(book)] == [True]


def test_a_pause_replaces_a_breaker_and_a_breaker_never_a_pause(book: Book) -> None:
    with book.store.transaction() as tx:
        assert switches.trip_breaker(tx, "stripe", "default", reason="fails", probe_s=1)
        assert not switches.trip_breaker(tx, "stripe", "default", reason="fails", probe_s=1)
        assert switches.pause(tx, "stripe", "default", kind="pause", reason="401", by="sender")
        assert not switches.pause(tx, "stripe", "default", kind="pause", reason="401", by="me")
        assert not switches.trip_breaker(tx, "stripe", "default", reason="fails", probe_s=1)
        assert not switches.close_breaker(tx, "stripe", "default")
    (switch,) = book.sql("SELECT kind, reason, probe_at FROM outbox.switches")
    assert switch == {"kind": "pause", "reason": "401", "probe_at": None}
    assert pages(book) == [("trigger", "paused")]
    with book.store.transaction() as tx:
        assert switches.resume(tx, "stripe", "default", by="me", reason="new key")
        assert not switches.resume(tx, "stripe", "default", by="me", reason="again")
    assert pages(book)[-1] == ("resolve", "paused")


def test_the_probe_of_one_account_lets_nothing_of_a_paused_one_through(book: Book) -> None:
    other = replace(ACCOUNT, name="other")
    probing = book.enqueue()
    book.enqueue(scope=replace(SCOPE, account="other"))
    with book.store.transaction() as tx:
        switches.trip_breaker(tx, "stripe", "default", reason="fails", probe_s=15)
        switches.pause(tx, "stripe", "other", kind="pause", reason="incident", by="me")
    book.forward(16)
    claimer = book.claimer(ACCOUNT, other)
    assert [row.id for row in claimer.claim(64)] == [probing.intent_id]
    assert claimer.claim(64) == []


def test_a_probe_that_fails_doubles_the_wait_up_to_its_limit(book: Book) -> None:
    with book.store.transaction() as tx:
        switches.trip_breaker(tx, "stripe", "default", reason="fails", probe_s=15)
    for wanted in (30, 60, 100, 100):
        with book.store.transaction() as tx:
            switches.slow_breaker(tx, "stripe", "default", max_s=100)
        assert book.value("SELECT probe_after_s FROM outbox.switches") == wanted


@pytest.mark.parametrize(
    ("changes", "is_a_problem"),
    [
        ({}, False),
        ({"mode": "live"}, True),
        ({"vendor_account": "acct_2"}, True),
        ({"vendor_account": ""}, False),  # nobody says it: the vendor is asked
        ({"credential": "sk_test_rolled"}, False),
    ],
)
def test_a_name_may_not_change_whom_it_stands_for_while_it_owes_something(
    book: Book, changes: dict[str, str], is_a_problem: bool
) -> None:
    ours = replace(ACCOUNT, vendor_account="acct_1")
    changed = replace(ours, **changes)  # type: ignore[arg-type]
    with book.store.transaction() as tx:
        switches.freeze_account(tx, "stripe", ours)
        assert switches.account_problem(tx, "stripe", changed) is None
    book.enqueue()
    book.claimer(ours).claim(1)
    with book.store.transaction() as tx:
        problem = switches.account_problem(tx, "stripe", changed)
        assert (problem is not None) == is_a_problem
        assert "sk_test" not in (problem or "")


def test_a_new_timeline_is_seen_once(book: Book) -> None:
    with book.store.transaction() as tx:
        assert [switches.timeline_changed(tx, line) for line in (1, 1, 2, 2)] == [
            False,
            False,
            True,
            False,
        ]

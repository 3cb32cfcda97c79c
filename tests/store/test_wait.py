"""Waiting for an outcome: an answer, never an exception, and never more than the ledger knows."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox import Invalid, Outbox
from outbox.outcomes import Lost, Outcome, Refused
from outbox.states import Event
from outbox.store import intents, records
from outbox.store.connection import Store
from outbox.store.contradictions import contradict
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, Book, charge, receipt


def settle(book: Book, intent_id: UUID, outcome: Outcome | None = None) -> None:
    (row,) = [r for r in book.claimer().claim(64) if r.id == intent_id]
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, outcome or receipt(row))])


def test_a_settled_outcome_is_told_at_once_and_marked_as_told(book: Book) -> None:
    answer = book.enqueue()
    settle(book, answer.intent_id)
    seen = book.outbox.wait(answer)
    assert (seen.told, seen.receipt_id) == ("settled", "pi_1")
    assert book.row(answer.intent_id).told_at is not None


@pytest.mark.parametrize(
    ("outcome", "word"),
    [(Lost("no reply"), "unknown"), (Refused("declined", covers_key=True), "failed")],
)
def test_the_words_are_those_of_the_ledger(book: Book, outcome: Outcome, word: str) -> None:
    answer = book.enqueue()
    settle(book, answer.intent_id, outcome)
    seen = book.outbox.wait(answer.intent_id, timeout_s=0)
    assert seen.told == word
    assert (book.row(answer.intent_id).told_at is not None) == (word == "failed")


def test_an_intent_in_flight_is_accepted_until_an_earlier_attempt_is_in_doubt(book: Book) -> None:
    row = book.in_flight()
    assert book.outbox.wait(row.id, timeout_s=0).told == "accepted"
    book.sql("UPDATE outbox.intents SET doubt = 1")
    seen = book.outbox.wait(row.id, timeout_s=0)
    assert seen.told == "unknown"
    assert "do NOT retry" in seen.next


def test_a_contradiction_is_told_as_unknown_and_is_not_marked_as_told(book: Book) -> None:
    answer = book.enqueue()
    settle(book, answer.intent_id)
    with book.store.transaction() as tx:
        row = intents.lock(tx, answer.intent_id)
        assert row is not None
        contradict(tx, row, "duplicate", ["pi_2"], "look-up")
    seen = book.outbox.wait(answer, timeout_s=0)
    assert (seen.told, seen.receipt_id, seen.business_status) == ("unknown", None, None)
    assert book.row(answer.intent_id).told_at is None


def test_waiting_ends_when_the_outcome_comes(book: Book) -> None:
    answer = book.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(book.outbox.wait, answer, 30.0)
        settle(book, answer.intent_id)
        assert waiting.result().told == "settled"


def test_coroutines_wait_too(book: Book) -> None:
    answer = book.enqueue()
    settle(book, answer.intent_id)
    assert asyncio.run(book.outbox.await_settled(str(answer.intent_id))).told == "settled"


def test_waiting_inside_the_transaction_that_enqueued_is_refused(book: Book) -> None:
    with psycopg.connect(book.url) as connection:
        answer = book.outbox.enqueue(connection, CHARGE, SCOPE, charge())
        with pytest.raises(Invalid) as refused:
            book.outbox.wait(answer, timeout_s=30.0)
        assert refused.value.field == "intent"
    assert book.outbox.wait(answer, timeout_s=0).told == "accepted"


def test_a_rolled_back_intent_is_unknown_and_never_said_to_be_done(book: Book) -> None:
    with psycopg.connect(book.url) as connection:
        answer = book.outbox.enqueue(connection, CHARGE, SCOPE, charge())
        connection.rollback()
    seen = book.outbox.wait(answer, timeout_s=0)
    assert (seen.told, seen.status) == ("unknown", "not_seen")


def test_an_id_nobody_knows_is_unknown_and_what_is_no_id_is_refused(book: Book) -> None:
    assert book.outbox.wait(uuid4(), timeout_s=0).told == "unknown"
    with pytest.raises(Invalid) as refused:
        book.outbox.wait("the last one")
    assert refused.value.field == "intent"


@pytest.mark.parametrize("kind", ["refuses", "is silent"])
def test_a_database_that_is_away_is_an_unknown_answer_in_bounded_time(
    book: Book, kind: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = 1 if kind == "refuses" else listener.getsockname()[1]
        away = replace(book.settings, database_url=f"postgresql+psycopg://u@127.0.0.1:{port}/d")
        outbox = Outbox(away)
        began = time.monotonic()
        seen = outbox.wait(uuid4(), timeout_s=0.2)
        assert (seen.told, seen.status) == ("unknown", "not_seen")
        assert "do NOT retry" in seen.next
        assert time.monotonic() - began < 3.0
        listener.close()
        outbox.close()


@pytest.mark.parametrize("kind", ["there is no such table", "it may not be read"])
def test_a_ledger_that_cannot_be_read_is_an_unknown_answer(book: Book, kind: str) -> None:
    answer = book.enqueue()
    settings = book.settings
    if kind == "there is no such table":
        book.sql("ALTER TABLE outbox.intents RENAME TO elsewhere")
    else:
        role = f"weak_{book.value('SELECT current_database()')}"
        book.sql(f"CREATE ROLE {role} LOGIN")
        settings = replace(settings, database_url=as_role(settings.database_url, role))
    outbox = Outbox(settings)
    seen = outbox.wait(answer, timeout_s=0.1)
    outbox.close()
    assert (seen.told, seen.status) == ("unknown", "not_seen")


def as_role(url: str, role: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.partition('@')[2]}"


@pytest.mark.parametrize("timeout_s", ["x", "5", True, [1], float("nan"), float("inf"), 1e300])
def test_a_time_to_wait_is_a_number_of_seconds(book: Book, timeout_s: Any) -> None:
    with pytest.raises(Invalid) as refused:
        book.outbox.wait(uuid4(), timeout_s)
    assert refused.value.field == "timeout_s"
    for at_once in (0, -1, -(10**400)):
        assert book.outbox.wait(uuid4(), at_once).told == "unknown"


def test_a_connection_that_was_killed_between_two_waits_is_replaced(book: Book) -> None:
    answer = book.enqueue()
    assert book.outbox.wait(answer, timeout_s=0).told == "accepted"
    book.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    store, book.store = book.store, Store(book.settings)
    settle(book, answer.intent_id)
    store.close()
    assert book.outbox.wait(answer, timeout_s=30.0).told == "settled"


def test_a_cancelled_intent_is_told_as_cancelled(book: Book) -> None:
    answer = book.enqueue()
    with book.store.transaction() as tx:
        row = intents.lock(tx, answer.intent_id)
        assert row is not None
        apply(tx, row, Event.CANCELLED, Change(actor="me"))
    assert book.outbox.wait(answer, timeout_s=0).told == "cancelled"

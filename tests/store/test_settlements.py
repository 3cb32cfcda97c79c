"""Results reach each consumer exactly once, whatever commits, rolls back or races."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import Invalid
from outbox.outcomes import Business, Refused, Standing
from outbox.store import intents, records, settlements
from outbox.store.business import move_business
from outbox.store.contradictions import contradict
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, Book, charge, reading, receipt, wait_until


def settle(book: Book, count: int = 1) -> None:
    """So many intents, enqueued, sent and landed."""
    with book.engine.begin() as connection:
        book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(count)])
    rows = book.claimer().claim(count)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}")) for row in rows])


def take(book: Book, consumer: str = "billing", limit: int = 100) -> list[int]:
    with Session(book.engine) as session, session.begin():
        session.execute(text("SET LOCAL lock_timeout = '5s'"))
        return [one.id for one in book.outbox.settlements(session, consumer, limit)]


def test_a_result_says_whose_it_is_and_what_became_of_it(book: Book) -> None:
    answer = book.enqueue(args=charge("in_7"))
    (row,) = book.claimer().claim(1)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
    with Session(book.engine) as session, session.begin():
        (one,) = book.outbox.settlements(session, "billing")
    assert (one.intent_id, one.kind, one.told) == (answer.intent_id, "settled", "settled")
    assert (one.receipt_id, one.business_status, one.settled_by) == ("pi_1", "paid", "reply")
    assert one.identity == {"invoice_id": "in_7"}
    assert one.guard == {"amount": 4900, "currency": "usd", "customer": "cus_1"}
    assert (one.amount_minor, one.currency, one.tenant) == (4900, "usd", "acme")
    assert "in_7" not in repr(one)


def test_every_consumer_gets_each_result_once(book: Book) -> None:
    settle(book, 3)
    assert len(take(book, "billing")) == 3
    assert take(book, "billing") == []
    assert len(take(book, "mail")) == 3
    settle(book, 2)
    assert [len(take(book, name)) for name in ("mail", "billing")] == [2, 2]


@pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
def test_a_rollback_gives_them_back(book: Book, kind: str) -> None:
    settle(book, 2)
    taken = take(book, "first")
    openers: dict[str, Callable[[], Any]] = {
        "session": lambda: Session(book.engine),
        "connection": book.engine.connect,
        "psycopg": lambda: psycopg.connect(book.url),
    }
    opened = openers[kind]()
    with opened:
        assert [s.id for s in book.outbox.settlements(opened, "billing")] == taken
        opened.rollback()
        assert [s.id for s in book.outbox.settlements(opened, "billing")] == taken
        opened.commit()
    assert take(book, "billing") == []


def test_concurrent_takers_share_the_results_and_get_none_twice(book: Book) -> None:
    settle(book, 40)
    assert len(take(book, limit=1)) == 1
    start = threading.Barrier(5)

    def work(_: int) -> list[int]:
        start.wait()
        got: list[int] = []
        for _ in range(12):
            got += take(book, limit=3)
        return got

    with ThreadPoolExecutor(5) as pool:
        got = [one for part in pool.map(work, range(5)) for one in part]
    assert len(got) == len(set(got)) == 39


def test_a_taker_that_is_slow_holds_up_nobody(book: Book) -> None:
    settle(book, 4)
    take(book, limit=1)
    with Session(book.engine) as slow:
        held = [one.id for one in book.outbox.settlements(slow, "billing", 2)]
        others = take(book)
        assert (len(held), len(others)) == (2, 1)
        slow.rollback()
    assert take(book) == held


def test_a_consumer_that_registers_while_results_are_written_misses_none(book: Book) -> None:
    with book.engine.begin() as connection:
        book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(60)])
    rows = book.claimer().claim(60)
    names = [f"consumer-{n}" for n in range(12)]
    start = threading.Barrier(3)

    def write(part: int) -> None:
        start.wait()
        for row in rows[part::2]:
            with book.store.transaction() as tx:
                records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}"))])

    def register() -> None:
        start.wait()
        for name in names:
            settlements.register(book.store, name)

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(write, 0), pool.submit(write, 1), pool.submit(register)]
        for job in jobs:
            job.result()
    got = Counter(
        {
            row["consumer"]: row["n"]
            for row in book.sql(
                "SELECT consumer, count(*) AS n FROM outbox.deliveries GROUP BY consumer"
            )
        }
    )
    assert got == dict.fromkeys(names, 60)


def test_registering_waits_for_a_result_that_is_not_committed_yet(book: Book) -> None:
    row = book.in_flight()
    with ThreadPoolExecutor(1) as pool:
        with book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row))])
            taken = pool.submit(take, book)
            wait_until(
                lambda: bool(
                    book.value(
                        "SELECT count(*) FROM pg_locks WHERE NOT granted "
                        "AND relation = 'outbox.registrations'::regclass"
                    )
                )
            )
        assert len(taken.result()) == 1


def test_a_result_with_a_lower_number_that_commits_later_is_not_skipped(book: Book) -> None:
    take(book)
    first, second = book.in_flight(), book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(first, receipt(first))])
        with book.store.transaction() as other:
            records.record(other, [Ended(second, receipt(second, "pi_2"))])
        (higher,) = take(book)
    (lower,) = take(book)
    assert lower < higher


def test_moves_of_the_business_status_and_contradictions_are_results_too(book: Book) -> None:
    settle(book)
    (answer,) = book.sql("SELECT id FROM outbox.intents")
    with book.store.transaction() as tx:
        row = intents.lock(tx, answer["id"])
        assert row is not None
        moved = reading(row, row.receipt_id or "", business=Business.REVERSED, word="refunded")
        assert move_business(tx, row, moved, actor="webhook", source="charge.refunded")
    with book.store.transaction() as tx:
        row = intents.lock(tx, answer["id"])
        assert row is not None
        assert not move_business(tx, row, moved, actor="webhook", source="again")
        contradict(tx, row, "duplicate", ["pi_9"], "look-up")
    with Session(book.engine) as session, session.begin():
        got = book.outbox.settlements(session, "billing")
    assert [(one.kind, one.told, one.business_status) for one in got] == [
        ("settled", "settled", "paid"),
        ("business", "settled", "reversed"),
        ("contradiction", "unknown", None),
    ]


def test_a_refusal_is_a_result(book: Book) -> None:
    row = book.in_flight()
    declined = Refused(
        "card_declined", covers_key=True, reading=reading(row, standing=Standing.DECLINED)
    )
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, declined)])
    with Session(book.engine) as session, session.begin():
        (one,) = book.outbox.settlements(session, "billing")
    assert (one.told, one.failure_code) == ("failed", "card_declined")


@pytest.mark.parametrize("consumer", ["", "x" * 101, "a\x00b", "a\nb", 7])
def test_a_consumer_has_a_printable_name(book: Book, consumer: Any) -> None:
    with book.engine.begin() as connection, pytest.raises(Invalid) as refused:
        book.outbox.settlements(connection, consumer)
    assert refused.value.field == "consumer"


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, "many"])
def test_a_limit_is_a_number_of_results(book: Book, limit: Any) -> None:
    with book.engine.begin() as connection, pytest.raises(Invalid) as refused:
        book.outbox.settlements(connection, "billing", limit)
    assert refused.value.field == "limit"


def test_a_ledger_of_any_size_is_handed_to_a_new_consumer_in_pieces(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death between two pieces loses nothing: the next call goes on where it ended."""
    for row in (book.in_flight() for _ in range(5)):
        with book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}"))])
    monkeypatch.setattr(settlements, "_PIECE", 2)
    fill = settlements._FILL
    monkeypatch.setattr(settlements, "_FILL", f"SELECT NULL AS filled_to FROM ({fill}) piece")
    settlements.register(book.store, "billing")  # ends after the first piece
    assert book.sql("SELECT count(*) AS n FROM outbox.deliveries") == [{"n": 2}]
    monkeypatch.setattr(settlements, "_FILL", fill)
    with Session(book.engine) as session, session.begin():
        assert len(book.outbox.settlements(session, "billing")) == 5


def test_a_later_result_of_an_intent_waits_for_the_one_that_another_consumer_holds(
    book: Book,
) -> None:
    row = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
    settlements.register(book.store, "billing")
    with Session(book.engine) as first, first.begin():
        assert len(book.outbox.settlements(first, "billing")) == 1
        with book.store.transaction() as tx:
            landed = intents.lock(tx, row.id)
            assert landed is not None
            moved = reading(
                landed, landed.receipt_id or "", business=Business.REVERSED, word="refunded"
            )
            assert move_business(tx, landed, moved, actor="webhook", source="charge.refunded")
        with Session(book.engine) as second, second.begin():
            assert book.outbox.settlements(second, "billing") == []
    with Session(book.engine) as session, session.begin():
        (later,) = book.outbox.settlements(session, "billing")
    assert later.kind == "business"


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
def test_autocommit_is_refused_and_takes_nothing(book: Book, kind: str) -> None:
    settle(book, 2)
    taken = take(book, "first")
    alone = book.engine.execution_options(isolation_level="AUTOCOMMIT")
    openers: dict[str, Callable[[], Any]] = {
        "connection": alone.connect,
        "session": lambda: Session(alone),
        "psycopg": lambda: psycopg.connect(book.url, autocommit=True),
    }
    with openers[kind]() as opened:
        with pytest.raises(Invalid, match="autocommit") as refused:
            book.outbox.settlements(opened, "billing")
        assert refused.value.field == "session"
        if kind == "psycopg":
            with opened.transaction(force_rollback=True):
                assert [s.id for s in book.outbox.settlements(opened, "billing")] == taken
    assert take(book) == taken

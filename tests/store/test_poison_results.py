"""A result that its consumer cannot use: it comes again later each time, holds up no other result,
and is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from outbox import Settlement
from outbox.consuming import Consumed, Consumer
from outbox.outcomes import Business
from outbox.store import intents, records, vitals
from outbox.store.business import move_business
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, Book, charge, reading, receipt

LIMIT = 2


class Shop:
    """An application that cannot use some results."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.bad: set[UUID] = set()
        self.raises: type[BaseException] = ValueError
        self.got: list[int] = []
        self.consumer = Consumer(book.settings, "billing", self.handle, limit=LIMIT)

    def handle(self, _: Session, settlement: Settlement) -> None:
        if settlement.intent_id in self.bad:
            raise self.raises
        self.got.append(settlement.id)

    def settled(self, count: int) -> list[UUID]:
        """So many results, oldest first."""
        with self.book.engine.begin() as connection:
            pairs = [(SCOPE, charge()) for _ in range(count)]
            self.book.outbox.enqueue_many(connection, CHARGE, pairs)
        rows = self.book.claimer().claim(count)
        with self.book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}")) for row in rows])
        found = self.book.sql("SELECT intent_id FROM outbox.settlements ORDER BY id")
        return [row["intent_id"] for row in found][-count:]

    def rounds(self, count: int) -> list[Consumed]:
        return [self.consumer.once() for _ in range(count)]


@pytest.fixture
def shop(book: Book) -> Iterator[Shop]:
    opened = Shop(book)
    yield opened
    opened.consumer.close()


def test_as_many_poison_results_as_a_batch_holds_hold_up_no_later_one(shop: Shop) -> None:
    shop.bad = set(shop.settled(6)[:LIMIT])
    seen = shop.rounds(3)
    assert [(one.done, len(one.failed), one.full) for one in seen] == [
        (0, 2, True),
        (2, 0, True),
        (2, 0, True),
    ]
    assert len(shop.got) == 4


def test_a_poison_result_comes_again_later_each_time_and_is_used_once_it_can_be(
    shop: Shop,
) -> None:
    shop.bad = set(shop.settled(1))
    for tries, pause_s in ((1, 1), (2, 2), (3, 4), (4, 8)):
        assert len(shop.consumer.once().failed) == 1
        assert shop.consumer.once().failed == ()
        (row,) = shop.book.sql("SELECT tries FROM outbox.deliveries")
        assert row["tries"] == tries
        shop.book.forward(pause_s)
    shop.bad = set()
    assert shop.consumer.once().done == 1
    assert len(shop.got) == 1


def test_a_poison_result_is_tried_at_least_every_ten_minutes(shop: Shop) -> None:
    shop.bad = set(shop.settled(1))
    shop.book.sql("UPDATE outbox.deliveries SET tries = 500")
    shop.consumer.once()
    shop.book.forward(601)
    assert len(shop.consumer.once().failed) == 1


def test_who_runs_it_by_hand_has_what_failed_before_at_once(shop: Shop) -> None:
    shop.bad = set(shop.settled(1))
    shop.consumer.once()
    shop.bad = set()
    assert shop.consumer.once().done == 0
    assert shop.consumer.once(hurry=True).done == 1


@pytest.mark.parametrize("raises", [asyncio.CancelledError, GeneratorExit, SystemExit])
def test_what_is_no_exception_takes_no_other_result_with_it(
    shop: Shop, raises: type[BaseException]
) -> None:
    shop.bad, shop.raises = set(shop.settled(LIMIT)[:1]), raises
    (seen,) = shop.rounds(1)
    assert (seen.done, [one.intent_id for one in seen.failed]) == (1, list(shop.bad))
    assert shop.book.value("SELECT count(*) FROM outbox.deliveries WHERE consumed_at IS NULL") == 1


def test_an_interrupt_ends_the_program_and_consumes_nothing(shop: Shop) -> None:
    shop.bad, shop.raises = set(shop.settled(LIMIT)[1:]), KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        shop.consumer.once()
    assert shop.book.value("SELECT count(*) FROM outbox.deliveries WHERE consumed_at IS NULL") == 2


def test_many_results_of_one_poison_intent_hold_up_no_other_and_keep_their_order(
    shop: Shop,
) -> None:
    (poison,) = shop.settled(1)
    shop.bad = {poison}
    shop.consumer.once()
    words = ("reversed", "paid", "reversed")
    for word in words:
        with shop.book.store.transaction() as tx:
            row = intents.lock(tx, poison)
            assert row is not None
            moved = reading(row, row.receipt_id or "", business=Business(word), word=word)
            assert move_business(tx, row, moved, actor="webhook", source="event")
    shop.settled(1)
    (seen,) = shop.rounds(1)
    assert (seen.done, seen.failed) == (1, ())
    shop.bad = set()
    shop.book.forward(2)
    shop.rounds(3)
    in_order = shop.book.sql(
        "SELECT id FROM outbox.settlements WHERE intent_id = %(id)s ORDER BY id", {"id": poison}
    )
    assert shop.got[1:] == [row["id"] for row in in_order]
    assert len(shop.got) == 2 + len(words)


def test_what_nobody_takes_and_what_fails_is_seen(shop: Shop) -> None:
    shop.settled(1)
    shop.consumer.once()
    shop.bad = set(shop.settled(2)[:1])
    shop.book.forward(500)
    assert gauges(shop.book) == (500, 0, None)
    shop.consumer.once()
    assert gauges(shop.book) == (500, 1, 500)
    shop.bad = set()
    shop.consumer.once(hurry=True)
    assert gauges(shop.book) == (None, 0, None)


def gauges(book: Book) -> tuple[int | None, int, int | None]:
    """Whole minutes' worth of seconds, so that the test's own time does not count."""
    with book.store.transaction() as tx:
        found = vitals.gauges(tx)
    ages = [found["oldest_undelivered_s"], found["oldest_failing_s"]]
    whole = [None if age is None else round(age / 100) * 100 for age in ages]
    return whole[0], found["results_failing"], whole[1]

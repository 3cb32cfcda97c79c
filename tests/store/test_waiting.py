"""Coroutines that wait: one thread for all of them, and nothing is marked that nobody heard."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox import Answer, Invalid, Outbox
from outbox.store import callers, enqueueing, records
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, TURN, Book, charge, receipt, wait_until

MANY = 60


def settle(book: Book, *intents: Answer) -> None:
    rows = book.claimer().claim(len(intents))
    assert {row.id for row in rows} == {answer.intent_id for answer in intents}
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}")) for row in rows])


def told(book: Book, intent_id: UUID) -> bool:
    return bool(
        book.value(
            "SELECT COALESCE(told_at > retracted_at, told_at IS NOT NULL) FROM outbox.intents "
            "WHERE id = %(id)s",
            {"id": intent_id},
        )
    )


def waiting_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "outbox-waiting"]


def test_many_coroutines_wait_in_one_thread_and_all_hear_of_it(book: Book) -> None:
    asked = [book.enqueue() for _ in range(MANY)]
    before = threading.active_count()

    async def all_of_them() -> list[Answer]:
        waits = [asyncio.create_task(book.outbox.await_settled(one, 60.0)) for one in asked]
        await asyncio.sleep(0)
        # The one that waits, with what its pool of connections has.
        assert len(waiting_threads()) == 1
        assert threading.active_count() - before < MANY / 2
        await asyncio.to_thread(settle, book, *asked)
        return await asyncio.gather(*waits)

    answers = asyncio.run(all_of_them())
    assert [(a.intent_id, a.told) for a in answers] == [(a.intent_id, "settled") for a in asked]
    assert all(told(book, one.intent_id) for one in asked)
    wait_until(lambda: not waiting_threads())


def test_a_wait_of_no_time_looks_once(book: Book) -> None:
    asked = book.enqueue()
    assert asyncio.run(book.outbox.await_settled(asked, 0)).told == "accepted"
    settle(book, asked)
    seen = asyncio.run(book.outbox.await_settled(asked, 0))
    assert (seen.told, seen.deduplicated, told(book, asked.intent_id)) == ("settled", False, True)


def test_event_loops_of_many_threads_wait_beside_each_other(book: Book) -> None:
    asked = [book.enqueue() for _ in range(4)]
    answers: dict[int, str] = {}

    def one(n: int) -> None:
        answers[n] = asyncio.run(book.outbox.await_settled(asked[n], 60.0)).told

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    settle(book, *asked)
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(4), "settled")


def test_a_cancelled_wait_marks_nothing_and_ends_its_thread(book: Book) -> None:
    asked = book.enqueue()

    async def turn() -> None:
        wait = asyncio.create_task(book.outbox.await_settled(asked, 60.0))
        await asyncio.sleep(0)
        assert waiting_threads()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(turn())
    settle(book, asked)
    wait_until(lambda: not waiting_threads())
    assert book.row(asked.intent_id).told_at is None


def test_a_wait_that_is_cancelled_while_its_answer_is_marked_is_told_again(book: Book) -> None:
    asked = book.enqueue(TURN, replace(SCOPE, epoch="e1"), charge("in_1"))
    settle(book, asked)
    with psycopg.connect(book.url) as held:
        held.execute("LOCK TABLE outbox.intents IN EXCLUSIVE MODE")

        async def turn() -> None:
            wait = asyncio.create_task(book.outbox.await_settled(asked, 60.0))
            await asyncio.to_thread(wait_until, lambda: _waits_for_a_lock(book))
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait

        asyncio.run(turn())
    wait_until(lambda: not waiting_threads())
    assert not told(book, asked.intent_id)
    again = book.enqueue(TURN, replace(SCOPE, epoch="e2"), charge("in_1", amount=4900))
    assert (again.intent_id, again.told) == (asked.intent_id, "settled")


def test_what_nobody_heard_is_taken_back_once_the_host_has_a_thread_for_it(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, other = book.enqueue(), book.enqueue(args=charge("in_2"))
    settle(book, asked)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "outbox-waiting":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def turn() -> None:
        with psycopg.connect(book.url) as held:
            held.execute("LOCK TABLE outbox.intents IN EXCLUSIVE MODE")
            wait = asyncio.create_task(book.outbox.await_settled(asked, 60.0))
            await asyncio.to_thread(wait_until, lambda: _waits_for_a_lock(book))
        # Its mark is written and its thread has ended, before this loop hears of either.
        wait_until(lambda: not waiting_threads())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(turn())
    assert told(book, asked.intent_id)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert asyncio.run(book.outbox.await_settled(other, 0)).told == "accepted"
    wait_until(lambda: not waiting_threads())
    assert not told(book, asked.intent_id)


def _waits_for_a_lock(book: Book) -> bool:
    return bool(
        book.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock'"
        )
    )


def test_a_wait_whose_mark_cannot_be_written_has_its_answer_and_marks_nothing(book: Book) -> None:
    asked = book.enqueue()
    settle(book, asked)
    with psycopg.connect(book.url) as held:
        held.execute("SELECT FROM outbox.intents FOR UPDATE")
        assert book.outbox.wait(asked, 0).told == "settled"
        assert asyncio.run(book.outbox.await_settled(asked, 0)).told == "settled"
    assert not told(book, asked.intent_id)
    assert book.outbox.wait(asked, 0).told == "settled"
    assert told(book, asked.intent_id)


def test_what_moved_between_the_read_and_the_mark_is_not_marked(book: Book) -> None:
    asked = book.enqueue()
    settle(book, asked)
    with psycopg.connect(book.url) as held:
        held.execute("LOCK TABLE outbox.intents IN EXCLUSIVE MODE")
        waiting = threading.Thread(target=book.outbox.wait, args=(asked, 0))
        waiting.start()
        wait_until(lambda: _waits_for_a_lock(book))
        held.execute("UPDATE outbox.intents SET version = version + 1")
        held.commit()
        waiting.join()
    assert not told(book, asked.intent_id)


def test_what_moved_before_a_repeat_is_answered_is_not_marked_by_it(book: Book) -> None:
    asked = book.enqueue()
    settle(book, asked)
    read = book.row(asked.intent_id).version
    book.sql("UPDATE outbox.intents SET version = version + 1")
    for version, is_marked in ((read, False), (read + 1, True)):
        with psycopg.connect(book.url) as caller:
            callers.run(enqueueing.tell({"id": asked.intent_id, "version": version}), caller)
        assert told(book, asked.intent_id) is is_marked


def test_coroutines_hear_the_same_refusals_as_threads(book: Book) -> None:
    with psycopg.connect(book.url) as connection:
        still_open = book.outbox.enqueue(connection, CHARGE, SCOPE, charge())
        for wrong, field in ((still_open, "intent"), ("the last one", "intent")):
            with pytest.raises(Invalid) as refused:
                asyncio.run(book.outbox.await_settled(wrong, 30.0))
            assert refused.value.field == field
    with pytest.raises(Invalid) as refused:
        asyncio.run(book.outbox.await_settled(uuid4(), float("nan")))
    assert refused.value.field == "timeout_s"


def test_a_database_that_is_away_is_an_unknown_answer_for_coroutines_too(book: Book) -> None:
    away = Outbox(replace(book.settings, database_url="postgresql+psycopg://u@127.0.0.1:1/d"))
    seen = asyncio.run(away.await_settled(uuid4(), 0.1))
    assert (seen.told, seen.status) == ("unknown", "not_seen")
    away.close()

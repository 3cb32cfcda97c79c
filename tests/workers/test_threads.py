"""A host that refuses a thread for a moment: what was to run in it runs, now or later."""

from __future__ import annotations

import asyncio
import threading

import pytest

from outbox import Outbox
from tests.workers.floor import WAIT_S, Floor
from workers.means import Threads
from workers.rounds import Rounds


class Host:
    """Refuses so many threads from now on, of those whose name begins so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses, self.prefix = 0, "outbox-"
        start = threading.Thread.start

        def maybe(thread: threading.Thread) -> None:
            if self.refuses and thread.name.startswith(self.prefix):
                self.refuses -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", maybe)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_the_first_is_done_by_who_asks_and_the_next_has_a_thread(host: Host) -> None:
    threads, done = Threads(1), threading.Event()
    where: list[str] = []

    def work(event: threading.Event) -> None:
        where.append(threading.current_thread().name)
        event.set()

    host.refuses = 1
    threads.submit(work, threading.Event())
    threads.submit(work, done)
    assert done.wait(WAIT_S)
    assert where == [threading.current_thread().name, "outbox-send-1"]
    threads.shutdown()


def test_what_finds_no_thread_is_done_by_one_that_there_is(host: Host) -> None:
    threads, begun, go, done = Threads(2), *(threading.Event() for _ in range(3))

    def hold(event: threading.Event) -> None:
        event.set()
        go.wait(WAIT_S)

    threads.submit(hold, begun)
    assert begun.wait(WAIT_S)
    host.refuses = 1
    threads.submit(threading.Event.set, done, 2)
    assert not done.is_set()
    go.set()
    assert done.wait(WAIT_S)
    threads.shutdown()


def test_a_thread_that_is_not_idle_yet_is_waited_for_and_no_other_one_started() -> None:
    """Each took a session with connections of its own: four times as many as there were places."""
    threads, told, go, done = Threads(4), *(threading.Event() for _ in range(3))
    where: list[str] = []

    def linger(event: threading.Event) -> None:
        event.set()  # its outcome is told, and the next work comes
        go.wait(WAIT_S)

    def work(event: threading.Event) -> None:
        where.append(threading.current_thread().name)
        event.set()

    threads.submit(linger, told)
    assert told.wait(WAIT_S)
    threads.submit(work, done)
    go.set()
    assert done.wait(WAIT_S)
    assert where == ["outbox-send-1"]
    threads.shutdown()


def test_a_job_that_found_no_thread_runs_the_next_time(host: Host) -> None:
    rounds = Rounds()
    host.refuses = 1
    with pytest.raises(RuntimeError):
        rounds.begin("join", lambda: None)
    done = rounds.begin("join", lambda: None)
    assert done is not None
    assert done.wait(WAIT_S)
    rounds.finish(WAIT_S)


@pytest.mark.parametrize("refuses", [1, 3, 20])
def test_a_drain_without_threads_for_its_calls_or_its_answers_loses_none(
    floor: Floor, host: Host, refuses: int
) -> None:
    ids = floor.enqueue(8)
    _ = floor.sender
    host.prefix, host.refuses = "outbox-send", refuses
    while floor.drain():
        pass
    assert floor.statuses() == {"succeeded": 8}
    assert all(floor.effects(i) == 1 for i in ids)
    assert not floor.sender.has_late_answers()


def test_looks_that_find_no_thread_are_begun_once_there_is_one(host: Host, floor: Floor) -> None:
    """Each kept its place for good, and with the last of them nothing was looked up any more."""
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intents = [floor.one() for _ in range(3)]
    floor.drain()
    assert floor.statuses() == {"unknown": 3}
    host.prefix, host.refuses = "outbox-look", 1000
    hold_s = floor.settings.policy.look_hold_s()
    for _ in range(20):
        floor.advance(hold_s + 1)
        floor.look()
    assert floor.statuses() == {"unknown": 3}
    host.refuses = 0
    floor.advance(hold_s + 1)
    # One reading of the list shows them all.
    assert floor.look() == 3
    assert floor.statuses() == {"succeeded": 3}
    assert [floor.effects(intent_id) for intent_id in intents] == [1, 1, 1]


def test_a_coroutine_that_finds_no_thread_is_answered_all_the_same(
    host: Host, floor: Floor
) -> None:
    intent_id, outbox = floor.one(), Outbox(floor.settings)
    host.prefix, host.refuses = "outbox-waiting", 10**6
    answer = asyncio.run(outbox.await_settled(intent_id, 0.3))
    assert (answer.intent_id, answer.told) == (intent_id, "unknown")
    floor.drain()
    host.refuses = 1
    assert asyncio.run(outbox.await_settled(intent_id)).told == "settled"
    outbox.close()


def test_who_waits_without_a_thread_for_connections_is_answered_all_the_same(
    host: Host, floor: Floor
) -> None:
    intent_id, outbox = floor.one(), Outbox(floor.settings)
    floor.drain()
    host.prefix, host.refuses = "pool-", 10**6
    answer = outbox.wait(intent_id, 0.3)
    assert (answer.intent_id, answer.told) == (intent_id, "unknown")
    host.refuses = 0
    assert outbox.wait(intent_id).told == "settled"
    outbox.close()

"""A task's time limit ends the waiting and never the work."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from tests.workers.floor import wait_until
from workers.rounds import Rounds


def _limit(thread: threading.Thread) -> None:
    """Raises the soft limit's exception at whatever line the thread is."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SoftTimeLimitExceeded)
    )


def test_a_soft_limit_ends_the_task_and_the_work_goes_on() -> None:
    """B37: the limit fires in the middle of the job."""
    rounds, begun, go = Rounds(), threading.Event(), threading.Event()
    done: list[str] = []

    def job() -> None:
        begun.set()
        assert go.wait(10)
        done.append("recorded")

    def work() -> None:
        # From another thread the exception may land a line later than a signal's would.
        with suppress(SoftTimeLimitExceeded):
            rounds.run("drain", job)

    task = threading.Thread(target=work)
    task.start()
    assert begun.wait(5)
    _limit(task)
    # An exception from another thread lands once the wait has ended: the job must outlive it.
    go.set()
    task.join(5)
    rounds.finish(5)
    assert done == ["recorded"]


def test_a_job_that_still_runs_is_not_begun_again() -> None:
    """B58: ticks that come while the last one is at work do nothing."""
    rounds, go = Rounds(), threading.Event()
    begun: list[int] = []

    def job() -> None:
        begun.append(1)
        assert go.wait(10)

    first = threading.Thread(target=rounds.run, args=("resolve", job))
    first.start()
    wait_until(lambda: begun)
    rounds.run("resolve", job)
    assert begun == [1]
    go.set()
    first.join(5)
    rounds.run("resolve", job)
    assert begun == [1, 1]


def test_a_job_that_fails_does_not_block_the_next_one() -> None:
    rounds = Rounds()
    ran: list[int] = []

    def job() -> Any:
        ran.append(1)
        raise RuntimeError("a bug")

    rounds.run("join", job)
    rounds.run("join", job)
    assert ran == [1, 1]


def test_a_job_that_is_begun_is_not_waited_for_and_ends_before_the_process_does() -> None:
    rounds, go = Rounds(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        assert go.wait(10)
        done.append("page")

    assert rounds.begin("page", slow) is not None
    assert rounds.begin("page", slow) is None, "it still runs"
    rounds.run("join", lambda: done.append("join"))
    assert done == ["join"]
    go.set()
    rounds.finish(5)
    assert done == ["join", "page"]

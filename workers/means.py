"""What a sender has of its host: threads, the watch over their calls, a monotonic clock, and the
time to wait. A worker has real ones; whoever steps through its calls one by one brings others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from vendors.watchdog import Watchdog
from workers.monotonic import since_boot_s

T = TypeVar("T")


class Pool(Protocol):
    """Threads that call, or write."""

    def submit(self, work: Callable[[T], None], of: T, at_once: int = 1, /) -> object:
        """Has one of them do it; ``at_once`` is how much may be under way, with this."""

    def shutdown(self) -> None:
        """Ends them; nothing may be under way."""


class Threads:
    """Threads that are started as they are needed, so many at the most. What the work comes to is
    told by what is worked on: the standard pool makes a future for each, which was a fifth of what
    the sender did for an intent. How many are needed is told too: a thread that has told its
    outcome is not idle yet when the next work comes, and each such moment would start another one,
    with connections of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._started = 0
        self._work = queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None]()

    def submit(self, work: Callable[[T], None], of: T, at_once: int = 1, /) -> None:
        """Has one of them do what raises nothing. To be asked by one thread alone."""
        self._work.put((work, of))
        if self._started < min(at_once, self._most):
            self._start()

    def shutdown(self) -> None:
        """Ends them after what they are at."""
        self._work.put(None)

    def _start(self) -> None:
        name = f"outbox-send-{self._started + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            # The host refuses a thread for now: those that there are will come to it, or else it is
            # done at once, by whoever asked.
            if not self._started:
                task = self._work.get_nowait()
                if task is not None:
                    work, of = task
                    work(of)
            return
        self._started += 1

    def _run(self) -> None:
        while True:
            task = self._work.get()
            if task is None:
                self._work.put(None)  # for the next one
                return
            work, of = task
            work(of)
            # Nobody's arguments stay in memory until the next ones come.
            del task, work, of


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Means:
    """``pool`` makes threads, so many at the most; ``watchdog`` what cuts a call at
    its deadline; ``since_boot_s`` is the clock by which a call may no longer begin; ``pause`` waits
    so many seconds for a database or a row that somebody has in hand."""

    pool: Callable[[int], Pool] = Threads
    watchdog: Callable[[], Watchdog] = Watchdog
    since_boot_s: Callable[[], float] = since_boot_s
    pause: Callable[[float], None] = _pause

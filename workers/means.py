"""What a sender has of its host: threads, the watch over their calls, a monotonic clock, and the
time to wait. A worker has real ones; whoever steps through its calls one by one brings others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vendors.watchdog import Watchdog
from workers.flight import Flight
from workers.monotonic import since_boot_s

Fly = Callable[[Flight], None]


class Pool(Protocol):
    """The threads that call."""

    def submit(self, fly: Fly, flight: Flight, /) -> object:
        """Has one of them make the call."""

    def shutdown(self) -> None:
        """Ends them; nothing may be in flight."""


class Threads:
    """Threads that are started as they are needed, so many at the most. What the calls come to is
    told by the flights: the standard pool makes a future for each, which was a fifth of what the
    sender did for an intent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._started = 0
        self._calls = queue.SimpleQueue[tuple[Fly, Flight] | None]()
        # One for each thread that waits for a call.
        self._idle = queue.SimpleQueue[None]()

    def submit(self, fly: Fly, flight: Flight, /) -> None:
        """Has one of them make the call, which raises nothing. To be called by one thread alone."""
        self._calls.put((fly, flight))
        try:
            self._idle.get_nowait()
        except queue.Empty:
            if self._started < self._most:
                self._started += 1
                name = f"outbox-send-{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def shutdown(self) -> None:
        """Ends them after their present call."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                self._idle.put(None)
                call = self._calls.get()
            if call is None:
                self._calls.put(None)  # for the next one
                return
            fly, flight = call
            fly(flight)
            # What it called with must not stay in memory until its next call.
            del call, fly, flight


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Means:
    """``pool`` makes the threads that call, so many at the most; ``watchdog`` what cuts a call at
    its deadline; ``since_boot_s`` is the clock by which a call may no longer begin; ``pause`` waits
    so many seconds for a database or a row that somebody has in hand."""

    pool: Callable[[int], Pool] = Threads
    watchdog: Callable[[], Watchdog] = Watchdog
    since_boot_s: Callable[[], float] = since_boot_s
    pause: Callable[[float], None] = _pause

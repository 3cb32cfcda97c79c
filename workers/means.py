"""What a sender has of its host: threads, the watch over their calls, a monotonic clock, and the
time to wait. A worker has real ones; whoever steps through its calls one by one brings others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from vendors.watchdog import Watchdog
from workers.monotonic import since_boot_s


def _pool(threads: int) -> Executor:
    return ThreadPoolExecutor(threads, thread_name_prefix="outbox-send")


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Means:
    """``pool`` makes the threads that call, so many at the most; ``watchdog`` what cuts a call at
    its deadline; ``since_boot_s`` is the clock by which a call may no longer begin; ``pause`` waits
    so many seconds for a database or a row that somebody has in hand."""

    pool: Callable[[int], Executor] = _pool
    watchdog: Callable[[], Watchdog] = Watchdog
    since_boot_s: Callable[[], float] = since_boot_s
    pause: Callable[[float], None] = _pause

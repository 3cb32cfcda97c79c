"""What a worker process does by itself, whatever becomes of the broker: it sends what is due at
each tick and when the doorbell rings, and runs each job that nobody else has run."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial

from outbox.errors import Unreachable
from workers.rounds import Rounds
from workers.runtime import Runtime
from workers.sender import STOP_SLACK_S

_log = logging.getLogger(__name__)
# How soon it is seen that the process was told to end.
_TOLD_S = 0.25


class Poller:
    """Polls Postgres from inside a worker process, so that a dead broker delays and never stops.
    One thread drains what is due, and listens to the doorbell meanwhile; another starts each job
    that is late, in a thread of its own, and a third asks whose accounts are: a vendor or a pager
    that hangs cannot hold up the webhooks."""

    def __init__(self, runtime: Runtime, stopping: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._stopping = stopping
        self._ended = threading.Event()
        self._rounds = Rounds()
        self._threads = [
            threading.Thread(target=run, name=f"outbox-{name}", daemon=True)
            for name, run in (
                ("poll", self._poll),
                ("fill-in", partial(self._repeat, self._fill_in)),
                ("identify", partial(self._repeat, runtime.identify)),
            )
        ]
        self._ending = threading.Thread(target=self._end_in_time, name="outbox-end", daemon=True)

    def start(self) -> None:
        """Begins to poll."""
        for thread in (*self._threads, self._ending):
            thread.start()

    def stop(self, limit_s: float | None = None) -> None:
        """Ends the threads after their present round; waits so long at the most."""
        self._ended.set()
        end = math.inf if limit_s is None else time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(min(max(end - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
        self._rounds.finish(min(max(end - time.monotonic(), 0.0), threading.TIMEOUT_MAX))

    def _poll(self) -> None:
        sender = self._runtime.sender
        tick_at = time.monotonic() + sender.next_in_s()
        while True:
            rung = self._wait_for_ring(tick_at)
            if self._is_over():
                # What somebody's transaction held was left to a next drain, and there is none.
                self._attempt(self._runtime.finish)
                return
            # Whoever rang has committed a row: nothing need be asked first.
            self._attempt(self._runtime.drain if rung else self._send)
            next_at = time.monotonic() + sender.next_in_s()
            tick_at = min(tick_at, next_at) if rung else next_at

    def _wait_for_ring(self, until: float) -> bool:
        """Whether the doorbell rang before that time, by the monotonic clock."""
        while not self._is_over() and (left_s := until - time.monotonic()) > 0:
            rung = self._runtime.bell.listen(left_s)
            if rung:
                return True
            if rung is None:
                self._ended.wait(min(left_s, _TOLD_S))
        return False

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended.wait(self._runtime.policy.tick_drain_s) and not self._stopping():
            self._attempt(work)

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Unreachable:
            pass
        except Exception as error:
            # By its class: the message of a database error quotes the row. A thread that died
            # of it would leave this process without its poll.
            _log.error("polling failed: %s", type(error).__name__)

    def _is_over(self) -> bool:
        return self._ended.is_set() or self._stopping()

    def _end_in_time(self) -> None:
        """A process that was told to end waits no longer than it may for a database that hangs."""
        patience = threading.Event()
        while not self._stopping():
            patience.wait(_TOLD_S)
            if self._ended.is_set() and not self._stopping():
                return
        patience.wait(self._runtime.policy.call_deadline_s + STOP_SLACK_S)
        self._runtime.store.cut()

    def _send(self) -> None:
        self._runtime.clock.look()
        if self._runtime.due():
            self._runtime.drain()

    def _fill_in(self) -> None:
        for role in self._runtime.late_roles():
            if not self._stopping():
                self._rounds.begin(role, partial(self._runtime.run, role))

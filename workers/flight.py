"""One call in the air: its limits, its socket, and the one outcome that is recorded for it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import socket
import threading
from typing import Any

from outbox.contract import TooLate
from outbox.outcomes import Lost, Outcome
from outbox.store.intents import Intent
from workers.monotonic import since_boot_s


class Flight:
    """A claimed intent on its way. Implements the adapter's ``Cutoff``.

    The first of answer and deadline decides what is recorded; an answer that comes after the
    deadline is delivered too, as late evidence.
    """

    def __init__(self, intent: Intent, *, start_by: float, results: Results) -> None:
        self.intent = intent
        self.start_by = start_by
        self.reported = False  # a flight that was cut reports twice; its place is freed once
        self._results = results
        self._lock = threading.Lock()
        self._socket: Any = None
        self._cut = False

    def may_start(self) -> bool:
        """Whether the claim's own time still allows a first byte."""
        return since_boot_s() < self.start_by

    def attach(self, sock: Any) -> None:
        """Called by the transport just before the first byte of the request."""
        if not self.may_start():
            raise TooLate
        with self._lock:
            self._socket = sock
            cut = self._cut
        if cut:
            raise TooLate

    def land(self, outcome: Outcome) -> None:
        """The call returned."""
        with self._lock:
            self._socket = None
        self._results.put((self, outcome))

    def cut(self, deadline_s: float) -> None:
        """The deadline passed: the outcome is not known, and the socket is shut so that the
        thread comes back."""
        with self._lock:
            self._cut = True
            sock, self._socket = self._socket, None
        self._results.put((self, Lost(f"no answer within {deadline_s:g} s")))
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


Results = queue.SimpleQueue[tuple[Flight, Outcome]]


def tells_more(outcome: Outcome) -> bool:
    """Whether an outcome adds to the ``Lost`` that was recorded at the deadline: the thread whose
    socket was shut mostly comes back with no more than that."""
    return not isinstance(outcome, Lost) or bool(outcome.veto)


class Watchdog:
    """Cuts flights at their deadline, from a thread that does nothing else."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._due: list[tuple[float, int]] = []
        # A flight that came back leaves only its number in the heap, and no arguments.
        self._live: dict[int, Flight] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="outbox-watchdog", daemon=True)
        self._thread.start()

    def watch(self, flight: Flight) -> int:
        """Starts the flight's wall-clock deadline; the number takes it off again."""
        number = next(self._numbers)
        with self._changed:
            first = not self._due
            heapq.heappush(self._due, (since_boot_s() + self._deadline_s, number))
            self._live[number] = flight
            if first:
                self._changed.notify()
        return number

    def forget(self, number: int) -> bool:
        """The call returned; False when its deadline had passed before."""
        with self._changed:
            return self._live.pop(number, None) is not None

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                late = self._take_late()
                if not late:
                    left_s = self._due[0][0] - since_boot_s() if self._due else None
                    self._changed.wait(left_s)
                    continue
            for flight in late:
                flight.cut(self._deadline_s)

    def _take_late(self) -> list[Flight]:
        now = since_boot_s()
        late = []
        while self._due and (self._due[0][0] <= now or self._due[0][1] not in self._live):
            flight = self._live.pop(heapq.heappop(self._due)[1], None)
            if flight is not None:
                late.append(flight)
        return late

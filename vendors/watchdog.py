"""Wall-clock limits of calls. A socket's own time-out starts anew with each byte, so an answer
that drips never ends by itself."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from outbox.contract import TooLate


class Cut:
    """One call's ``Cutoff``: once it is cut its socket is shut, and nothing more is sent.
    ``before`` is done before each request of it."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        self._before = before
        self._lock = threading.Lock()
        self._socket: Any = None
        self._cut = False

    def attach(self, sock: Any) -> None:
        """Called by the transport just before the first byte of each request."""
        if self._before is not None:
            self._before()
        with self._lock:
            if self._cut:
                raise TooLate
            self._socket = sock

    def let_go(self) -> None:
        """The call returned: its connection may serve another one."""
        with self._lock:
            self._socket = None

    def cut(self) -> None:
        """Shuts the socket, so that the thread that waits for it comes back."""
        with self._lock:
            self._cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


class Watchdog:
    """Cuts calls at their deadline, from a thread that does nothing else."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        # A call that came back leaves only its number in the heap, and no arguments.
        self._live: dict[int, Cut] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="outbox-watchdog", daemon=True)
        self._thread.start()

    def watch(self, call: Cut, limit_s: float) -> int:
        """Starts the call's wall-clock deadline; the number takes it off again."""
        number = next(self._numbers)
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + limit_s, number))
            self._live[number] = call
            if self._due[0][1] == number:
                self._changed.notify()
        return number

    def forget(self, number: int) -> bool:
        """The call returned; False when its deadline had passed before."""
        with self._changed:
            return self._live.pop(number, None) is not None

    @contextmanager
    def limit(self, limit_s: float, call: Cut | None = None) -> Iterator[Cut]:
        """The ``Cutoff`` of everything that is asked for inside the block: ``call``, or a new
        one."""
        call = call or Cut()
        number = self.watch(call, limit_s)
        try:
            yield call
        finally:
            self.forget(number)
            call.let_go()

    def close(self) -> None:
        """Cuts what is still watched, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                closed, late = self._closed, self._take_late()
                if not late and not closed:
                    left_s = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(left_s)
                    continue
            for call in late:
                call.cut()
            if closed:
                return

    def _take_late(self) -> list[Cut]:
        now = time.monotonic()
        late = []
        while self._due and (
            self._closed or self._due[0][0] <= now or self._due[0][1] not in self._live
        ):
            call = self._live.pop(heapq.heappop(self._due)[1], None)
            if call is not None:
                late.append(call)
        return late

"""How much a sender takes on at once, and how long it lets answers gather before it writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.policy import Policy

# While calls take no longer than this on the average, rows are claimed before their thread is free:
# what waits for a thread then waits a small part of the time that its claim has to start.
_QUICK_S = 1.0
# Answers that come one after the other are written together; none waits longer than this.
_GATHER_S = 0.02
_WEIGHT = 0.1


class Pace:
    """The pace of one sender, measured as it goes; ``now_s`` is a monotonic clock."""

    def __init__(self, policy: Policy, now_s: Callable[[], float]) -> None:
        self._policy = policy
        self._now_s = now_s
        # Slow until the first calls have shown otherwise.
        self._call_s = policy.call_deadline_s
        self._written_at = 0.0
        self._write_s = 0.0

    def places(self, in_flight: int) -> int:
        """How many rows may be claimed now; 0 where so few could be that a claim is not worth it.
        ``in_flight`` are those that were claimed and have not been written."""
        threads = self._policy.threads
        ahead = threads // 2 if self._call_s < _QUICK_S else 0
        free = threads + ahead - in_flight
        return min(self._policy.batch, free) if free > ahead // 2 else 0

    def called(self, call_s: float) -> None:
        """A call took so long."""
        self._call_s += _WEIGHT * (call_s - self._call_s)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Answers are written inside the block."""
        began = self._now_s()
        try:
            yield
        finally:
            self._written_at = self._now_s()
            self._write_s = self._written_at - began

    def gather_s(self) -> float:
        """How much longer answers may gather: a write costs about as much for one as for many, so
        that half of the time at the most goes by with writing."""
        left_s = self._written_at + min(self._write_s, _GATHER_S) - self._now_s()
        return max(left_s, 0.0)

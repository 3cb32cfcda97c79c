"""How far ahead of its places a sender claims, and how long it lets answers gather before it writes
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.policy import Policy
from workers.places import LOOK_S, SLOW_S

# Answers that come one by one are written together, and rows that become due one by one are claimed
# together; none waits longer than this.
_GATHER_S = 0.02
_WEIGHT = 0.1
_LEAST_WAIT_S = 0.01


class Pace:
    """The pace of one sender, measured as it goes; ``now_s`` is a monotonic clock."""

    def __init__(self, policy: Policy, now_s: Callable[[], float]) -> None:
        self._policy = policy
        self._now_s = now_s
        self._half = min(policy.batch, policy.threads) // 2
        # Slow until the first calls have shown otherwise: what is claimed ahead of slow calls would
        # wait here while another process has places for it.
        self._call_s = policy.call_deadline_s
        self._written_at = 0.0
        self._write_s = 0.0
        self._claim_s = 0.0

    def ahead(self) -> int:
        """How many rows more than there are places may be claimed."""
        return self._policy.threads if self._call_s < SLOW_S else 0

    def is_worth(self, limit: int, waiting: int) -> bool:
        """Whether a claim of so many rows at the most is worth its cost now: while others wait for
        their places, of half a batch and not of one row."""
        return limit > 0 and (not waiting or limit >= self._half)

    def called(self, call_s: float) -> None:
        """A call took so long."""
        self._call_s += _WEIGHT * (call_s - self._call_s)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """A claim is made inside the block."""
        began = self._now_s()
        try:
            yield
        finally:
            self._claim_s = self._now_s() - began

    def tick_s(self, token_in_s: float | None) -> float:
        """How soon to claim again where nothing else says when: at the next tick, or when there
        will be a token of a rate's."""
        tick_s = self._policy.tick_drain_s
        return tick_s if token_in_s is None else min(max(token_in_s, _LEAST_WAIT_S), tick_s)

    def next_claim_s(
        self, count: int, most: int, token_in_s: float | None, *, is_full: bool
    ) -> float:
        """How soon to claim again after a claim of ``count`` rows, of ``most`` that it asked for;
        ``is_full``: an account was left out of it."""
        if not count:
            # The tick's pace is enough while calls are in the air.
            tick_s = self.tick_s(token_in_s)
            return min(tick_s, LOOK_S) if is_full else tick_s
        # A claim, too, costs about as much for one row as for many.
        return min(6 * self._claim_s, _GATHER_S) if count < most else 0.0

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

"""The places of a sender: how many calls may be in the air, and for whom another may begin.

A slow vendor must not hold every place: its calls would keep everybody else's rows waiting for as
long as they last, and a call that has begun cannot be taken back. So a call that takes longer than
``SLOW_S`` gives its place to others, and its account, which has as many calls in the air as ever,
gets none in its stead. Where all answer sooner than that, nothing is different.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from workers.flight import Flight

SLOW_S = 0.25
# How often others are looked for while a full account is left out of the claims.
LOOK_S = 0.25
# Slow calls keep threads: so many times the places at the most, shared by the slow accounts.
_SHARES = 4
# A slow account is claimed for again once so large a part of its places is free, so that what is
# claimed meanwhile for everybody is a batch and not one row.
_STEP = 8

Where = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Room:
    """How many rows the next claim may take, of no account in ``full``: (vendor, account)."""

    limit: int
    full: frozenset[Where] = frozenset()


class Places:
    """Which flights are in the air, by their age and their account; ``now_s`` is one monotonic
    clock's."""

    def __init__(self, count: int) -> None:
        self._count = count
        # Claimed, and not begun.
        self._waiting: deque[Flight] = deque()
        self.most = _SHARES * count
        # In the order in which they began.
        self._young: dict[Flight, float] = {}
        self._slow: Counter[Where] = Counter()
        self._old: set[Flight] = set()
        self._in_air: Counter[Where] = Counter()

    @property
    def in_air(self) -> int:
        """How many calls have begun and not ended."""
        return len(self._young) + len(self._old)

    @property
    def held(self) -> int:
        """How many flights have not ended, with those that wait for a place."""
        return self.in_air + len(self._waiting)

    @property
    def waiting(self) -> int:
        """How many wait for a place, but for those that wait for slow calls of their account."""
        if not self._slow:
            return len(self._waiting)
        return sum(_where(flight) not in self._slow for flight in self._waiting)

    def hold(self, flight: Flight) -> None:
        """It was claimed, and begins once there is a place for it."""
        self._waiting.append(flight)

    def begin(self, now_s: float, *, everything: bool = False) -> list[Flight]:
        """Takes places for those that wait, and returns them; ``everything``: of the others too,
        which are handed back."""
        begun: list[Flight] = []
        for _ in range(len(self._waiting)):
            flight = self._waiting.popleft()
            fits = len(self._young) < self._count and self.in_air < self.most
            if everything or (fits and self._in_air[_where(flight)] < self._count):
                self.take(flight, now_s)
                begun.append(flight)
            else:
                self._waiting.append(flight)
        return begun

    def take(self, flight: Flight, now_s: float) -> None:
        """A call begins."""
        self._young[flight] = now_s
        self._in_air[_where(flight)] += 1

    def free(self, flight: Flight) -> None:
        """It ended."""
        where = _where(flight)
        _less(self._in_air, where)
        if self._young.pop(flight, None) is None:
            self._old.remove(flight)
            _less(self._slow, where)

    def room(self, now_s: float, *, ending: bool = False, ahead: int = 0) -> Room:
        """For the next claim, which may find so many rows ``ahead`` of their places. ``ending``:
        slow calls are only waited for, and whoever has one gets no other; the rest has its places
        until they are over."""
        self._age(now_s)
        free = min(self._count, self.most - len(self._old)) - len(self._young)
        free = max(free + ahead - self.waiting, 0)
        if not self._slow:
            return Room(0 if ending else free)
        share = max(min(self._count, (self.most - self._count) // len(self._slow)), 1)
        left = {where: 0 if ending else share - self._in_air[where] for where in self._slow}
        least = max(self._count // _STEP, 1)
        full = frozenset(where for where, places in left.items() if places < least)
        return Room(min([free, *(left[where] for where in left.keys() - full)]), full)

    def _age(self, now_s: float) -> None:
        while self._young:
            oldest = next(iter(self._young))
            if now_s - self._young[oldest] < SLOW_S:
                return
            del self._young[oldest]
            self._old.add(oldest)
            self._slow[_where(oldest)] += 1


def _where(flight: Flight) -> Where:
    return flight.intent.vendor, flight.intent.account


def _less(counter: Counter[Where], where: Where) -> None:
    counter[where] -= 1
    if not counter[where]:
        del counter[where]

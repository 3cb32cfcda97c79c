"""The look-up threads of one process, shared out by vendor: one that hangs holds its own share, and
nobody else waits for it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """So many free places, for rows of any of these vendors; ``is_all``: none was left out.
    ``ended`` is how many looks had ended by then."""

    places: int
    vendors: tuple[str, ...]
    is_all: bool
    ended: int


class Places:
    """Counts who holds them."""

    def __init__(self, threads: int, vendors: Collection[str]) -> None:
        self._free = threads
        self._share = max(threads // max(len(set(vendors)), 1), 1)
        self._held: Counter[str] = Counter()
        self._ended = 0
        self._changed = threading.Condition()

    def room(self, vendors: Collection[str]) -> Room:
        """What is free now for these vendors: no more places than each of the vendors that are
        named may take."""
        with self._changed:
            open_ = [name for name in vendors if self._held[name] < self._share]
            left = [self._share - self._held[name] for name in open_]
            places = min(self._free, *left) if left else 0
            is_all = len(open_) == len(vendors) and self._free > 0
            return Room(places, tuple(open_), is_all, self._ended)

    def take(self, vendor: str) -> None:
        """One place, of the room that there was."""
        with self._changed:
            self._free -= 1
            self._held[vendor] += 1

    def give_back(self, vendor: str) -> None:
        """The look has ended."""
        with self._changed:
            self._free += 1
            self._held[vendor] -= 1
            self._ended += 1
            self._changed.notify_all()

    def wait(self, ended: int, limit_s: float) -> bool:
        """Until more looks have ended than had then; False where none did in that time."""
        with self._changed:
            limit_s = min(max(limit_s, 0.0), threading.TIMEOUT_MAX)
            return self._changed.wait_for(lambda: self._ended != ended, limit_s)

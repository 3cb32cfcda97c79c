"""What a process holds over a fork: each child opens its own, and leaves alone what was copied."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Held(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    thing: T | None = None


class PerProcess(Generic[T]):
    """One thing with sockets, built on first need by each process. Safe to use from many threads.

    What a fork copied is neither used (two processes on one socket read each other's answers) nor
    closed (the socket is the parent's), and no lock is taken that a thread held at the fork.
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._held: dict[int, _Held[T]] = {}

    def get(self) -> T:
        """This process's thing."""
        held = self._held.setdefault(os.getpid(), _Held())
        with held.lock:
            if held.thing is None:
                held.thing = self._build()
            return held.thing

    def take(self) -> T | None:
        """This process's thing, if it was built, for the caller to close; the next need builds
        another."""
        held = self._held.pop(os.getpid(), None)
        return held.thing if held is not None else None

"""Jobs of several parts, of which none waits for another: one that finds a row in somebody else's
hands is done at the next tick, and the others now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from outbox.errors import Busy

_log = logging.getLogger(__name__)


def each(parts: Iterable[Callable[[], int]]) -> int:
    """Runs every part; returns the sum of what they did. Raises ``Unreachable`` (but for
    ``Busy``, which is one part's own)."""
    done = 0
    for part in parts:
        try:
            done += part()
        except Busy as error:
            _log.warning("a part of a job waits for its next tick: %s", error)
    return done


def in_pieces(piece: Callable[[], int], size: int, budget_s: float) -> int:
    """Repeats ``piece`` while it did ``size`` and the time lasts, once at the least; returns what
    it did in all. What is left is the next tick's."""
    give_up = time.monotonic() + budget_s
    done = 0
    while True:
        count = piece()
        done += count
        if count < size or time.monotonic() > give_up:
            return done

"""Many small choices out of one draw: a generator is asked once for a whole case, and not thirty
times. Fewer and smaller bytes are simpler cases: each list of options begins with its simplest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Picks:
    """Choices that are left in a row of bytes; behind its end the first option is taken."""

    def __init__(self, raw: bytes) -> None:
        self._left = list(reversed(raw))

    def of(self, options: Sequence[T]) -> T:
        """One of the options (at most 256); what is listed twice is chosen twice as often."""
        return options[(self._left.pop() if self._left else 0) % len(options)]

    def flag(self) -> bool:
        """True or, more simply, false."""
        return self.of((False, True))


def picked(make: Callable[[Picks], T], choices: int) -> st.SearchStrategy[T]:
    """Cases made by so many choices at the most."""
    raw = st.binary(min_size=choices, max_size=choices)
    return raw.map(lambda drawn: make(Picks(drawn)))

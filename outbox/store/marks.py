"""The low-water mark of a claimer: below it no row is due that it knows of.

What was claimed leaves its entries in the index by which the next rows are found; as long as
somebody's old snapshot might see them nobody may remove them, and each claim would step over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from outbox.store.intents import Intent

# Every so many claims one looks below the mark too: a row may be committed after one that is due
# later, or be made due again.
_WHOLE_EVERY = 16


class Mark:
    """Of rows outside lanes, by gate: how far each gate has been claimed. A gate that was not
    claimed from since the last look at everything but one says nothing any more."""

    def __init__(self) -> None:
        self._far: dict[str, datetime] = {}
        self._before: dict[str, datetime] = {}
        self._left = 0

    def low(self) -> datetime | None:
        """From where on the next claim looks; None: everywhere."""
        known = {**self._before, **self._far}
        return min(known.values()) if known and self._left > 0 else None

    def forget(self) -> None:
        """The next claim looks everywhere."""
        self._left = 0

    def took(self, rows: Sequence[Intent], *, whole: bool) -> None:
        """A claim took these; ``whole``: it looked everywhere."""
        self._left -= 1
        if whole:
            self._before, self._far, self._left = self._far, {}, _WHOLE_EVERY
        for row in rows:
            if row.lane is None:
                self._far[row.gate] = max(self._far.get(row.gate, row.due_at), row.due_at)

"""Which rows in doubt are looked up by one reading of their list, and what that reading may take;
pure.

After an outage very many rows are in doubt that were sent within minutes of each other. The list of
that time shows the objects of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.store.neighbours import Held

# So many rows at the most are held for one reading: what it shows of each is kept until it is
# decided, about 2 KiB.
MOST_ROWS = 25_000
# And so many where other readings have as many in hand already.
FEW_ROWS = 1_000
# A reading may take as many pages and as much time as the look-ups that it stands for, and so many
# of them at the most.
_MOST_LOOKS = 15
# The longest stretch of a list that is read at once, beyond what a single look reads.
_MOST_SPAN_S = 3600.0

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Rows in the order of their spans, and the span of the vendor's time in which the objects of
    all of them were created."""

    rows: tuple[Held, ...]
    since_epoch_s: int
    until_epoch_s: int

    @property
    def looks(self) -> int:
        """How many look-ups' worth of pages its reading may have."""
        return min(len(self.rows), _MOST_LOOKS)

    @property
    def deadlines(self) -> int:
        """How many look-ups' worth of time its reading may take: a look-up alone may have had the
        shorter list of one parent."""
        return min(2 * len(self.rows), _MOST_LOOKS) if len(self.rows) > 1 else 1


def windows(rows: Iterable[Held], span_of: Callable[[Held], Span]) -> list[Window]:
    """The rows by stretches of time, the oldest first. A row joins the stretch before it where that
    grows by no more than half of what the row's own look-up would read: two readings of their own
    would never be less."""
    found: list[Window] = []
    rest: list[Held] = []
    since = until = 0
    for row, (first, last) in sorted(
        ((row, span_of(row)) for row in rows), key=lambda pair: pair[1]
    ):
        if rest and _joins((since, until), (first, last)):
            rest.append(row)
            until = max(until, last)
            continue
        if rest:
            found.append(Window(tuple(rest), since, until))
        rest, since, until = [row], first, last
    return [*found, Window(tuple(rest), since, until)] if rest else found


def _joins(read: Span, more: Span) -> bool:
    since, until = read
    first, last = more
    grows = max(last - until, 0)
    return 2 * grows <= last - first and max(last, until) - since <= _MOST_SPAN_S + last - first


def created_near(rows: Sequence[Held]) -> tuple[datetime, datetime]:
    """When the rows were recorded that may join the stretch of these."""
    first, last = min(row.created_at for row in rows), max(row.created_at for row in rows)
    around = timedelta(seconds=max(_MOST_SPAN_S - (last - first).total_seconds(), 0.0) / 2)
    return first - around, last + around

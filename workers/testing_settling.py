"""How a box lets time pass until everything is settled: from one due moment to the next, and no
resolver is asked at a moment at which only a send falls due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outbox.store import reading
from outbox.store.connection import Store
from outbox.store.due import marks, next_due_in_s, resolvers_due


@dataclass(frozen=True, slots=True)
class Worked:
    """The parts of a box: each does what is due, ``resolve`` until nothing is, and returns how
    much that was; ``travel`` lets so many seconds pass."""

    store: Store
    drain: Callable[[], int]
    resolve: Callable[[], int]
    deliver: Callable[[], int]
    travel: Callable[[float], None]


def settle(box: Worked, within_s: float) -> bool:
    """Whether every intent was settled within that time."""
    left_s = within_s
    _work(box)
    while True:
        with box.store.transaction() as tx:
            if not reading.gauges(tx)["unsettled"]:
                return True
            wait_s = next_due_in_s(tx)
        if wait_s is None or wait_s > left_s:
            return False
        box.travel(wait_s)
        left_s -= wait_s
        if not _only_backs_off(box):
            _work(box)


def _work(box: Worked) -> None:
    box.resolve()
    while box.drain() + box.deliver():
        box.resolve()


def _only_backs_off(box: Worked) -> bool:
    """Sends what is due; whether that left nothing to do but to wait for the next try. A row that
    can never be sent is tried once a minute for ever: a day of it is 1440 of these."""
    before = _seen(box.store)
    if before is None:
        return False
    box.drain()
    return not box.deliver() and _seen(box.store) == before


def _seen(store: Store) -> dict[str, Any] | None:
    """Marks of what there is; None where a resolver has something due."""
    with store.transaction() as tx:
        return None if resolvers_due(tx) else marks(tx)

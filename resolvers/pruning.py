"""Retention: everything that is over and old enough, piece by piece, each in a short transaction of
its own. Whatever ends it half-way, what is left is found again the next time; two at once share it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from outbox.errors import Denied
from outbox.policy import HEARTBEATS_S, MATCHED_EVENTS_S, UNMATCHED_EVENTS_S
from outbox.store import checks, intents, retention, turns
from outbox.store.connection import Store
from resolvers.health import release

_log = logging.getLogger(__name__)
DAY_S = 86400.0
BUDGET_S = 3600.0
# Far more than a piece and the rest after it; and less than a tick, so that the next one takes up
# what a worker left that was killed.
_LEASE_S = 900.0
# An agent that waits for a row of the piece waits for no more than these.
_PIECE = 200
# What is in other hands is passed by; what is waited for nevertheless is not waited for long.
_LOCK_S = 0.5


@dataclass(slots=True)
class Pruned:
    """What became of one kind of rows: ``act`` is ``empty`` or ``delete``; ``done`` of them (of a
    dry run, that would be), and by its reason the number ``kept`` though they are old enough.
    ``is_whole``: all that are old enough were looked at."""

    what: str
    act: str
    older_than_s: float
    done: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """``older_than_s`` is the age of intents since they were settled. At most ``limit`` rows are
    emptied or deleted. ``go_on`` is asked after each piece, with the seconds that it took."""

    older_than_s: float
    by: str
    dry_run: bool = False
    limit: int | None = None
    go_on: Callable[[float], bool] = lambda _: True


def prune(store: Store, order: Order) -> list[Pruned]:
    """Empties settled intents and the bodies of events, deletes events that are not ours and the
    heartbeats of processes that are gone. Raises ``Denied`` while the database's clock is in doubt:
    by a clock that was set ahead everything is old."""
    with store.transaction() as tx:
        if checks.clock_doubts(tx):
            raise Denied(
                "clock", "the database's clock is in doubt: `outbox doctor --accept --reason ...`"
            )
    left = order.limit
    done = []
    for pruned, walk in _kinds(order.older_than_s):
        _walk(store, order, pruned, walk, left)
        left = None if left is None else left - pruned.done
        done.append(pruned)
    beats = Pruned("heartbeats", "delete", HEARTBEATS_S)
    with store.transaction() as tx:
        beats.done = retention.heartbeats(tx, dry_run=order.dry_run)
    beats.is_whole = True
    return [*done, beats]


def _kinds(older_than_s: float) -> Iterator[tuple[Pruned, retention.Walk]]:
    matched_s = min(older_than_s, MATCHED_EVENTS_S)
    yield Pruned("intents", "empty", older_than_s), retention.intents
    yield Pruned("matched_events", "empty", matched_s), retention.matched_events
    yield Pruned("unmatched_events", "empty", UNMATCHED_EVENTS_S), retention.unmatched_events
    yield Pruned("foreign_events", "delete", UNMATCHED_EVENTS_S), retention.foreign_events


def _walk(
    store: Store, order: Order, pruned: Pruned, walk: retention.Walk, limit: int | None
) -> None:
    """All of one kind, or as many as the limit and the order's ``go_on`` allow."""
    with store.transaction() as tx:
        now = intents.now(tx)
    piece = retention.Piece(
        before=now - timedelta(seconds=pruned.older_than_s),
        intents_before=now - timedelta(seconds=order.older_than_s),
        size=_PIECE,
        by=order.by,
        reason=f"settled more than {pruned.older_than_s / DAY_S:g} d ago",
        dry_run=order.dry_run,
    )
    going = True
    passed_by: Sequence[Any] = ()
    while going and (limit is None or pruned.done < limit):
        size = _PIECE if limit is None else min(_PIECE, limit - pruned.done)
        began = time.monotonic()
        with store.transaction() as tx:
            tx.hurry(_LOCK_S)
            # A piece later: another prune that had them in hand has committed meanwhile.
            pruned.kept += retention.in_use(tx, walk, passed_by)
            walked = walk(tx, replace(piece, size=size))
        passed_by = walked.passed_by
        pruned.done += walked.done
        pruned.kept += walked.kept
        piece = replace(piece, after=walked.last)
        pruned.is_whole = walked.last is None
        going = not pruned.is_whole and order.go_on(time.monotonic() - began)
    if passed_by:
        with store.transaction() as tx:
            pruned.kept += retention.in_use(tx, walk, passed_by)


def prune_in_turn(store: Store, order: Order) -> int:
    """A worker's own round: once a day, whoever comes first, for ``BUDGET_S`` at the most; what one
    leaves that is told to end or killed, another goes on with. Returns how many rows were emptied
    or deleted; none while the database's clock is in doubt."""
    with store.transaction() as tx:
        turn = turns.take(
            tx,
            {"release": release()},
            older_than_s=order.older_than_s,
            rest_s=DAY_S,
            lease_s=_LEASE_S,
        )
    if turn is None:
        return 0
    round_ = _Round(store, order, turn)
    try:
        done = prune(store, replace(order, go_on=round_.go_on))
    except Denied as error:
        _log.warning("nothing was pruned: %s", error.problem)
        return 0
    # Not of one that was told to end: the rest is done today.
    if all(pruned.is_whole for pruned in done) or round_.is_out_of_time():
        with store.transaction() as tx:
            turns.end(tx, turn)
    return sum(pruned.done for pruned in done)


class _Round:
    """What a round in turn has taken of its time, before and in these hands."""

    def __init__(self, store: Store, order: Order, turn: turns.Turn) -> None:
        self._store = store
        self._order = order
        self._turn = turn
        self._began = time.monotonic()

    def go_on(self, took_s: float) -> bool:
        """Whether it goes on after a piece: it has time, nobody told it to end, and the turn is
        still its own."""
        if self.is_out_of_time() or not self._order.go_on(took_s):
            return False
        with self._store.transaction() as tx:
            return turns.renew(tx, self._turn, self._spent_s())

    def is_out_of_time(self) -> bool:
        """Whether the day's time for pruning is over."""
        return self._spent_s() >= BUDGET_S

    def _spent_s(self) -> float:
        return self._turn.spent_s + time.monotonic() - self._began

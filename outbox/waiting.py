"""Waiting for an outcome: reads until it is settled, and marks it as told as it is handed over.

What is marked too early is lost to its run: the next turn would write again. So nothing is marked
by a read, but only by whoever has the answer in hand and is about to return it. The safe side is
an outcome that was heard and is not marked: it guards its twin until it has been told again.

A thread waits by itself. Coroutines share one thread of their process, which asks for all of them
at once: a thread for each would make them wait for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import psycopg

from outbox.answers import Answer, answer_of, not_seen
from outbox.errors import Invalid, Unreachable
from outbox.store import reading
from outbox.store.connection import Store

_POLL_FIRST_S = 0.02
_POLL_MAX_S = 0.25
# The least that a wait gives the database to answer, however short the wait itself: at first, and
# when it asks again.
_PATIENCE_S = 1.0
_LEAST_S = 0.1
# How long it is tried to take a word back that nobody heard.
_TAKE_BACK_S = 60.0
_FINAL = ("settled", "failed", "cancelled")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which intent, and how long to wait. ``before`` is the answer of its enqueue, if there is
    one: what that one noted is told with the outcome."""

    intent_id: UUID
    limit_s: float
    before: Answer | None = None

    @property
    def xid(self) -> str:
        """The transaction that enqueued it; empty where that is not known."""
        return self.before.xid if self.before else ""

    def answer(self, row: Row | None) -> Answer:
        """What is told of the row as it was last seen."""
        told = not_seen(self.intent_id) if row is None else answer_of(row, deduplicated=True)
        if self.before is None:
            return told
        return replace(told, deduplicated=self.before.deduplicated, notes=self.before.notes)


def is_final(row: Row | None) -> bool:
    """Whether the row's word is an outcome."""
    return row is not None and answer_of(row).told in _FINAL


def wait(store: Callable[[], Store], asked: Asked) -> Answer:
    """The answer as soon as it is settled, or whatever it is at the end of the wait."""
    give_up = time.monotonic() + asked.limit_s
    pausing = threading.Event()
    pause_s, least_s = _POLL_FIRST_S, _PATIENCE_S
    row: Row | None = None
    while True:
        # Half of it: where a connection fell silent, there is time for another.
        patience_s = max((give_up - time.monotonic()) / 2, least_s)
        row, least_s = _look_alone(store, asked, patience_s) or row, _LEAST_S
        left_s = give_up - time.monotonic()
        if is_final(row) or left_s <= 0:
            break
        pausing.wait(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _POLL_MAX_S)
    if row is not None and is_final(row) and row["untold"]:
        _mark(store, row)
    return asked.answer(row)


def _mark(store: Callable[[], Store], row: Row) -> None:
    # Confirmed or not: what was read stands, and is told.
    try:
        with store().transaction(_PATIENCE_S) as tx:
            reading.tell(tx, [row])
    except (Unreachable, psycopg.Error):
        return


def _look_alone(store: Callable[[], Store], asked: Asked, patience_s: float) -> Row | None:
    try:
        with store().transaction(patience_s) as tx:
            found = reading.look(tx, [asked.intent_id]).get(asked.intent_id)
            if found is None and asked.xid and reading.in_progress(tx, asked.xid):
                raise _still_open()
            return found
    except (Unreachable, psycopg.Error):
        return None


def _still_open() -> Invalid:
    return Invalid("intent", "its transaction is still open: commit, then wait")


@dataclass(slots=True)
class _Waiter:
    asked: Asked
    give_up_at: float
    row: Row | None = None
    due_at: float = 0.0
    pause_s: float = _POLL_FIRST_S
    seen: Future[Row | None] = field(default_factory=Future)


class Poller:
    """The one thread of a process that reads for all its waiting coroutines. It begins with the
    first of them and ends with the last."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiters: list[_Waiter] = []
        self._telling: list[tuple[Row, Future[None]]] = []
        self._unheard: dict[UUID, float] = {}

    async def wait(self, asked: Asked) -> Answer:
        """``wait`` for a coroutine. One that is cancelled has been told nothing."""
        waiter = _Waiter(asked, time.monotonic() + asked.limit_s)
        while not self._add(lambda: self._waiters.append(waiter)):
            left_s = waiter.give_up_at - time.monotonic()
            if left_s <= 0:
                return asked.answer(None)
            await asyncio.sleep(min(_POLL_MAX_S, left_s))
        row = await asyncio.wrap_future(waiter.seen)
        if row is not None and is_final(row) and row["untold"]:
            await self._hand_over(row)
        return asked.answer(row)

    async def _hand_over(self, row: Row) -> None:
        marked: Future[None] = Future()
        if not self._add(lambda: self._telling.append((row, marked))):
            return
        try:
            # The answer was read: it stands, whether or not the mark is confirmed.
            with contextlib.suppress(Unreachable, psycopg.Error):
                await asyncio.wrap_future(marked)
        except asyncio.CancelledError:
            if not marked.cancelled():  # it is being written, and nobody hears the answer
                until = time.monotonic() + _TAKE_BACK_S
                # Where the host refuses the thread just now, the next one that begins does it.
                with self._changed:
                    self._unheard[row["id"]] = until
                self._add(lambda: None)
            raise

    def _add(self, change: Callable[[], Any]) -> bool:
        """False, and nothing is changed, where the host refuses the thread."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="outbox-waiting", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            change()
            self._changed.notify()
            return True

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._next()
                if due is None:
                    self._thread = None
                    return
                telling, self._telling = self._telling, []
            self._tell(telling)
            self._take_back()
            self._look(due)

    def _next(self) -> list[_Waiter] | None:
        """Waits for something to do; the waiters that are due, None where nobody is left."""
        while True:
            self._waiters = [w for w in self._waiters if not w.seen.done()]
            now = time.monotonic()
            due = [w for w in self._waiters if w.due_at <= now]
            if due or self._telling or (self._unheard and not self._waiters):
                return due
            if not self._waiters:
                return None
            self._changed.wait(min(w.due_at for w in self._waiters) - now)

    def _look(self, due: list[_Waiter]) -> None:
        if not due:
            return
        rows: Mapping[UUID, Row] = {}
        left_s = min(w.give_up_at for w in due) - time.monotonic()
        failed: Exception | None = None
        try:
            with self._store().transaction(max(left_s / 2, _PATIENCE_S)) as tx:
                rows = reading.look(tx, sorted({w.asked.intent_id for w in due}))
        except (Unreachable, psycopg.Error):
            pass
        except Exception as error:  # each waiter must hear of it, and none hang
            failed = error
        for waiter in due:
            self._seen(waiter, rows.get(waiter.asked.intent_id), failed)

    def _seen(self, waiter: _Waiter, row: Row | None, failed: Exception | None) -> None:
        waiter.row = row or waiter.row
        now = time.monotonic()
        if failed is None and waiter.row is None and self._is_open(waiter.asked.xid):
            failed = _still_open()
        # Its coroutine may be cancelled between the question and the answer.
        with contextlib.suppress(InvalidStateError):
            if failed is not None:
                waiter.seen.set_exception(failed)
            elif is_final(waiter.row) or now >= waiter.give_up_at:
                waiter.seen.set_result(waiter.row)
        waiter.due_at = min(now + waiter.pause_s, max(waiter.give_up_at, now))
        waiter.pause_s = min(waiter.pause_s * 2, _POLL_MAX_S)

    def _is_open(self, xid: str) -> bool:
        if not xid:
            return False
        try:
            with self._store().transaction(_PATIENCE_S) as tx:
                return reading.in_progress(tx, xid)
        except (Unreachable, psycopg.Error):
            return False

    def _tell(self, telling: list[tuple[Row, Future[None]]]) -> None:
        # From here on a mark is not cancelled any more, but taken back.
        wanted = [(row, mark) for row, mark in telling if mark.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            with self._store().transaction(_PATIENCE_S) as tx:
                reading.tell(tx, [row for row, _ in wanted])
        except Exception as error:  # each waiter must hear of it, and none hang
            for _, mark in wanted:
                mark.set_exception(error)
            return
        for _, mark in wanted:
            mark.set_result(None)

    def _take_back(self) -> None:
        with self._changed:
            unheard = dict(self._unheard)
        if not unheard:
            return
        done = True
        try:
            with self._store().transaction(_PATIENCE_S) as tx:
                reading.take_back(tx, sorted(unheard))
        except Exception:  # tried again: the thread has others to serve
            done = False
        now = time.monotonic()
        with self._changed:
            for intent_id, until in unheard.items():
                if done or until <= now:
                    self._unheard.pop(intent_id, None)
            if self._unheard and not self._waiters:
                self._changed.wait(_POLL_MAX_S)

"""The composition root of a worker process: everything with a socket or a thread is built here,
in the process that uses it and never before a fork."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random  # noqa: TID251 - built here, handed on as an argument

from outbox.doorbell import Doorbell
from outbox.errors import Unreachable
from outbox.settings import Settings
from outbox.store import switches
from outbox.store.connection import Store
from resolvers import escalating, joining, pagers, paging, pruning, sweeping
from resolvers.directory import Directory
from resolvers.health import periods_s, release
from resolvers.identifying import identify
from resolvers.looking import Looker
from workers.clock_watch import ClockWatch
from workers.sender import Sender

_log = logging.getLogger(__name__)
# A process holds connections for claims, records, look-ups, the poll; some are to spare.
_CONNECTIONS = 12
_LOOK_BUDGET_S = 2.0
# Who empties rows by ``OUTBOX_RETENTION``, in their history.
_PRUNER = "retention"


class Slots:
    """At most so many drains at once over all children of a worker, by locks on the bytes of one
    file that they inherit: a child that is killed gives its slot back, and the file has no name
    that anybody could remove. Two queues alone would let drains take the last child."""

    def __init__(self, count: int) -> None:
        self._file, path = tempfile.mkstemp(prefix="outbox-slots-")
        os.unlink(path)
        self._count = count
        # Such a lock is a process's: of its threads only this tells them apart.
        self._held: set[int] = set()
        self._turn = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[int | None]:
        """A slot for the length of the block, by its number from 0; None where all are taken."""
        number = self._take()
        try:
            yield number
        finally:
            if number is not None:
                self._give_back(number)

    def _take(self) -> int | None:
        with self._turn:
            for number in range(self._count):
                if number in self._held:
                    continue
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                except (BlockingIOError, PermissionError):  # POSIX allows either for a taken one
                    continue
                self._held.add(number)
                return number
        return None

    def _give_back(self, number: int) -> None:
        with self._turn:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
            self._held.discard(number)


class Runtime:
    """One process's sender, resolvers and their heartbeats."""

    def __init__(
        self, settings: Settings, *, slots: Slots, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.settings = settings
        self.policy = settings.policy
        self.instance = f"{socket.gethostname()}:{os.getpid()}"
        self.store = Store(settings, size=_CONNECTIONS)
        self.directory = Directory.of(settings)
        self.bell = Doorbell(settings.redis_url, timeout_s=settings.redis_timeout_s)
        self.sender = Sender(
            self.store,
            self.directory,
            self.bell,
            owner=self.instance,
            stopping=stopping,
            jitter=Random().random,  # noqa: S311 - spreads retries, hides nothing
        )
        self.looker = Looker(self.store, self.directory)
        self._pagers = pagers.parse(settings)
        self._slots = slots
        self._stopping = stopping
        self.clock = ClockWatch(self.store, step_s=self.policy.clock_step_s)
        self._away: set[str] = set()
        # Every resolver job and its period in seconds.
        self.roles = periods_s(settings)
        self._jobs: dict[str, Callable[[], int]] = {
            "expire": self._expire,
            "join": self._join,
            "resolve": self._look,
            "escalate": self._escalate,
            "page": self._page,
            "prune": self._prune,
        }

    def drain(self) -> int:
        """Sends what is due, if a slot is free. A database that is away leaves the work where it
        is: in its rows, and in memory what has been answered."""
        with self._slots.take() as slot:
            if slot is None:
                return 0
            return self._unless_away("drain", partial(self.sender.drain, helps=slot > 0))

    def finish(self) -> None:
        """Writes what has been answered and is not written, before the process ends."""
        if self.sender.has_late_answers():
            self._unless_away("drain", partial(self.sender.drain, 0.0))

    def run(self, role: str) -> int:
        """Runs one resolver job and records its heartbeat. A database that is away leaves the
        work where it is: in its rows, for the next tick."""
        job = self._jobs[role]

        def work() -> int:
            done = job()
            with self.store.transaction() as tx:
                said = {"release": release(), "owners": self.directory.owners()}
                switches.beat(tx, role, self.instance, said)
            return done

        return self._unless_away(role, work)

    def _unless_away(self, name: str, work: Callable[[], int]) -> int:
        try:
            done = work()
        except Unreachable as error:
            # Once, and not at each tick for as long as it lasts.
            if name not in self._away:
                _log.warning("%s ended early: %s", name, error)
            self._away.add(name)
            return 0
        self._away.discard(name)
        return done

    def late_roles(self) -> list[str]:
        """Jobs that nobody has run for two periods: from three on they would be called stale."""
        with self.store.transaction() as tx:
            ages = switches.beat_ages_s(tx)
        return [r for r, period in self.roles.items() if ages.get(r, 1e9) > 2 * period]

    def due(self) -> bool:
        """Whether a drain has something to do."""
        if self.sender.has_late_answers():
            return True
        with self.store.transaction() as tx:
            return switches.anything_due(tx)

    def identify(self) -> None:
        """Learns whose the accounts are that their vendor did not say at the start; none is sent
        for before. Refused credentials, and those of another account, wait for a person."""
        found = identify(self.store, self.directory, self.policy.call_deadline_s)
        for vendor, account, problem in found:
            with self.store.transaction() as tx:
                switches.pause(
                    tx, vendor, account.name, kind="pause", reason=problem, by=self.instance
                )

    def close(self, limit_s: float | None = None) -> None:
        """Ends threads and connections; calls in flight were finished before, and look-ups have
        until then. Without any time left, none waits for the database any more."""
        if limit_s is not None and limit_s <= 0:
            self.store.cut()
        self.sender.close()
        self.looker.close(limit_s)
        self.directory.close()
        self.store.close()

    def _expire(self) -> int:
        done = sweeping.expire_once(self.store, self.directory)
        return done + sweeping.withdraw_once(self.store, self.directory)

    def _join(self) -> int:
        return joining.join_once(self.store, self.directory)

    def _look(self) -> int:
        return self.looker.tick(min(_LOOK_BUDGET_S, self.policy.tick_resolve_s))

    def _escalate(self) -> int:
        return escalating.escalate_once(self.store, self.directory)

    def _page(self) -> int:
        return paging.page_once(self.store, self._pagers, self.settings)

    def _prune(self) -> int:
        kept_s = self.settings.retention_s
        assert kept_s is not None
        order = pruning.Order(older_than_s=kept_s, by=_PRUNER, go_on=self._rest)
        return pruning.prune_in_turn(self.store, order)

    def _rest(self, took_s: float) -> bool:
        """As long as the piece took: others want the database too."""
        threading.Event().wait(took_s)
        return not self._stopping()

"""The processes of a timeline: each has the product's own sender, resolvers and connections, runs
step by step in the timeline's hands, and dies where it is told to.

Every transaction asks at its beginning, at each statement and at its end what becomes of it; the
answer of a good day is nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, LiteralString, TypeVar

import psycopg

from outbox.doorbell import Doorbell
from outbox.errors import Unreachable
from outbox.settings import Settings
from outbox.store.connection import Params, Store, Transaction
from resolvers import escalating, joining, pagers, paging, sweeping
from resolvers.directory import Directory
from resolvers.looking import Looker
from vendors.watchdog import Cut, Watchdog
from workers.clock_watch import ClockWatch
from workers.means import Means
from workers.sender import Sender

T = TypeVar("T")


class Killed(BaseException):
    """The process is gone. Nothing of it runs on, and nothing of what it had in memory is left."""


class InOrder(Executor):
    """Runs each call at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future that is done."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """There is nothing to end."""


class Calls(InOrder):
    """The same for a sender, whose pool is told how many calls are in the air."""

    def submit(  # type: ignore[override]
        self,
        work: Callable[[T], None],
        of: T,
        at_once: int = 1,
        /,
    ) -> Future[None]:
        """A future that is done."""
        return super().submit(work, of)


class SimWatchdog(Watchdog):
    """Cuts when the timeline says that the deadline has passed, and never by itself."""

    def __init__(self) -> None:
        self._watched: dict[int, Cut] = {}
        self._count = 0

    def watch(self, call: Cut, limit_s: float) -> int:
        """A number for the call."""
        self._count += 1
        self._watched[self._count] = call
        return self._count

    def forget(self, number: int) -> bool:
        """False where it was cut."""
        return self._watched.pop(number, None) is not None

    def cut_all(self) -> None:
        """The deadline of everything that is watched has passed."""
        while self._watched:
            self._watched.popitem()[1].cut()

    def close(self) -> None:
        """There is no thread."""


@dataclass
class Faulty:
    """What a host asks of its timeline: each returns quietly, runs somebody else, or raises."""

    begins: Callable[[Host], None]
    runs: Callable[[Host], None]
    commits: Callable[[Host], bool]
    pauses: Callable[[Host, float], None]
    since_boot_s: Callable[[Host], float]


class SimTransaction(Transaction):
    """Asks before every statement."""

    def __init__(self, inner: Transaction, asks: Callable[[], None]) -> None:
        super().__init__(inner.connection, inner.codec, prepare=inner.prepare)
        self._asks = asks

    def all(self, sql: LiteralString, params: Params | None = None) -> list[dict[str, Any]]:
        self._asks()
        return super().all(sql, params)

    def one(self, sql: LiteralString, params: Params | None = None) -> dict[str, Any] | None:
        self._asks()
        return super().one(sql, params)

    def run(self, sql: LiteralString, params: Params | None = None) -> int:
        self._asks()
        return super().run(sql, params)


class SimStore(Store):
    """A host's connections. ``open`` counts transactions: none may be while a call is out."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, size=3)
        # Its limits are of real time, and this one stands still.
        self._settings_of_ours = ("timezone = 'UTC'",)
        self.host: Host | None = None
        self.open = 0

    def _configure(self, connection: Any) -> None:
        super()._configure(connection)
        connection.prepare_threshold = 0

    @contextmanager
    def glance(self) -> Iterator[Transaction]:
        """A transaction like any other: faults come between its statements too."""
        with self.transaction() as tx:
            yield tx

    @contextmanager
    def transaction(
        self, patience_s: float | None = None, *, planned_once: bool = False
    ) -> Iterator[Transaction]:
        host = self.host
        assert host is not None
        host.check()
        host.faulty.begins(host)
        with super().transaction(patience_s, planned_once=planned_once) as tx:
            self.open += 1
            try:
                yield SimTransaction(tx, lambda: host.check(host.faulty.runs))
                confirmed = host.faulty.commits(host)
            finally:
                self.open -= 1
        host.check()
        if not confirmed:
            raise Unreachable("the database connection failed: the reply to COMMIT was lost")


def lost_connection() -> psycopg.OperationalError:
    """What the driver raises when its connection is killed."""
    return psycopg.OperationalError("terminating connection due to administrator command")


@dataclass
class Host:
    """One worker process. ``fresh`` is what happens after it was killed: the same store's
    connections, and nothing else of what it knew."""

    name: str
    store: SimStore
    directory: Directory
    settings: Settings
    faulty: Faulty
    alive: bool = True
    stopping: bool = False
    watchdog: SimWatchdog = field(init=False)
    sender: Sender = field(init=False)
    jobs: Mapping[str, Callable[[], int]] = field(init=False)

    def __post_init__(self) -> None:
        self.fresh()

    def fresh(self) -> None:
        """The process begins."""
        self.alive, self.stopping = True, False
        self.store.host, self.store.open = self, 0
        self.watchdog = watchdog = SimWatchdog()
        self.sender = Sender(
            self.store,
            self.directory,
            Doorbell("", timeout_s=0.1),
            owner=self.name,
            stopping=lambda: self.stopping,
            jitter=lambda: 0.5,
            means=Means(
                pool=lambda _: Calls(),
                watchdog=lambda: watchdog,
                since_boot_s=lambda: self.faulty.since_boot_s(self),
                pause=lambda seconds: self.faulty.pauses(self, seconds),
            ),
        )
        store, directory = self.store, self.directory
        looker = Looker(store, directory, pool=InOrder(), watchdog=watchdog)
        targets = pagers.parse(self.settings)
        clock = ClockWatch(
            store,
            step_s=self.settings.policy.clock_step_s,
            since_boot_s=lambda: self.faulty.since_boot_s(self),
        )
        self.jobs = {
            "clock": partial(_looked, clock),
            "drain": lambda: self.sender.drain(budget_s=600.0),
            "expire": lambda: sweeping.expire_once(store, directory),
            "withdraw": lambda: sweeping.withdraw_once(store, directory),
            "join": lambda: joining.join_once(store, directory),
            "look": looker.once,
            "escalate": lambda: escalating.escalate_once(store, directory),
            "page": lambda: paging.page_once(store, targets, self.settings),
        }

    def check(self, then: Callable[[Host], None] | None = None) -> None:
        """Whoever is dead does nothing more."""
        if not self.alive:
            raise Killed
        if then is not None:
            then(self)

    def kill(self) -> None:
        """kill -9, from inside: raises ``Killed``."""
        self.alive = False
        raise Killed

    def work(self, job: str | Callable[[], T]) -> T | int | None:
        """One job to its end, or to the process's; a database that is away ends it early, as it
        does in a worker: then None. A process that was killed begins again."""
        try:
            return self.jobs[job]() if isinstance(job, str) else job()
        except (Unreachable, Killed):
            return None
        finally:
            if not self.alive:
                self.fresh()


def _looked(clock: ClockWatch) -> int:
    clock.look()
    return 1


def beside(work: Callable[[], object]) -> None:
    """Somebody else acts, in a thread of its own, while the caller waits: an adapter's exchange
    belongs to its thread. Raises what was raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]

"""The Celery application and the worker. Messages are ticks and carry no data: each may be lost,
late or doubled, because the row is the work and every job claims its rows."""

from __future__ import annotations

import logging
import mmap
import os
import resource
import signal
import sys
import threading
import time
import warnings
from types import FrameType
from typing import Any

from billiard.process import active_children
from celery import Celery
from celery.exceptions import SecurityWarning
from celery.signals import (
    worker_process_init,
    worker_process_shutdown,
    worker_shutting_down,
)
from celery.worker import state as worker_state
from kombu.asynchronous import set_event_loop
from kombu.entity import Queue

from outbox.settings import Settings
from resolvers.health import periods_s
from workers.broker import DRAIN_TASK, RESOLVE_QUEUE, SEND_QUEUE, broker_url_of
from workers.children import Children, end_within
from workers.poller import Poller
from workers.rounds import Rounds
from workers.runtime import Runtime, Slots
from workers.sender import STOP_SLACK_S

_log = logging.getLogger(__name__)
# How soon a Celery that ended by itself is started again: children import SDKs at their start.
_AGAIN_S = 2.0
# Connections to vendors, of a thread eight at the most, and what else is open.
_FILES = 65536
_YES = b"\x01"
# How long after the deadline of its calls a worker that was told to end is there at the most.
_LATEST_S = 10.0
# What the page of memory that parent and children share tells.
_STOP, _SAID = 0, 1


class Child:
    """What one prefork child holds. The flags are a page of memory that parent and children share,
    because a warm shutdown signals the parent only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._flags = mmap.mmap(-1, 2)
        self._slots = Slots(max(settings.policy.children - 1, 1))
        self.rounds = Rounds()
        self.runtime: Runtime | None = None
        self.poller: Poller | None = None
        self._end_by: float | None = None

    def stopping(self) -> bool:
        """Whether the worker was told to end."""
        told = self._is(_STOP)
        if told and self._end_by is None:
            self._end_by = time.monotonic() + self.settings.policy.call_deadline_s
        return told

    def stop(self, **_: Any) -> None:
        """No new claim from here on, in any child."""
        self._set(_STOP)

    def start_or_end(self, **_: Any) -> None:
        """In a child of Celery's, which would go on without what could not be started, and take
        ticks that it does nothing about: it ends instead, and its pool starts another one."""
        try:
            self.start()
        except BaseException as error:
            # By its class: the message of a database error quotes the row.
            _log.error("a child could not start: %s", type(error).__name__)
            # No faster than that, where it will not start for long.
            threading.Event().wait(_AGAIN_S)
            os._exit(1)

    def start(self) -> None:
        """In the process that sends, after its fork where there is one."""
        # A supervisor may signal the whole process group: a child finishes what is in flight and
        # leaves ending it to its parent.
        signal.signal(signal.SIGTERM, self._on_term)
        self.rounds = Rounds()
        self.runtime = Runtime(self.settings, slots=self._slots, stopping=self.stopping)
        self.poller = Poller(self.runtime, self.stopping)
        self.poller.start()
        if not self._is(_SAID):
            self._set(_SAID)
            print("worker: ready to send and to resolve", file=sys.stderr, flush=True)

    def end(self, **_: Any) -> None:
        """In the child, at its orderly end. What takes longer than a stop may is left to its
        leases and holds, like that of any lost worker."""
        if self.poller is not None:
            self.poller.stop(self._left_s(STOP_SLACK_S))
        self.rounds.finish(self._left_s())
        if self.runtime is not None:
            self.runtime.close(self._left_s())

    def _left_s(self, slack_s: float = 0.0) -> float:
        if not self.stopping() or self._end_by is None:
            return self.settings.policy.drain_budget_s + self.settings.policy.call_deadline_s
        return max(self._end_by + slack_s - time.monotonic(), 0.0)

    def _is(self, flag: int) -> bool:
        return self._flags[flag : flag + 1] == _YES

    def _set(self, flag: int) -> None:
        self._flags[flag : flag + 1] = _YES

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()


def build_app(settings: Settings) -> Celery:
    """The Celery application for these settings; queues, limits and ticks, no results."""
    policy = settings.policy
    app = Celery("outbox", broker=broker_url_of(settings.redis_url), set_as_current=False)
    app.conf.update(
        timezone="UTC",
        enable_utc=True,
        task_ignore_result=True,
        accept_content=["json"],
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_soft_time_limit=policy.soft_limit_s,
        task_time_limit=policy.hard_limit_s,
        task_queues=[Queue(SEND_QUEUE), Queue(RESOLVE_QUEUE)],
        task_default_queue=RESOLVE_QUEUE,
        task_create_missing_queues=False,
        worker_prefetch_multiplier=1,
        # A child imports its vendors' SDKs before it says that it is up; four seconds are too
        # few on a busy machine, and a child that is given up for dead is replaced for ever.
        worker_proc_alive_timeout=60.0,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        # Nothing is acknowledged late, so nothing is cancelled; unset, Celery warns at each loss.
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=max(settings.redis_timeout_s, 1.0),
        broker_transport_options={
            "visibility_timeout": policy.visibility_timeout_s,
            "socket_connect_timeout": max(settings.redis_timeout_s, 1.0),
            "socket_keepalive": True,
        },
        beat_schedule=_ticks(settings),
    )
    return app


def _ticks(settings: Settings) -> dict[str, dict[str, Any]]:
    """Beat's schedule: each job's task, its period and its queue."""
    ticks = {"drain": (DRAIN_TASK, settings.policy.tick_drain_s, SEND_QUEUE)}
    for role, period in periods_s(settings).items():
        ticks[role] = (f"outbox.{role}", period, RESOLVE_QUEUE)
    return {
        name: {
            "task": task,
            "schedule": period,
            # Missed ticks are not replayed: a tick that waited for two periods is worthless.
            "options": {"queue": queue, "expires": 2 * period},
        }
        for name, (task, period, queue) in ticks.items()
    }


def add_tasks(app: Celery, child: Child) -> None:
    """The two queues' tasks, over what the child holds; of this application alone, because a
    process may need a second one."""

    def drain() -> None:
        if child.runtime is not None:
            child.rounds.run("drain", child.runtime.drain)

    app.task(drain, name=DRAIN_TASK, shared=False)
    for role in ("expire", "join", "resolve", "escalate", "page", "prune"):
        app.task(_job(child, role), name=f"outbox.{role}", shared=False)


def _job(child: Child, role: str) -> Any:
    def run() -> None:
        runtime = child.runtime
        # The beat may know of a retention that this worker was not told of.
        if runtime is not None and role in runtime.roles:
            # Not waited for: a pager or a database that is slow for one role must not keep the
            # child from the others.
            child.rounds.begin(role, lambda: runtime.run(role))

    run.__name__ = role
    return run


def run_worker(settings: Settings) -> int:
    """The worker, until SIGTERM. Without a broker it polls in this one process."""
    # Messages are JSON and name no code: what Celery warns root of (pickle) is not accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    _open_as_many_files_as_allowed()
    child = Child(settings)
    return _run_with_broker(child) if settings.redis_url else _run_polling(child)


def _open_as_many_files_as_allowed() -> None:
    # The usual soft limit (1024) is for programs with select(); each thread keeps connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _run_with_broker(child: Child) -> int:
    """Celery ends by itself where its pool and its connection break at once. Nobody asked for
    that, so it is started again: a worker may have no supervisor."""
    worker_process_init.connect(child.start_or_end, weak=False)
    worker_process_shutdown.connect(child.end, weak=False)
    worker_shutting_down.connect(child.stop, weak=False)
    limit_s = child.settings.policy.call_deadline_s + _LATEST_S

    def end(**_: Any) -> None:
        end_within(limit_s)

    worker_shutting_down.connect(end, weak=False)
    while True:
        code = _run_celery(child)
        if _told_to_end(child):
            return code
        print("worker: Celery ended by itself, it is started again", file=sys.stderr, flush=True)
        threading.Event().wait(_AGAIN_S)
        if _told_to_end(child):
            return 0


def _told_to_end(child: Child) -> bool:
    # Celery's own words are also set by signals of which it tells nobody else.
    celery_s = (worker_state.should_stop, worker_state.should_terminate)
    return child.stopping() or any(word is not None for word in celery_s)


def _run_celery(child: Child) -> int:
    """One Celery worker to its end, with all its children."""
    settings = child.settings
    set_event_loop(None)
    app = build_app(settings)
    add_tasks(app, child)
    worker = app.Worker(
        hostname=f"outbox@%h-{os.getpid()}",
        pool=Children,
        concurrency=settings.policy.children,
        queues=[SEND_QUEUE, RESOLVE_QUEUE],
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        optimization="fair",
        quiet=True,
    )
    try:
        worker.start()
    except Exception as error:
        _log.error("Celery could not end in good order: %s", type(error).__name__)
    for left in active_children():
        os.kill(left.pid, signal.SIGKILL)
        left.join()
    return int(worker.exitcode or 0)


def _run_polling(child: Child) -> int:
    ended = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        child.stop()
        ended.set()

    print("worker: no REDIS_URL, polling the database", file=sys.stderr, flush=True)
    child.start()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    if child.stopping():  # told between the two handlers
        ended.set()
    ended.wait()
    child.end()
    return 0

"""Jobs of one process, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from celery.exceptions import SoftTimeLimitExceeded

_log = logging.getLogger(__name__)


class Rounds:
    """Runs each job in a thread of its own, which a Celery task may wait for. A time limit is an
    exception at any line of the task's thread: there it could lose answers that are in memory,
    or be taken for a vendor's failure; here it ends the waiting and nothing else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Thread] = {}

    def run(self, name: str, job: Callable[[], object]) -> None:
        """Runs the job to its end, or the time limit; does nothing where it still runs."""
        done = self.begin(name, job)
        if done is not None:
            with suppress(SoftTimeLimitExceeded):
                done.wait()

    def begin(self, name: str, job: Callable[[], object]) -> threading.Event | None:
        """Starts the job and does not wait for it, so that none waits for another; set once it has
        ended. None, and nothing is started, where it still runs."""
        done = threading.Event()

        def work() -> None:
            try:
                job()
            except Exception as error:
                # By its class: the message of a database error quotes the row.
                _log.error("%s failed: %s", name, type(error).__name__)
            finally:
                with self._lock:
                    self._running.pop(name, None)
                done.set()

        with self._lock:
            if name in self._running:
                return None
            thread = threading.Thread(target=work, name=f"outbox-{name}", daemon=True)
            try:
                self._running[name] = thread
                thread.start()
            except BaseException:
                # The host refuses a thread, or a time limit fell here: it is not taken for a job
                # that runs.
                if thread.ident is None:
                    self._running.pop(name, None)
                raise
        return done

    def finish(self, limit_s: float) -> None:
        """Waits for what still runs, so long at the most."""
        with self._lock:
            left = list(self._running.values())
        end = time.monotonic() + limit_s
        for thread in left:
            thread.join(max(end - time.monotonic(), 0.0))

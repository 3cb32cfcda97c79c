"""Celery's prefork pool, where two of its cautions would cost more than they save: our messages
carry no data, and nobody waits for a result."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from billiard.process import active_children
from celery.concurrency import asynpool
from celery.concurrency.prefork import TaskPool


class _Child(asynpool.Worker):  # type: ignore[misc]
    def _ensure_messages_consumed(self, completed: int) -> bool:  # noqa: ARG002
        """A child that ends would wait up to 30 s for its parent to read the last results, which
        at a shutdown the parent may have stopped to do."""
        return True


class _Pool(asynpool.AsynPool):  # type: ignore[misc]
    Worker = _Child


class Children(TaskPool):  # type: ignore[misc]
    """The children of one worker."""

    Pool = _Pool

    def did_start_ok(self) -> bool:
        """Called once, when the broker answers for the first time. A child that died before is
        replaced like any other, where Celery would take it for a worker that cannot start."""
        self._pool.maintain_pool()
        return True

    def on_stop(self) -> None:
        """Called at every end. Celery leaves the pool's pipes to the end of the process, which may
        start it again."""
        pool = self._pool
        super().on_stop()
        if pool is not None:
            pool.terminate()


# A pool whose children are gone ends within moments, or it never does.
_LAST_S = 5.0


def end_within(limit_s: float) -> None:
    """From the parent, once: what has not ended after so many seconds is killed, children first.
    Celery waits for a child without end, though it may have died at the wrong moment; what was in
    its hands is left to its leases."""

    def watch() -> None:
        threading.Event().wait(limit_s)
        for left in active_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGKILL)
        threading.Event().wait(_LAST_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

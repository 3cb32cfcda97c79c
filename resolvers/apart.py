"""Work that may hang for good (a disk that is gone, a name that nobody answers for), done in a
thread that nobody has to wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# By process too: a fork takes over what hung, and no thread that would let go of it.
_turns: dict[tuple[int, str], threading.Lock] = {}


class Hangs(OSError):
    """What was begun there before has not come back."""


def begin(what: str, work: Callable[[], T], limit_s: float) -> Future[T]:
    """Does the work in a daemon thread, which no ending process waits for: one at a time for each
    ``what``, so that threads do not pile up behind one that hangs. Who waits for its turn longer
    than the limit gets ``Hangs``; ``cancel`` of the future tells whether it has begun."""
    turn = _turns.setdefault((os.getpid(), what), threading.Lock())
    made: Future[T] = Future()

    def run() -> None:
        if not turn.acquire(timeout=limit_s):
            if made.set_running_or_notify_cancel():
                made.set_exception(Hangs("what was begun there before hangs still"))
            return
        try:
            if made.set_running_or_notify_cancel():
                made.set_result(work())
        except BaseException as error:
            made.set_exception(error)
        finally:
            turn.release()

    threading.Thread(target=run, name=f"outbox-apart-{what}", daemon=True).start()
    return made

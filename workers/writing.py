"""Answers on their way to the ledger, beside the claims: one batch at a time, in a thread of its
own, and whatever comes meanwhile together with the next. Each waits for the database and for the
disk; one after the other, a sender did nothing for half of its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from outbox.outcomes import NotSent
from workers.flight import Results
from workers.means import Pool
from workers.pace import Pace
from workers.recording import Left, Recorder, Result

_AGAIN_S = 0.5
# Another claim that looks at a row has it in hand for an instant, a caller's transaction for long:
# an answer that waits for its row is offered again soon, and then less often.
_HELD_FIRST_S = 0.005
_HELD_MOST_S = 0.25
_HELD_PART = 4


class Writer:
    """Keeps answers until their commit is confirmed, and offers them again until then. All but the
    write itself is for one thread alone, the drain's. ``pool`` has one thread, which writes;
    ``pause`` waits for a database that is away; ``most`` answers may wait before claims do."""

    def __init__(
        self,
        recorder: Recorder,
        pace: Pace,
        pool: Pool,
        results: Results,
        *,
        pause: Callable[[float], None],
        probes: set[UUID],
        most: int,
    ) -> None:
        self._recorder = recorder
        self._pace = pace
        self._pool = pool
        self._results = results
        self._pause = pause
        self._probes = probes
        self._most = most
        self._next: list[Result] = []
        self._may_close = False
        # How many answers are being written, or were by a write whose end is unseen.
        self._under_way = 0
        self._frees = False
        self._end = threading.Lock()
        self._ended: list[Left | Exception] = []
        # The drain waits for the next result, and shall be woken by the end of a write too.
        self._is_awaited = False
        # Answers whose row is in another transaction's hands, a caller's it may be.
        self._held: list[Result] = []
        self._held_until = 0.0
        self._held_pause_s = _HELD_FIRST_S

    @property
    def comes_first(self) -> bool:
        """Whether a claim must wait: for answers that may close its gates (an account's pause, a
        breaker, a vendor that asks to wait), or because too many are not written."""
        # What callers have in hand for long counts less: it must not keep others waiting.
        unwritten = len(self._next) + self._under_way + len(self._held) // _HELD_PART
        return self._may_close or unwritten >= self._most

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way, or has ended unseen."""
        return self._under_way > 0

    @property
    def is_held_briefly(self) -> bool:
        """Whether some wait for a row that may well be free in a moment."""
        return bool(self._held) and self._held_pause_s < _HELD_MOST_S

    @property
    def holds_any(self) -> bool:
        """Whether anything is not written yet."""
        return bool(self._next or self.is_writing or self._held)

    def is_done(self, *, stopping: bool) -> bool:
        """Nothing is left to wait for. What somebody has in hand for long is left to the next
        drain, and waited for where there will be none (``stopping``)."""
        held = self._held and (stopping or self.is_held_briefly)
        return not (self._next or self.is_writing or held)

    def wait_s(self, limit_s: float) -> float:
        """How long nothing is to be done here, unless a result or the end of a write comes; at the
        most ``limit_s``."""
        if self._held:
            limit_s = min(limit_s, max(self._held_until - time.monotonic(), 0.0))
        if self._next and not self.is_writing:
            limit_s = min(limit_s, self._pace.gather_s())
        return limit_s

    def await_end(self, yes: bool) -> bool:
        """Says that the drain is about to wait for a result (or that it has one), and whether it
        still should: not where a write has ended just now."""
        self._is_awaited = yes
        return not self._ended

    def go_on(self, more: Sequence[Result], *, hurry: bool) -> bool:
        """Takes ``more`` answers, sees what the last write came to, and begins the next, which
        waits for what comes in the next moments unless there is ``hurry``. Whether somebody may go
        now who waited for what has been written: behind it in its lane, or for a breaker's probe.
        """
        self.keep(more)
        freed = self._take_up()
        if self._held and time.monotonic() >= self._held_until:
            self._next, self._held = [*self._held, *self._next], []
        if not self._next or self.is_writing or not (hurry or self._is_ready()):
            return freed
        batch, self._next = self._next, []
        self._under_way = len(batch)
        self._frees = self._frees_any(batch)
        self._pool.submit(self._write, batch)
        return self._take_up() or freed

    def _is_ready(self) -> bool:
        """Whether enough time has gone by since the last write, or somebody waits for this one."""
        return self._may_close or self._pace.gather_s() <= 0 or self._frees_any(self._next)

    def _frees_any(self, batch: Sequence[Result]) -> bool:
        return any(
            flight.intent.lane is not None or flight.intent.id in self._probes
            for flight, _ in batch
        )

    def keep(self, more: Sequence[Result]) -> None:
        """Takes answers that will be written with the next."""
        self._next += more
        self._may_close = self._may_close or any(isinstance(o, NotSent) for _, o in more)

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown()

    def _write(self, batch: list[Result]) -> None:
        try:
            with self._pace.writing():
                ended: Left | Exception = self._recorder.write(batch)
        except Exception as error:
            ended = error
        with self._end:
            self._ended.append(ended)
            if self._is_awaited:
                self._results.put(None)

    def _take_up(self) -> bool:
        with self._end:
            if not self._ended:
                return False
            ended = self._ended.pop()
        self._under_way = 0
        if isinstance(ended, Exception):
            self._look_for_closing()
            raise ended
        if ended.held:
            self._held += ended.held
            self._held_until = time.monotonic() + self._held_pause_s
            self._held_pause_s = min(self._held_pause_s * 2, _HELD_MOST_S)
        elif not self._held:
            self._held_pause_s = _HELD_FIRST_S
        if ended.away:
            self._next = [*ended.away, *self._next]
            self._pause(_AGAIN_S)
        self._look_for_closing()
        return self._frees

    def _look_for_closing(self) -> None:
        self._may_close = any(isinstance(outcome, NotSent) for _, outcome in self._next)

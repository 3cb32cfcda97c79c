"""The sender: claims a batch, calls concurrently, records whatever has finished in one statement.

Nothing is sent that is not claimed in a committed transaction, and no transaction is open while a
call is on the wire. Results stay in memory until their commit is confirmed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from outbox.doorbell import Doorbell
from outbox.errors import Unreachable
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from outbox.store.intents import Intent
from resolvers.directory import Directory
from workers.calling import Caller
from workers.flight import Flight, Results
from workers.means import Means
from workers.pace import Pace
from workers.places import Places, Room
from workers.recording import Recorder, Result
from workers.writing import Writer

# A process told to end waits no longer than this, beyond the call deadline, for a database that
# is away: the leases run out, and the rows are resolved like those of any lost worker.
STOP_SLACK_S = 2.5
# How soon a drain that waits for answers sees that it shall stop, or claim again.
_WAIT_S = 0.25
_GATHER_STEP_S = 0.001


class Sender:
    """The one consumer's hands in one process. ``stopping`` says that the process was told to
    end: no new claim, unstarted rows are handed back, what is in flight is finished. ``jitter``
    gives a number from 0 to 1."""

    def __init__(
        self,
        store: Store,
        directory: Directory,
        bell: Doorbell,
        *,
        owner: str,
        stopping: Callable[[], bool],
        jitter: Callable[[], float],
        means: Means = Means(),  # noqa: B008 - frozen, and all it holds is functions
    ) -> None:
        self._store = store
        self._directory = directory
        self._bell = bell
        self._stopping = stopping
        self._policy = directory.policy
        self._claimer_for = partial(Claimer, store, owner=owner, lease_s=self._policy.lease_s)
        self._sendable = directory.sendable()
        self._claimer = self._claimer_for(self._sendable)
        self._means = means
        self._places = Places(self._policy.threads)
        self._pool = means.pool(self._places.most)
        # Flights that were cut and whose thread has not come back.
        self._cut: list[Flight] = []
        self._results: Results = queue.SimpleQueue()
        self._watchdog = means.watchdog()
        self._caller = Caller(
            directory, self._watchdog, stopping=stopping, since_boot_s=means.since_boot_s
        )
        self._pace = Pace(self._policy, means.since_boot_s)
        self._writer = Writer(
            Recorder(store, directory, probes=self._claimer.probes, jitter=jitter),
            self._pace,
            means.pool(1),
            self._results,
            pause=means.pause,
            probes=self._claimer.probes,
            most=2 * self._policy.threads,
        )
        self._busy = threading.Lock()
        # Whether somebody asked for a drain since the last claim.
        self._asked = False
        self._token_in_s: float | None = None
        self._stop_by: float | None = None

    def drain(self, budget_s: float | None = None, *, helps: bool = False) -> int:
        """Sends what is due until nothing is, or the budget is spent; then finishes what is in
        flight. One that only ``helps`` another one ends once that can keep up by itself. Returns
        how many intents it claimed; 0 at once where a drain runs already, which then claims anew.
        """
        self._asked = True
        if not self._busy.acquire(blocking=False):
            return 0
        try:
            self._take_up_accounts()
            self._claimer.forget_mark()
            return self._drain(self._policy.drain_budget_s if budget_s is None else budget_s, helps)
        finally:
            self._writer.keep(self._landed())
            self._busy.release()

    def has_late_answers(self) -> bool:
        """Whether there are answers that the last drain did not see, or could not write."""
        return not self._results.empty() or self._writer.holds_any

    def next_in_s(self) -> float:
        """How soon the next drain should begin: at the next tick, or sooner where rows waited for
        a token of their account's rate in the last one. Said once, for a row may have gone."""
        token_in_s, self._token_in_s = self._token_in_s, None
        return self._pace.tick_s(token_in_s)

    def close(self) -> None:
        """Ends the threads; nothing may be in flight."""
        self._pool.shutdown()
        self._writer.close()
        self._watchdog.close()

    # -- the loop ----------------------------------------------------------------------------

    def _take_up_accounts(self) -> None:
        """Claims for accounts, too, of which it was learned since whose they are."""
        sendable = self._directory.sendable()
        if sendable != self._sendable:
            self._sendable = sendable
            self._claimer = self._claimer_for(sendable, probes=self._claimer.probes)

    def _drain(self, budget_s: float, helps: bool) -> int:
        end = time.monotonic() + budget_s
        claimed, next_claim, emptied, called = 0, 0.0, False, False
        away: Unreachable | None = None
        self._write(self._collect())
        if self._claimer.token_in_s is not None and self._is_idle() and not self._stopping():
            # Where tokens are few, the other rows would have taken each before it comes to these.
            claimed += self._claim_alone()
        while not self._gave_up():
            if self._asked:
                self._asked, emptied, next_claim = False, False, 0.0
            now = time.monotonic()
            room = self._places.room(now, ending=now >= end, ahead=self._pace.ahead())
            may_claim = self._may_claim(now, end, room) and away is None
            count, most = 0, min(self._policy.batch, room.limit)
            try:
                if (
                    may_claim
                    and now >= next_claim
                    and not self._writer.comes_first
                    and self._pace.is_worth(room.limit, self._places.waiting)
                ):
                    count = self._claim(most, room)
                    claimed += count
                    if count >= self._policy.batch and not called:
                        called = self._bell.call()
                    # What is due for a full account is not seen.
                    emptied = count == 0 and not room.full
                    self._token_in_s = self._claimer.token_in_s
                    wait_s = self._pace.next_claim_s(
                        count, most, self._token_in_s, is_full=bool(room.full)
                    )
                    next_claim = time.monotonic() + wait_s
                    if helps and 0 < count < most and self._pace.ahead():
                        # Two that claim a few rows each cost twice what one costs.
                        end = now
                ends = emptied or not may_claim or self._writer.comes_first
                if ends and self._is_idle():
                    # At the end of a budget too, or a steady load would keep such rows waiting.
                    alone = 0 if self._stopping() or away else self._claim_alone()
                    claimed += alone
                    if not alone or not may_claim:
                        break
                    emptied, next_claim = False, 0.0
            except Unreachable as error:
                # No more claims; what is in the air comes back to this very drain.
                away, end = error, now
            # A claim that found all that it asked for may be followed by another one at once.
            ended = self._collect(next_claim - now, waits=not count or count < most)
            if self._write(ended):
                emptied, next_claim = False, 0.0
            if not self._places.held and not self._writer.is_writing and not emptied:
                self._means.pause(min(max(next_claim - time.monotonic(), 0.0), _WAIT_S))
        if away is not None:
            raise away
        if not emptied and not self._stopping():
            self._bell.ring()
        return claimed

    def _may_claim(self, now: float, end: float, room: Room) -> bool:
        """Until the budget is spent; then for others than those whose slow calls are waited for,
        so long as the slowest of those may take."""
        if self._stopping():
            return False
        return now < end or (bool(room.full) and now < end + self._policy.call_deadline_s)

    def _is_idle(self) -> bool:
        return not self._places.held and self._writer.is_done(stopping=self._stopping())

    def _gave_up(self) -> bool:
        """Whether the process was told to end so long ago that it must not wait any more."""
        if not self._stopping():
            return False
        if self._store.is_cut:
            return True
        now = time.monotonic()
        if self._stop_by is None:
            self._stop_by = now + self._policy.call_deadline_s + STOP_SLACK_S
        return now > self._stop_by

    def _claim(self, most: int, room: Room) -> int:
        began = self._means.since_boot_s()
        with self._pace.claiming():
            rows = self._claimer.claim(most, without=room.full)
        # A drain ends only on a claim that was empty after the bell was taken down. While it finds
        # rows the bell stays up, and nobody who commits another one sends a message for it.
        if not rows and self._bell.answer():
            began = self._means.since_boot_s()
            rows = self._claimer.claim(most, without=room.full)
        self._launch(rows, began)
        return len(rows)

    def _claim_alone(self) -> int:
        began = self._means.since_boot_s()
        rows = self._claimer.claim_alone()
        self._launch(rows, began)
        while not self._is_idle() and not self._gave_up():
            self._write(self._collect())
        return len(rows)

    def _launch(self, rows: Sequence[Intent], began: float) -> None:
        for row in rows:
            flight = Flight(
                row,
                start_by=began + self._policy.start_limit_s,
                deadline_s=self._policy.call_deadline_s,
                results=self._results,
                since_boot_s=self._means.since_boot_s,
            )
            self._places.hold(flight)
        self._begin()

    def _begin(self) -> None:
        """Calls for what waits for its place, as far as there are places."""
        begun = self._places.begin(time.monotonic(), everything=self._stopping())
        if begun and self._cut:
            self._cut = [flight for flight in self._cut if not flight.over]
        for flight in begun:
            self._pool.submit(self._caller.fly, flight, self._places.in_air + len(self._cut))

    # -- results -----------------------------------------------------------------------------

    def _collect(self, limit_s: float = 0.0, *, waits: bool = True) -> list[Result]:
        """What has finished; ``waits`` a moment for the first, ``limit_s`` at the most where it is
        more than 0. Their places are free for others, which begin before they are written."""
        batch = self._ready()
        if not batch and waits:
            wait_s = min(self._policy.tick_drain_s, _WAIT_S)
            wait_s = self._writer.wait_s(min(wait_s, limit_s) if limit_s > 0 else wait_s)
            batch = self._ready(self._wait(wait_s))
        if batch and self._places.in_air and self._must_gather():
            # Others come in this very moment, and all are written together.
            self._means.pause(_GATHER_STEP_S)
            batch += self._ready()
        return batch

    def _must_gather(self) -> bool:
        return not self._stopping() and (self._writer.is_writing or self._pace.gather_s() > 0)

    def _wait(self, wait_s: float) -> Result | None:
        """For a result, which it returns, the end of a write, or a row that somebody has in
        hand."""
        first = None
        if wait_s > 0 and (self._places.held or self._writer.is_writing):
            if self._writer.await_end(True):
                with suppress(queue.Empty):
                    first = self._results.get(timeout=wait_s)
            self._writer.await_end(False)
        elif wait_s > 0 and (self._stopping() or self._writer.is_held_briefly):
            self._means.pause(wait_s)
        return first

    def _ready(self, first: Result | None = None) -> list[Result]:
        batch = self._landed(first)
        self._begin()
        return batch

    def _landed(self, first: Result | None = None) -> list[Result]:
        found = [first]
        with suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        batch = [result for result in found if result is not None]
        for flight, _ in batch:
            if not flight.reported:
                flight.reported = True
                if not flight.over:
                    self._cut.append(flight)
                self._places.free(flight)
                self._pace.called(flight.took_s)
        return batch

    def _write(self, batch: list[Result]) -> bool:
        """Whether somebody may go now who waited for what has been written."""
        # Where nothing else will come there is nothing to wait for.
        return self._writer.go_on(batch, hurry=self._stopping() or not self._places.in_air)

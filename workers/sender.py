"""The sender: claims a batch, calls concurrently, records whatever has finished in one statement.

Nothing is sent that is not claimed in a committed transaction, and no transaction is open while a
call is on the wire. Results stay in memory until their commit is confirmed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from outbox.doorbell import Doorbell
from outbox.errors import Unreachable
from outbox.outcomes import Lost, NotSent, Outcome, Receipt
from outbox.store import doubt, intents, records, switches
from outbox.store.claims import Claimer
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import contradict
from outbox.store.records import Ended
from resolvers.decide import mismatch
from resolvers.directory import Directory
from workers.breaker import HANDED_BACK, TOO_LATE, Breaker, verdict_of_probe
from workers.flight import Flight, Results, Watchdog, tells_more
from workers.monotonic import since_boot_s

_log = logging.getLogger(__name__)
_RECORD_AGAIN_S = 0.5
# A process told to end waits no longer than this, beyond the call deadline, for a database that
# is away: the leases run out, and the rows are resolved like those of any lost worker.
_STOP_SLACK_S = 4.0
_JITTER = 0.2
# How soon a drain that waits for answers sees that it shall stop, or claim again.
_WAIT_S = 0.25


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
    ) -> None:
        self._store = store
        self._directory = directory
        self._bell = bell
        self._stopping = stopping
        self._policy = directory.policy
        self._claimer = Claimer(
            store, directory.sendable(), owner=owner, lease_s=self._policy.lease_s
        )
        self._pool = ThreadPoolExecutor(self._policy.threads, thread_name_prefix="outbox-send")
        self._results: Results = queue.SimpleQueue()
        self._watchdog = Watchdog(self._policy.call_deadline_s)
        self._breaker = Breaker(self._policy)
        self._jitter = jitter
        self._patience = threading.Event()
        self._busy = threading.Lock()
        self._in_flight = 0
        self._stop_by: float | None = None
        self._unrecorded: list[tuple[Flight, Outcome]] = []

    def drain(self, budget_s: float | None = None) -> int:
        """Sends what is due until nothing is, or the budget is spent; then finishes what is in
        flight. Returns how many intents it claimed; 0 at once where a drain runs already."""
        if not self._busy.acquire(blocking=False):
            return 0
        try:
            return self._drain(self._policy.drain_budget_s if budget_s is None else budget_s)
        finally:
            self._busy.release()

    def has_late_answers(self) -> bool:
        """Whether calls that were cut have come back since the last drain."""
        return not self._results.empty() or bool(self._unrecorded)

    def close(self) -> None:
        """Ends the threads; nothing may be in flight."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._watchdog.close()

    # -- the loop ----------------------------------------------------------------------------

    def _drain(self, budget_s: float) -> int:
        end = time.monotonic() + budget_s
        claimed, next_claim, emptied = 0, 0.0, False
        away: Unreachable | None = None
        self._record(self._collect())
        while not self._gave_up():
            now = time.monotonic()
            may_claim = now < end and not self._stopping()
            try:
                if may_claim and now >= next_claim and self._in_flight < self._policy.threads:
                    count = self._claim()
                    claimed += count
                    emptied = count == 0
                    # After an empty claim the tick's pace is enough while calls are in the air.
                    next_claim = now + self._policy.tick_drain_s if emptied else 0.0
                if self._is_idle() and (emptied or not may_claim):
                    # At the end of a budget too, or a steady load would keep such rows waiting.
                    alone = 0 if self._stopping() or away else self._claim_alone()
                    claimed += alone
                    if not alone or not may_claim:
                        break
                    emptied, next_claim = False, 0.0
            except Unreachable as error:
                # No more claims; what is in the air comes back to this very drain.
                away, end = error, now
            ended = self._collect()
            self._record(ended)
            if any(flight.intent.lane is not None for flight, _ in ended):
                # Whoever waited behind it in its lane may go now.
                emptied, next_claim = False, 0.0
        if away is not None:
            raise away
        if not emptied and not self._stopping():
            self._bell.ring()
        return claimed

    def _is_idle(self) -> bool:
        return self._in_flight == 0 and not self._unrecorded

    def _gave_up(self) -> bool:
        """Whether the process was told to end so long ago that it must not wait any more."""
        if not self._stopping():
            return False
        now = time.monotonic()
        if self._stop_by is None:
            self._stop_by = now + self._policy.call_deadline_s + _STOP_SLACK_S
        return now > self._stop_by

    def _claim(self) -> int:
        self._bell.answer()
        began = since_boot_s()
        places = self._policy.threads - self._in_flight
        rows = self._claimer.claim(min(self._policy.batch, places))
        self._launch(rows, began)
        return len(rows)

    def _claim_alone(self) -> int:
        began = since_boot_s()
        rows = self._claimer.claim_alone()
        self._launch(rows, began)
        while not self._is_idle() and not self._gave_up():
            self._record(self._collect())
        return len(rows)

    def _launch(self, rows: Sequence[Intent], began: float) -> None:
        for row in rows:
            flight = Flight(row, start_by=began + self._policy.start_limit_s, results=self._results)
            self._in_flight += 1
            self._pool.submit(self._fly, flight)

    def _fly(self, flight: Flight) -> None:
        if self._stopping() or not flight.may_start():
            flight.land(NotSent(HANDED_BACK if self._stopping() else TOO_LATE))
            return
        number = self._watchdog.watch(flight)
        try:
            outcome = self._perform(flight)
        except BaseException as error:
            outcome = Lost(f"the adapter raised {_name(error)}")
        in_time = self._watchdog.forget(number)
        if in_time or tells_more(outcome):
            flight.land(outcome)

    def _perform(self, flight: Flight) -> Outcome:
        row = flight.intent
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return NotSent("no credentials for this account here")
        vendor, account, _ = reached
        if row.mode != account.mode or (row.vendor_account or "") != account.vendor_account:
            return NotSent("the account is not the one the intent was claimed for")
        return vendor.perform(row.call(account, flight))

    # -- results -----------------------------------------------------------------------------

    def _collect(self) -> list[tuple[Flight, Outcome]]:
        """What has finished; waits a moment for the first."""
        batch = self._unrecorded
        self._unrecorded = []
        try:
            if not batch and self._in_flight:
                batch = [self._results.get(timeout=min(self._policy.tick_drain_s, _WAIT_S))]
            while True:
                batch.append(self._results.get_nowait())
        except queue.Empty:
            return batch

    def _record(self, batch: list[tuple[Flight, Outcome]]) -> None:
        if not batch:
            return
        for flight, _ in batch:
            if not flight.reported:
                flight.reported = True
                self._in_flight -= 1
        left = self._write(batch)
        if left:
            # Nothing is forgotten: the same results are offered again until a commit is confirmed.
            self._unrecorded = left
            self._patience.wait(_RECORD_AGAIN_S)

    def _write(self, batch: list[tuple[Flight, Outcome]]) -> list[tuple[Flight, Outcome]]:
        """Returns what could not be written because the database is away."""
        first: dict[UUID, tuple[Flight, Outcome]] = {}
        late: list[tuple[Flight, Outcome]] = []
        for result in batch:
            if first.setdefault(result[0].intent.id, result) is not result:
                late.append(result)
        alone = late
        try:
            self._write_together([self._ended(*result) for result in first.values()])
        except Unreachable:
            return batch
        except Exception as error:
            # By its class: the message of a database error quotes the row.
            _log.error("a batch of %d is recorded one by one: %s", len(first), _name(error))
            alone = [*first.values(), *late]
        for position, result in enumerate(alone):
            try:
                self._write_alone(self._ended(*result))
            except Unreachable:
                return alone[position:]
        return []

    def _write_together(self, ended: list[Ended]) -> None:
        with self._store.transaction() as tx:
            records.record(tx, ended)
            for one in ended:
                self._check_answer(tx, one)
            self._look_after(tx, ended)

    def _write_alone(self, one: Ended) -> None:
        try:
            self._write_together([one])
            return
        except Unreachable:
            raise
        except Exception as error:
            _log.error("the answer of %s could not be recorded: %s", one.intent.id, _name(error))
            lost = Lost(f"the answer could not be recorded: {_name(error)}")
        try:
            self._write_together([Ended(one.intent, lost, look_in_s=one.look_in_s)])
        except Unreachable:
            raise
        except Exception as error:
            # Its lease ends, and the row is in doubt like that of any lost worker.
            _log.error("%s could not be put in doubt: %s", one.intent.id, _name(error))

    def _check_answer(self, tx: Transaction, one: Ended) -> None:
        """An answer that is ours and is not what was asked for needs a person."""
        if not isinstance(one.outcome, Receipt):
            return
        wrong = mismatch(one.intent, one.outcome.reading)
        if wrong is not None:
            row = intents.lock(tx, one.intent.id)
            assert row is not None
            receipt = one.outcome.reading.receipt_id
            contradict(tx, row, wrong.replace(" ", "_"), [receipt], f"the answer shows {wrong}")

    def _ended(self, flight: Flight, outcome: Outcome) -> Ended:
        policy, row = self._policy, flight.intent
        back_off = min(
            policy.not_sent_first_s * 2.0 ** min(row.not_sent_count, 30), policy.not_sent_max_s
        )
        back_off *= 1 + _JITTER * (2 * self._jitter() - 1)
        look_in_s = policy.looks_s[0]
        if isinstance(outcome, NotSent):
            if outcome.reason == HANDED_BACK:
                back_off = 0.0
            elif outcome.retry_after_s is not None:
                back_off = max(back_off, outcome.retry_after_s)
                look_in_s = max(look_in_s, outcome.retry_after_s)
        return Ended(row, outcome, row.last_sent_at, back_off_s=back_off, look_in_s=look_in_s)

    def _look_after(self, tx: Transaction, ended: list[Ended]) -> None:
        """Pauses, breakers and verifying looks that the outcomes ask for."""
        policy = self._policy
        for one in ended:
            row, outcome = one.intent, one.outcome
            where = (row.vendor, row.account)
            if isinstance(outcome, NotSent) and outcome.pause:
                switches.pause(tx, *where, kind="pause", reason=outcome.reason, by="sender")
            elif row.id in self._claimer.probes:
                self._claimer.probes.discard(row.id)
                passed = verdict_of_probe(outcome)
                if passed is False:
                    switches.slow_breaker(tx, *where, max_s=policy.breaker_probe_max_s)
                elif passed:
                    switches.close_breaker(tx, *where)
            elif self._breaker.count(*where, outcome, time.monotonic()):
                switches.trip_breaker(
                    tx, *where, reason="most calls fail", probe_s=policy.breaker_probe_s
                )
            contract = self._directory.contract(row.vendor)
            if contract is None or contract.honours_keys or not contract.can_look_up:
                continue
            if isinstance(outcome, Receipt):
                after_s = policy.lease_s + policy.quiet_after_s(contract)
                doubt.schedule_verification(tx, [row.id], after_s)


def _name(error: BaseException) -> str:
    return type(error).__name__

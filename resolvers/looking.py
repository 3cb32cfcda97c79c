"""Look-ups: rows in doubt are read back at the vendor, decided, and moved.

The reads run in threads of their own, a row each, with no transaction open; a vendor that hangs
holds its threads and nobody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from datetime import datetime
from functools import partial
from typing import assert_never

from outbox.contract import Call, Vendor
from outbox.errors import Unreachable
from outbox.outcomes import Found, LookUp, Standing, Unreadable
from outbox.states import Event
from outbox.store import doubt, intents, rates, switches
from outbox.store.connection import Store, Transaction
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.moves import Change, Moved, apply
from outbox.store.rates import Meter
from resolvers import pacing
from resolvers.decide import (
    Contradict,
    Decision,
    Evidence,
    Resend,
    Settle,
    Wait,
    decide,
    window_end,
)
from resolvers.directory import Directory
from resolvers.evidence import apply_reading, look_up
from vendors.watchdog import Watchdog

_log = logging.getLogger(__name__)
ACTOR = "resolver"


class Looker:
    """The look-up threads of one process, and the watch over their reads: its own, unless it is
    given others."""

    def __init__(
        self,
        store: Store,
        directory: Directory,
        *,
        threads: int = 16,
        pool: Executor | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="outbox-look")
        self._free = threading.Semaphore(threads)
        self._threads = threads
        self._meters = directory.meters()
        self._prefixes = [p for p in directory.gate_prefixes() if p not in self._meters]
        self._hold_s = directory.policy.look_hold_s()
        self._watchdog = watchdog or Watchdog()
        self._running: set[Future[None]] = set()

    def tick(self, budget_s: float) -> int:
        """Starts what is due until nothing is, or the budget is spent. Returns how many it began;
        they end in their own time."""
        return len(self._start(budget_s))

    def once(self) -> int:
        """Everything that is due now, to its end."""
        begun = self._start(float("inf"))
        wait(begun)
        for future in begun:
            future.result()
        return len(begun)

    def close(self, limit_s: float | None = None) -> None:
        """Takes no more and lets running reads end. What is left after ``limit_s`` is cut: its
        row is looked at again when its hold has run out."""
        self._pool.shutdown(wait=False)
        wait(list(self._running), limit_s)
        self._watchdog.close()

    def _start(self, budget_s: float) -> list[Future[None]]:
        give_up = time.monotonic() + budget_s
        begun: list[Future[None]] = []
        for claim, ask, work in (
            (doubt.claim_doubts, doubt.doubtful, self._resolve),
            (doubt.claim_verifications, doubt.unverified, self._verify),
        ):
            whole = partial(claim, hold_s=self._hold_s)
            begun += self._begin(partial(whole, accounts=self._prefixes), work, give_up)
            for meter in self._metered_due(ask):
                begun += self._begin(self._paced(whole, meter), work, give_up)
        return begun

    def _begin(
        self, claim: Callable[..., list[Intent]], work: Callable[[Intent], None], give_up: float
    ) -> list[Future[None]]:
        begun: list[Future[None]] = []
        while time.monotonic() < give_up:
            places = self._places(give_up)
            if not places:
                break
            rows: list[Intent] = []
            try:
                with self._store.transaction() as tx:
                    held = claim(tx, limit=places)
                rows = held  # only now: a claim that was not committed holds no place
            finally:
                for _ in range(places - len(rows)):
                    self._free.release()
            for row in rows:
                begun.append(self._pool.submit(self._run, work, row))
                self._running.add(begun[-1])
                begun[-1].add_done_callback(self._running.discard)
            if not rows:
                break
        return begun

    def _metered_due(self, ask: Callable[[Transaction, list[str]], list[str]]) -> list[Meter]:
        """The rates of the accounts that have one and something to look at."""
        if not self._meters:
            return []
        with self._store.transaction() as tx:
            due = ask(tx, list(self._meters))
            rates.open_buckets(tx, [self._meters[prefix] for prefix in due])
        return [self._meters[prefix] for prefix in due]

    def _paced(
        self, claim: Callable[..., list[Intent]], meter: Meter
    ) -> Callable[..., list[Intent]]:
        """The claim of one such account. Its first look of a tick goes whatever sends leave."""
        least = iter((1,))

        def paced(tx: Transaction, *, limit: int) -> list[Intent]:
            rows = partial(claim, tx, accounts=[meter.prefix])
            return pacing.claim(tx, meter, rows, limit=limit, at_least=next(least, 0))

        return paced

    def _places(self, give_up: float) -> int:
        places = 0
        while places < self._threads and self._free.acquire(blocking=False):
            places += 1
        if not places:
            left_s = min(give_up - time.monotonic(), self._hold_s)
            places = 1 if left_s > 0 and self._free.acquire(timeout=left_s) else 0
        return places

    def _run(self, work: Callable[[Intent], None], row: Intent) -> None:
        try:
            work(row)
        except (Moved, Unreachable):
            # Somebody else wrote the row, or the database is away: the row's hold runs out and it
            # is looked at again.
            return
        except Exception as error:
            # By its class: the message may quote the row. Its hold runs out too.
            _log.error("the look at intent %s failed: %s", row.id, type(error).__name__)
            raise
        finally:
            self._free.release()

    # -- one row -----------------------------------------------------------------------------

    def _resolve(self, row: Intent) -> None:
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return
        _, _, contract = reached
        with self._store.transaction() as tx:
            began_at = intents.now(tx)
        never_left = row.doubt == 0
        look = self._look_up(row, began_at) if contract.can_look_up and not never_left else None
        if isinstance(look, Unreadable) and look.pause:
            self._pause(row, look.reason)
        with self._store.transaction() as tx:
            current = intents.lock(tx, row.id)
            if current is None or current.version != row.version:
                raise Moved(str(row.id))
            end = window_end(current, contract, self._directory.policy)
            if end is not None and end != current.window_ends_at:
                current = doubt.shorten_window(tx, current, end)
            evidence = Evidence(
                look=look,
                began_at=began_at,
                paused=switches.is_closed(tx, row.gate) or switches.clock_is_doubted(tx),
                person_is_looking=doubt.person_is_looking(tx, row.id),
                escalated=doubt.is_escalated(tx, row.id),
                unsendable=self._directory.unsendable(current) is not None,
            )
            decision = decide(current, evidence, contract, self._directory.policy, intents.now(tx))
            self._act(tx, current, began_at, look, decision)

    def _act(
        self,
        tx: Transaction,
        row: Intent,
        began_at: datetime,
        look: LookUp | None,
        decision: Decision,
    ) -> None:
        match decision:
            case Settle(reading):
                apply_reading(tx, row, reading, actor=ACTOR, source="lookup")
            case Contradict(reason, objects):
                found = look.readings if isinstance(look, Found) else ()
                contradict(tx, row, reason, list(objects), "look-up", found=found)
                written = intents.lock(tx, row.id)
                assert written is not None
                later = Wait(self._directory.policy.look_after_page_s)
                self._wait(tx, written, began_at, later)
            case Resend(confirmed_absent):
                apply(
                    tx,
                    row,
                    Event.RESEND_APPROVED,
                    Change(
                        actor=ACTOR,
                        reason="absence confirmed" if confirmed_absent else "same key",
                        confirmed_absent=confirmed_absent,
                        due_in_s=0.0,
                        resends=1,
                    ),
                )
            case Wait():
                self._wait(tx, row, began_at, decision)
                if isinstance(look, Unreadable):
                    doubt.note_unreadable(tx, row.id, look.reason, by=ACTOR)
            case _:
                assert_never(decision)

    def _wait(self, tx: Transaction, row: Intent, began_at: datetime, decision: Wait) -> None:
        doubt.note_look(
            tx,
            row,
            due_in_s=decision.due_in_s,
            absent=decision.absent,
            quiet_absence_at=began_at if decision.quiet_absence else None,
        )

    def _look_up(self, row: Intent, began_at: datetime) -> LookUp:
        policy = self._directory.policy
        return self._read(row, lambda vendor, call: look_up(vendor, row, call, policy, began_at))

    def _read(self, row: Intent, read: Callable[[Vendor, Call], LookUp]) -> LookUp:
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return Unreadable("no credentials for this account here")
        vendor, account, _ = reached
        if not row.is_of(account):
            return Unreadable("the account is not the one the intent was sent for")
        deadline_s = self._directory.policy.look_deadline_s
        meter = self._directory.meter(row.vendor, row.account)
        paced = pacing.Paced(self._store, meter, patience_s=deadline_s / 4) if meter else None
        try:
            with self._watchdog.limit(deadline_s, paced) as cutoff:
                seen = read(vendor, row.call_to_read(account, cutoff))
        except Exception as error:
            return Unreadable(f"the adapter failed: {type(error).__name__}")
        if meter and isinstance(seen, Unreadable) and seen.retry_after_s is not None:
            with self._store.transaction() as tx:
                rates.push_back(tx, meter, seen.retry_after_s)
        return seen

    def _verify(self, row: Intent) -> None:
        """A landed row is read again: for duplicates where no key is honoured, or where the key of
        a row that was sent again was new to the vendor; else for what has become of its object."""
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None or row.receipt_id is None:
            return
        _, _, contract = reached
        receipt_id = row.receipt_id
        sent_anew = row.resends > 0 and row.settled_by != "replay"
        if not contract.can_look_up or (contract.honours_keys and not sent_anew):
            seen = self._read(row, lambda vendor, call: vendor.retrieve(call, receipt_id))
        else:
            with self._store.transaction() as tx:
                began_at = intents.now(tx)
            seen = self._look_up(row, began_at)
        if isinstance(seen, Unreadable) and not seen.never:
            return
        with self._store.transaction() as tx:
            current = intents.lock(tx, row.id)
            if current is None:
                return
            if current.version != row.version:
                # Written since: what was read may be older than what is known by now.
                doubt.schedule_verification(tx, [row.id], 0.0)
                return
            if isinstance(seen, Found):
                objects = sorted(
                    {r.receipt_id for r in seen.readings if r.standing is Standing.LANDED}
                )
                others = [o for o in objects if o != current.receipt_id]
                raised = others and contradict(
                    tx, current, "duplicate", others, "verifying look", found=seen.readings
                )
                for reading in seen.readings:
                    if reading.receipt_id == current.receipt_id and not raised:
                        apply_reading(tx, current, reading, actor=ACTOR, source="lookup")
            doubt.verified(tx, row)

    def _pause(self, row: Intent, reason: str) -> None:
        with self._store.transaction() as tx:
            switches.pause(tx, row.vendor, row.account, kind="pause", reason=reason, by=ACTOR)

"""Look-ups: rows in doubt are read back at the vendor, decided, and moved.

The reads run in threads of their own, a row each, with no transaction open; a vendor that hangs
holds its threads and nobody else.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Any, Self, assert_never

from outbox.contract import Cutoff, TooLate
from outbox.errors import Unreachable
from outbox.outcomes import Found, LookUp, Standing, Unreadable
from outbox.states import Event
from outbox.store import doubt, intents, switches
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import Change, Moved, apply, contradict
from resolvers.decide import Contradict, Decision, Evidence, Resend, Settle, Wait, decide
from resolvers.directory import Directory
from resolvers.evidence import apply_reading

_log = logging.getLogger(__name__)
ACTOR = "resolver"
# In call deadlines. A look-up may read many pages, and ends there however slowly they drip; two
# resolvers must not look twice, so a row is held for longer than that.
_LIMIT = 4.0
_HOLD = 6.0


class TimeLimit:
    """The ``Cutoff`` of one look-up: when its time is up, its socket is shut from another thread,
    and no further page is asked for."""

    def __init__(self, limit_s: float) -> None:
        self._lock = threading.Lock()
        self._socket: Any = None
        self._over = False
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def attach(self, sock: Any) -> None:
        """Called by the transport before each request."""
        with self._lock:
            if self._over:
                raise TooLate
            self._socket = sock

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None

    def _end(self) -> None:
        with self._lock:
            self._over, sock = True, self._socket
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class Looker:
    """The look-up threads of one process."""

    def __init__(self, store: Store, directory: Directory, *, threads: int = 16) -> None:
        self._store = store
        self._directory = directory
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="outbox-look")
        self._free = threading.Semaphore(threads)
        self._threads = threads
        self._prefixes = directory.gate_prefixes()
        deadline_s = directory.policy.call_deadline_s
        self._limit_s, self._hold_s = _LIMIT * deadline_s, _HOLD * deadline_s

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

    def close(self) -> None:
        """Lets running reads end and takes no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, budget_s: float) -> list[Future[None]]:
        give_up = time.monotonic() + budget_s
        begun: list[Future[None]] = []
        for claim, work in (
            (doubt.claim_doubts, self._resolve),
            (doubt.claim_verifications, self._verify),
        ):
            while time.monotonic() < give_up:
                places = self._places(give_up)
                if not places:
                    break
                rows: list[Intent] = []
                try:
                    with self._store.transaction() as tx:
                        held = claim(tx, limit=places, hold_s=self._hold_s, accounts=self._prefixes)
                    rows = held  # only now: a claim that was not committed holds no place
                finally:
                    for _ in range(places - len(rows)):
                        self._free.release()
                begun += [self._pool.submit(self._run, work, row) for row in rows]
                if not rows:
                    break
        return begun

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
        look = self._look_up(row) if contract.can_look_up and not never_left else None
        if isinstance(look, Unreadable) and look.pause:
            self._pause(row, look.reason)
        with self._store.transaction() as tx:
            current = intents.lock(tx, row.id)
            if current is None or current.version != row.version:
                raise Moved(str(row.id))
            evidence = Evidence(
                look=look,
                began_at=began_at,
                paused=switches.is_closed(tx, row.gate) or switches.clock_is_doubted(tx),
                person_is_looking=doubt.person_is_looking(tx, row.id),
                escalated=doubt.is_escalated(tx, row.id),
            )
            decision = decide(current, evidence, contract, self._directory.policy, intents.now(tx))
            self._act(tx, current, began_at, decision)

    def _act(self, tx: Transaction, row: Intent, began_at: datetime, decision: Decision) -> None:
        match decision:
            case Settle(reading):
                apply_reading(tx, row, reading, actor=ACTOR, source="lookup")
            case Contradict(reason, objects):
                contradict(tx, row, reason, list(objects), "look-up")
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

    def _look_up(self, row: Intent) -> LookUp:
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return Unreadable("no credentials for this account here")
        vendor, account, _ = reached
        if row.mode is not None and row.mode != account.mode:
            return Unreadable("the account's mode is not the one the intent was sent in")
        first = row.first_sent_at or row.created_at
        since = int(first.timestamp() - self._directory.policy.clock_skew_s)
        return self._read(lambda cutoff: vendor.look_up(row.call(account, cutoff), since))

    def _read(self, read: Callable[[Cutoff], LookUp]) -> LookUp:
        try:
            with TimeLimit(self._limit_s) as limit:
                return read(limit)
        except Exception as error:
            return Unreadable(f"the adapter failed: {type(error).__name__}")

    def _verify(self, row: Intent) -> None:
        """A landed row is read again: for duplicates where no key is honoured, else for what has
        become of its object."""
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None or row.receipt_id is None:
            return
        vendor, account, contract = reached
        receipt_id = row.receipt_id
        seen: LookUp
        if contract.honours_keys or not contract.can_look_up:
            seen = self._read(lambda cutoff: vendor.retrieve(row.call(account, cutoff), receipt_id))
        else:
            seen = self._look_up(row)
        if isinstance(seen, Unreadable):
            return
        with self._store.transaction() as tx:
            current = intents.lock(tx, row.id)
            if current is None:
                return
            if isinstance(seen, Found):
                objects = sorted(
                    {r.receipt_id for r in seen.readings if r.standing is Standing.LANDED}
                )
                others = [o for o in objects if o != current.receipt_id]
                if others:
                    contradict(tx, current, "duplicate", others, "verifying look")
                for reading in seen.readings:
                    if reading.receipt_id == current.receipt_id and not others:
                        apply_reading(tx, current, reading, actor=ACTOR, source="lookup")
            doubt.verified(tx, row.id)

    def _pause(self, row: Intent, reason: str) -> None:
        with self._store.transaction() as tx:
            switches.pause(tx, row.vendor, row.account, kind="pause", reason=reason, by=ACTOR)

"""Look-ups: rows in doubt are read back at the vendor, decided, and moved.

The reads run in threads of their own, with no transaction open; a vendor that hangs holds its share
of them and nobody else's. Rows that one list shows are looked up by one reading of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from outbox.errors import Unreachable
from outbox.intent import gate_prefix
from outbox.store import doubt, neighbours, rates
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import Moved
from outbox.store.neighbours import Held, Kin
from outbox.store.rates import Meter
from resolvers import pacing
from resolvers.directory import Directory
from resolvers.places import Places
from resolvers.together import Looking, Unit
from resolvers.verifying import verify
from resolvers.windows import FEW_ROWS, MOST_ROWS, created_near, windows
from vendors.watchdog import Watchdog

_log = logging.getLogger(__name__)
# So many accounts at once may have as many rows in hand as memory allows for one.
_MOST_FULL = 2

Claim = Callable[..., list[Intent]]


@dataclass(frozen=True, slots=True)
class _Due:
    """One kind of look that may be due: how its rows are claimed, of which accounts (gate prefixes
    by vendor), and what one thread does with some of them."""

    claim: Claim
    accounts: Mapping[str, list[str]]
    units: Callable[[list[Intent]], list[Unit]]
    work: Callable[[Unit], None]


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
        self._meters = directory.meters()
        reachable = [place for place in sorted(directory.accounts) if directory.reach(*place)]
        self._vendor_of = {gate_prefix(*place): place[0] for place in reachable}
        self._places = Places(threads, self._vendor_of.values())
        self._hold_s = directory.policy.look_hold_s()
        self._watchdog = watchdog or Watchdog()
        self._looking = Looking(store, directory, self._watchdog)
        # Accounts that have more due than is in hand: one reading follows the other.
        self._full: set[str] = set()
        self._running: set[Future[None]] = set()

    def tick(self, budget_s: float) -> int:
        """Starts what is due until nothing is, or the budget is spent. Returns at how many rows it
        began to look; the looks end in their own time."""
        count, _ = self._start(budget_s)
        return count

    def once(self) -> int:
        """Everything that is due now, to its end."""
        count, begun = self._start(float("inf"))
        wait(begun)
        for future in begun:
            future.result()
        return count

    def close(self, limit_s: float | None = None) -> None:
        """Takes no more and lets running reads end. What is left after ``limit_s`` is cut: its
        row is looked at again when its hold has run out."""
        self._looking.stop()
        self._pool.shutdown(wait=False)
        wait(list(self._running), limit_s)
        self._watchdog.close()

    # -- what is due -------------------------------------------------------------------------

    def _start(self, budget_s: float) -> tuple[int, list[Future[None]]]:
        """In turn, a claim of each kind, so that none waits for another; where all that is left is
        of vendors with no place free, until one is."""
        give_up = time.monotonic() + budget_s
        due, count, begun = self._all_due(), 0, []
        while due and time.monotonic() < give_up:
            room = self._places.room(())
            left: list[_Due] = []
            claimed = 0
            for one in due:
                units, may_be_more = self._claim(one)
                submitted = [self._submit(one.work, unit) for unit in units]
                begun += [future for future in submitted if future is not None]
                claimed += sum(len(unit.held) for unit in units)
                left += [one] if may_be_more else []
                if None in submitted:
                    return count + claimed, begun
            due, count = left, count + claimed
            if not claimed and due:
                self._places.wait(room.ended, give_up - time.monotonic())
        return count, begun

    def _all_due(self) -> list[_Due]:
        free: dict[str, list[str]] = defaultdict(list)
        for prefix, vendor in self._vendor_of.items():
            if prefix not in self._meters:
                free[vendor].append(prefix)
        found = []
        for claim, ask, units, work in (
            (doubt.claim_doubts, doubt.doubtful, self._doubts, self._look),
            (doubt.claim_verifications, doubt.unverified, _each, self._verify),
        ):
            whole = partial(claim, hold_s=self._hold_s)
            found += [_Due(whole, free, units, work)] if free else []
            for meter in self._metered_due(ask):
                accounts = {self._vendor_of[meter.prefix]: [meter.prefix]}
                found.append(_Due(_paced(whole, meter, units), accounts, units, work))
        return found

    def _metered_due(self, ask: Callable[[Transaction, list[str]], list[str]]) -> list[Meter]:
        """The rates of the accounts that have one and something to look at."""
        if not self._meters:
            return []
        with self._store.transaction() as tx:
            due = ask(tx, list(self._meters))
            rates.open_buckets(tx, [self._meters[prefix] for prefix in due])
        return [self._meters[prefix] for prefix in due]

    def _claim(self, due: _Due) -> tuple[list[Unit], bool]:
        """What was claimed, and whether there may be more of it."""
        room = self._places.room(tuple(due.accounts))
        known = [prefix for vendor in room.vendors for prefix in due.accounts[vendor]]
        accounts = [prefix for prefix in known if prefix not in self._full]
        is_all = room.is_all and accounts == known
        if not room.places or not accounts:
            return [], not is_all
        with self._store.transaction() as tx:
            rows = due.claim(tx, limit=room.places, accounts=accounts)
        return [self._grown(unit) for unit in due.units(rows)], bool(rows) or not is_all

    # -- units -------------------------------------------------------------------------------

    def _doubts(self, rows: list[Intent]) -> list[Unit]:
        """Rows that one reading can look up are one unit; each of the others is one by itself."""
        kin: dict[Kin, list[Intent]] = defaultdict(list)
        units = []
        for row in rows:
            if self._is_shared(row):
                kin[Kin.of(row)].append(row)
            else:
                units += _each([row])
        for found, members in kin.items():
            by_id = {row.id: row for row in members}
            contract = self._directory.contract(found.vendor)
            assert contract is not None, "a row that can be reached"
            span_of = partial(self._looking.span_of, contract)
            for window in windows(map(Held.of, members), span_of):
                heads = tuple(by_id[row.id] for row in window.rows)
                units.append(Unit(heads, window.rows, found, heads[0].resolver_token))
        return units

    def _is_shared(self, row: Intent) -> bool:
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None or row.doubt == 0 or row.veto is not None or row.last_lease_end is None:
            return False
        vendor, account, contract = reached
        is_list = contract.can_look_up and vendor.shares_list(row.operation)
        return is_list and row.is_of(account)

    def _grown(self, unit: Unit) -> Unit:
        """With the rows beside it that are due too. Where there are more than one reading takes,
        no other is begun at the account before it ends."""
        if not self._is_shared(unit.heads[0]):
            return unit
        is_full = False
        most = MOST_ROWS if len(self._full) < _MOST_FULL else FEW_ROWS
        held = list(unit.held)
        created = created_near(held)
        with suppress(Unreachable):  # what is held already is looked at all the same
            while len(held) < most:
                limit = min(neighbours.PIECE, most - len(held))
                with self._store.transaction() as tx:
                    more = neighbours.claim(
                        tx, unit.kin, created=created, token=unit.token, hold_s=self._hold_s,
                        limit=limit,
                    )  # fmt: skip
                held += more
                if len(more) < limit:
                    break
            else:
                is_full = True
                self._full.add(gate_prefix(unit.kin.vendor, unit.kin.account))
        return replace(unit, held=tuple(held), is_full=is_full)

    # -- threads -----------------------------------------------------------------------------

    def _submit(self, work: Callable[[Unit], None], unit: Unit) -> Future[None] | None:
        """None where the host refuses a thread: its hold runs out, and it is looked at again."""
        self._places.take(unit.kin.vendor)
        turn = threading.Lock()
        try:
            future = self._pool.submit(self._run, work, unit, turn)
        except RuntimeError:
            _log.error("no thread for the look at %s", _named(unit))
            # It is queued all the same, and would run once another thread comes.
            if turn.acquire(blocking=False):
                self._let_go(unit)
            return None
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _let_go(self, unit: Unit) -> None:
        if unit.is_full:
            self._full.discard(gate_prefix(unit.kin.vendor, unit.kin.account))
        self._places.give_back(unit.kin.vendor)

    def _run(self, work: Callable[[Unit], None], unit: Unit, turn: threading.Lock) -> None:
        if not turn.acquire(blocking=False):
            return  # it was given up
        try:
            work(unit)
        except (Moved, Unreachable):
            # Somebody else wrote the row, or the database is away: the row's hold runs out and it
            # is looked at again.
            return
        except Exception as error:
            # By its class: the message may quote the row. Its hold runs out too.
            _log.error("the look at %s failed: %s", _named(unit), type(error).__name__)
            raise
        finally:
            self._let_go(unit)

    def _look(self, unit: Unit) -> None:
        if len(unit.held) == 1:
            self._looking.alone(unit.heads[0])
        else:
            self._looking.together(unit)

    def _verify(self, unit: Unit) -> None:
        for row in unit.heads:
            verify(self._store, self._directory, self._looking.reads, row)


def _each(rows: Iterable[Intent]) -> list[Unit]:
    return [Unit((row,), (Held.of(row),), Kin.of(row), row.resolver_token) for row in rows]


def _paced(claim: Claim, meter: Meter, units: Callable[[list[Intent]], list[Unit]]) -> Claim:
    """The claim of an account that has a rate. Its first look of a tick goes whatever sends
    leave."""
    least = iter((1,))

    def paced(tx: Transaction, *, limit: int, accounts: list[str]) -> list[Intent]:
        return pacing.claim(
            tx,
            meter,
            partial(claim, tx, accounts=accounts),
            limit=limit,
            at_least=next(least, 0),
            requests=lambda rows: len(units(rows)),
        )

    return paced


def _named(unit: Unit) -> str:
    if len(unit.held) == 1:
        return f"intent {unit.held[0].id}"
    return f"{len(unit.held)} intents of {unit.kin.vendor} {unit.kin.operation}"

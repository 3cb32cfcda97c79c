"""One look, at a row alone or at many by one reading of their list: read, decide, write."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from outbox.contract import VendorContract
from outbox.errors import Unreachable
from outbox.outcomes import LookUp, Unreadable
from outbox.store import intents, neighbours, switches
from outbox.store.connection import Store
from outbox.store.intents import Intent
from outbox.store.neighbours import Held, Kin
from resolvers.directory import Directory
from resolvers.evidence import span_of
from resolvers.reading import Reads
from resolvers.resolving import Resolving
from resolvers.windows import Span, Window, windows
from vendors.watchdog import Watchdog

# So many rows are decided in one transaction: it is short, and others want their rows too.
_PIECE = 100


@dataclass(frozen=True, slots=True)
class Unit:
    """What one thread looks at: rows of one kin, held under ``token``. ``heads`` are those that
    were read as a whole; ``is_full``: its account may have more that are due."""

    heads: tuple[Intent, ...]
    held: tuple[Held, ...]
    kin: Kin
    token: UUID | None
    is_full: bool = False


class Looking:
    """The looks of one process."""

    def __init__(self, store: Store, directory: Directory, watchdog: Watchdog) -> None:
        self._store = store
        self._directory = directory
        self.reads = Reads(store, directory, watchdog)
        self._resolving = Resolving(store, directory)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """What is not decided yet is left to the end of its hold: many rows take longer than a
        process may that was told to end."""
        self._stopping.set()

    def span_of(self, contract: VendorContract, row: Held) -> Span:
        """The stretch of the vendor's time that a row's look reads."""
        since, until = span_of(contract, row, self._directory.policy)
        assert until is not None, "a row whose last send nothing bounds"
        return since, until

    def alone(self, row: Intent, *, is_paid: bool = True) -> None:
        """One row by its own look-up, where it needs one."""
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return
        _, _, contract = reached
        with self._store.transaction() as tx:
            began_at = intents.now(tx)
        seen: dict[UUID, LookUp] = {}
        if contract.can_look_up and row.doubt > 0:
            seen[row.id] = self.reads.look(row, began_at, is_paid=is_paid)
        self._pause(Kin.of(row), seen)
        self._resolving.resolve([row], seen, contract, began_at)

    def together(self, unit: Unit) -> None:
        """A unit's rows, window by window, the oldest first. What keeps one piece of them from
        being written keeps no other. Raises what kept the last."""
        reached = self._directory.reach(unit.kin.vendor, unit.kin.account)
        if reached is None:
            return
        _, _, contract = reached
        hold = _Hold(self._store, unit, self._directory.policy.look_hold_s())
        failed: Exception | None = None
        stretches = windows(unit.held, lambda row: self.span_of(contract, row))
        for number, window in enumerate(stretches):
            if self._stopping.is_set():
                return
            try:
                self._window(unit, window, contract, hold, is_paid=number == 0)
            except Unreachable:
                raise
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _window(
        self, unit: Unit, window: Window, contract: VendorContract, hold: _Hold, *, is_paid: bool
    ) -> None:
        if len(window.rows) == 1:
            with self._store.transaction() as tx:
                rows = neighbours.read(tx, window.rows)
            for row in rows:
                self.alone(row, is_paid=is_paid)
            return
        with self._store.transaction() as tx:
            began_at = intents.now(tx)
        listing = self.reads.listing(unit.kin, window, is_paid=is_paid, before=hold.on)
        if isinstance(listing, Unreadable):
            self._pause(unit.kin, {window.rows[0].id: listing})
        failed: Exception | None = None
        for piece in neighbours.pieces(window.rows, _PIECE):
            if self._stopping.is_set():
                break
            hold.on()
            began = time.monotonic()
            with self._store.transaction() as tx:
                rows = neighbours.read(tx, piece)
            seen = {row.id: self.reads.shown(row, listing, began_at) for row in rows}
            if not isinstance(listing, Unreadable):
                self._pause(unit.kin, seen)
            try:
                self._resolving.resolve(rows, seen, contract, began_at)
            except Unreachable:
                raise
            except Exception as error:
                failed = error
            hold.ended(piece)
            self._give_way(time.monotonic() - began)
        if failed is not None:
            raise failed

    def _give_way(self, took_s: float) -> None:
        """After each piece, where something waits to be sent: as long as the piece took. Sends want
        the database and the processor too, and what is in doubt has waited for its vendor."""
        with self._store.transaction() as tx:
            is_due = switches.anything_due(tx)
        if is_due:
            self._stopping.wait(took_s)

    def _pause(self, kin: Kin, seen: Mapping[UUID, LookUp]) -> None:
        """Once, where reads were refused: the account waits for a person."""
        for look in seen.values():
            if isinstance(look, Unreadable) and look.pause:
                self._resolving.pause(kin.vendor, kin.account, look.reason)
                return


class _Hold:
    """The hold of a unit's rows, for as long as they are worked at. It is as short as that of one
    row: those of a process that dies are looked at by another soon."""

    def __init__(self, store: Store, unit: Unit, hold_s: float) -> None:
        self._store = store
        self._token = unit.token
        self._hold_s = hold_s
        self._left = {row.id: None for row in unit.held}
        self._held_at = time.monotonic()

    def on(self) -> None:
        """Before each step: the hold begins anew where a third of it is over."""
        if time.monotonic() - self._held_at < self._hold_s / 3:
            return
        self._held_at = time.monotonic()
        # Where the database is away, another may look at them too: they are compared by version.
        with suppress(Unreachable):
            for ids in neighbours.pieces(list(self._left), neighbours.PIECE):
                with self._store.transaction() as tx:
                    neighbours.hold_on(tx, ids, self._token, self._hold_s)

    def ended(self, rows: Sequence[Held]) -> None:
        """These are decided."""
        for row in rows:
            self._left.pop(row.id, None)

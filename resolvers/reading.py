"""Reads at a vendor, each with a deadline and, where its account has a rate, at that rate. No
transaction is open meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from outbox.contract import Account, Call, Listing, Sought, Vendor
from outbox.outcomes import LookUp, Unreadable
from outbox.store.connection import Store
from outbox.store.intents import Intent
from outbox.store.neighbours import Kin
from resolvers import pacing
from resolvers.directory import Directory
from resolvers.evidence import judged, look_up
from resolvers.windows import Window
from vendors.watchdog import Cut, Watchdog

T = TypeVar("T")


class Reads:
    """The reads of one process."""

    def __init__(self, store: Store, directory: Directory, watchdog: Watchdog) -> None:
        self._store = store
        self._directory = directory
        self._policy = directory.policy
        self._watchdog = watchdog

    def look(self, row: Intent, began_at: datetime, *, is_paid: bool = True) -> LookUp:
        """The look-up of one row. ``began_at`` is the database's time before it, ``is_paid`` says
        that its claim took the token of its first request."""

        def read(vendor: Vendor, call: Call) -> LookUp:
            return look_up(vendor, row, call, self._policy, began_at)

        return self.one(row, read, is_paid=is_paid)

    def one(
        self, row: Intent, read: Callable[[Vendor, Call], LookUp], *, is_paid: bool = True
    ) -> LookUp:
        """What one row's vendor says to a read of its call."""
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return Unreadable("no credentials for this account here")
        vendor, account, _ = reached
        if not row.is_of(account):
            return Unreadable("the account is not the one the intent was sent for")
        return self._within(
            (row.vendor, row.account),
            1,
            lambda cutoff: read(vendor, row.call_to_read(account, cutoff)),
            is_paid=is_paid,
        )

    def listing(
        self, kin: Kin, window: Window, *, is_paid: bool, before: Callable[[], None]
    ) -> Listing | Unreadable:
        """One reading of the list of a window's rows; ``before`` is done before each request."""
        reached = self._directory.reach(kin.vendor, kin.account)
        if reached is None:
            return Unreadable("no credentials for this account here")
        vendor, account, _ = reached
        sought = _sought(kin, window, account)
        return self._within(
            (kin.vendor, kin.account),
            window.deadlines,
            lambda cutoff: vendor.read_list(replace(sought, cutoff=cutoff)),
            is_paid=is_paid,
            before=before,
        )

    def shown(self, row: Intent, listing: Listing | Unreadable, began_at: datetime) -> LookUp:
        """What a reading that began at ``began_at`` says of one row."""
        if isinstance(listing, Unreadable):
            return listing

        def read(vendor: Vendor, call: Call) -> LookUp:
            seen = listing.look_up(call)
            return judged(vendor.contract, row, seen, self._policy, began_at)

        return self.one(row, read, is_paid=False)

    def _within(
        self,
        place: tuple[str, str],
        deadlines: int,
        read: Callable[[Cut], T],
        *,
        is_paid: bool,
        before: Callable[[], None] | None = None,
    ) -> T | Unreadable:
        limit_s = deadlines * self._policy.look_deadline_s
        meter = self._directory.meter(*place)
        cut = Cut(before)
        if meter is not None:
            # Many looks' worth of pages may wait for their tokens for longer: what is owed for
            # them would keep sends waiting.
            patience_s = limit_s / (4 if deadlines == 1 else 2)
            cut = pacing.Paced(
                self._store, meter, patience_s=patience_s, is_paid=is_paid, before=before
            )
        try:
            with self._watchdog.limit(limit_s, cut) as cutoff:
                seen = read(cutoff)
        except Exception as error:
            return Unreadable(f"the adapter failed: {type(error).__name__}")
        if isinstance(seen, Unreadable) and seen.retry_after_s:
            with self._store.transaction() as tx:
                pacing.leave_alone(tx, self._directory, place, seen.retry_after_s)
        return seen


def _sought(kin: Kin, window: Window, account: Account) -> Sought:
    if not account.vendor_account:
        # As in a row's own call: it must be the one that the rows were first claimed for.
        account = replace(account, vendor_account=kin.vendor_account or "")
    owners: Mapping[str, UUID] = {str(row.id): row.id for row in window.rows}
    return Sought(
        operation=kin.operation,
        api_version=kin.api_version,
        account=account,
        since_epoch_s=window.since_epoch_s,
        until_epoch_s=window.until_epoch_s,
        owners=owners,
        keys={row.key.hex(): row.id for row in window.rows},
        looks=window.looks,
    )

"""One claimed intent becomes one call: if its claim's time still allows it, and for the very
account that it was claimed for."""

from __future__ import annotations

from collections.abc import Callable

from outbox.codec import Sealed
from outbox.outcomes import Lost, NotSent, Outcome
from resolvers.directory import Directory
from vendors.watchdog import Watchdog
from workers.breaker import HANDED_BACK, TOO_LATE
from workers.flight import Flight, tells_more


class Caller:
    """Makes the calls, each in the thread that it is given. ``since_boot_s`` is the clock by which
    a call may no longer begin."""

    def __init__(
        self,
        directory: Directory,
        watchdog: Watchdog,
        *,
        stopping: Callable[[], bool],
        since_boot_s: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._watchdog = watchdog
        self._stopping = stopping
        self._since_boot_s = since_boot_s

    def fly(self, flight: Flight) -> None:
        """Never raises: whatever happened is the flight's outcome."""
        if self._stopping() or not flight.may_start():
            flight.land(NotSent(HANDED_BACK if self._stopping() else TOO_LATE))
            return
        number = self._watchdog.watch(flight, flight.deadline_s)
        began = self._since_boot_s()
        try:
            outcome = self._perform(flight)
        except BaseException as error:
            outcome = Lost(f"the adapter raised {type(error).__name__}")
        flight.took_s = self._since_boot_s() - began
        in_time = self._watchdog.forget(number)
        if in_time or tells_more(outcome):
            flight.land(outcome)
        else:
            flight.over = True

    def _perform(self, flight: Flight) -> Outcome:
        row = flight.intent
        reached = self._directory.reach(row.vendor, row.account)
        if reached is None:
            return NotSent("no credentials for this account here", local=True)
        vendor, account, _ = reached
        if row.mode != account.mode or (row.vendor_account or "") != account.vendor_account:
            return NotSent("the account is not the one the intent was claimed for", local=True)
        try:
            call = row.call(account, flight)
        except Sealed as sealed:
            return NotSent(str(sealed), local=True)
        except Exception as error:
            reason = f"the request cannot be read: {type(error).__name__}"
            return NotSent(reason, local=True)
        return vendor.perform(call)

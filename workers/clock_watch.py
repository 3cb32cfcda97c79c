"""The heartbeat's look at the clocks: the database's against this host's since the last look. A
step, or another timeline of the database, suspends what is only safe while its clock is right."""

from __future__ import annotations

from collections.abc import Callable

from outbox.store import switches
from outbox.store.connection import Store
from workers.monotonic import since_boot_s

# An answer that took longer says too little of when it was given.
_SLOW_S = 1.0


class ClockWatch:
    """One process's. ``step_s`` is how far the clocks may part between two looks."""

    def __init__(
        self, store: Store, *, step_s: float, since_boot_s: Callable[[], float] = since_boot_s
    ) -> None:
        self._store = store
        self._step_s = step_s
        self._since_boot_s = since_boot_s
        self._last: tuple[float, float] | None = None

    def look(self) -> None:
        """Compares, and closes the clock's switch where they parted. Raises ``Unreachable``."""
        with self._store.transaction() as tx:
            before_s = self._since_boot_s()
            at, timeline = switches.database_time(tx)
            after_s = self._since_boot_s()
            if switches.timeline_changed(tx, timeline):
                switches.doubt_clock(tx, f"the database is on a new timeline ({timeline})")
            if after_s - before_s > _SLOW_S:
                return  # too slow to tell a step by, now or next time
            last, self._last = self._last, (at, before_s)
            if last is None:
                return
            step_s = (at - last[0]) - (before_s - last[1])
            if abs(step_s) > self._step_s:
                switches.doubt_clock(tx, f"the database's clock stepped by {step_s:.1f} s")

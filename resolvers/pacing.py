"""Look-ups at an account that has a rate: they take what sends leave of it, request for request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from outbox.contract import TooLate
from outbox.intent import gate_prefix
from outbox.store import rates
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.rates import Meter
from resolvers.directory import Directory
from vendors.watchdog import Cut


def claim(
    tx: Transaction,
    meter: Meter,
    rows: Callable[..., list[Intent]],
    *,
    limit: int,
    at_least: int,
    requests: Callable[[list[Intent]], int] = len,
) -> list[Intent]:
    """As many rows of the account as there are tokens for. ``requests`` tells how many requests
    they begin with, of which each takes one: rows that are looked up together begin with one."""
    places = min(rates.spare_for_looks(tx, meter, at_least=at_least), limit)
    if not places:
        return []
    found = rows(limit=places)
    if found:
        rates.spend(tx, meter, requests(found))
    return found


def leave_alone(
    tx: Transaction, directory: Directory, place: tuple[str, str], seconds: float
) -> None:
    """Nothing is sent for (vendor, account) for so long: its vendor has asked for that."""
    meter = directory.meter(*place)
    if meter is None:
        rates.hold(tx, gate_prefix(*place), seconds)
    else:
        rates.push_back(tx, meter, seconds)


class Paced(Cut):
    """The cut-off of one look-up. Its claim took the token of its first request (``is_paid``); each
    further one waits for its own, or for the next of the share that look-ups have. After
    ``patience_s`` of waiting it has all that the rate gives; where one request's time is longer
    than that, the rest is owed: a look that never ends would leave its row in doubt for ever. What
    the vendor asked to be left alone for is waited for by the next look."""

    def __init__(
        self,
        store: Store,
        meter: Meter,
        *,
        patience_s: float,
        is_paid: bool = True,
        before: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(before)
        self._store = store
        self._meter = meter
        self._is_owed = 1 / meter.rate_per_s > patience_s
        self._patience_s = patience_s
        self._is_paid = is_paid
        self._over = threading.Event()

    def attach(self, sock: Any) -> None:
        """Called by the transport just before the first byte of each request."""
        if not self._is_paid:
            self._pay()
        self._is_paid = False
        super().attach(sock)

    def cut(self) -> None:
        """Ends the wait for a token too."""
        self._over.set()
        super().cut()

    def _pay(self) -> None:
        while True:
            wait_s = self._ask()
            if not wait_s:
                return
            began = time.monotonic()
            if self._over.wait(wait_s):
                raise TooLate
            self._patience_s -= time.monotonic() - began

    def _ask(self) -> float:
        try:
            with self._store.transaction() as tx:
                wait_s = rates.take_one(tx, self._meter, hurry=self._patience_s <= 0)
                if wait_s and self._is_owed:
                    rates.spend(tx, self._meter, 1)
                    return 0.0
                return wait_s
        except rates.Held as held:
            raise TooLate from held

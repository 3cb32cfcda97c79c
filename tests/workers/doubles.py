"""The real adapter with a stall before or after its request: what a busy host does by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from outbox.contract import Account, Call, Listing, Sought, Vendor, VendorContract
from outbox.outcomes import LookUp, Outcome, Reading, Unreadable, WebhookFact


class Stalled:
    """Hands everything on. ``before`` runs before a write, ``after`` may hold or change what came
    back."""

    def __init__(
        self,
        vendor: Vendor,
        *,
        before: Callable[[Call], None] = lambda call: None,
        after: Callable[[Call, Outcome], Outcome] = lambda call, outcome: outcome,
    ) -> None:
        self._vendor = vendor
        self._before = before
        self._after = after

    @property
    def contract(self) -> VendorContract:
        return self._vendor.contract

    def perform(self, call: Call) -> Outcome:
        self._before(call)
        return self._after(call, self._vendor.perform(call))

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        return self._vendor.look_up(call, since_epoch_s, until_epoch_s)

    def shares_list(self, operation: str) -> bool:
        return self._vendor.shares_list(operation)

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        return self._vendor.read_list(sought)

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        return self._vendor.retrieve(call, receipt_id)

    def read_webhook(
        self, account: Account, headers: Mapping[str, str], body: bytes, now_epoch_s: int
    ) -> list[WebhookFact]:
        return self._vendor.read_webhook(account, headers, body, now_epoch_s)

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:
        return self._vendor.reread_webhook(account, body)

    def classify(
        self, operation: str, document: Mapping[str, Any], params: Mapping[str, Any] | None
    ) -> Reading | None:
        return self._vendor.classify(operation, document, params)

    def whoami(self, account: Account) -> str | Unreadable:
        return self._vendor.whoami(account)

    def close(self) -> None:
        self._vendor.close()


class FirstHeld:
    """Holds the outcome of the first write until it is let go; ``turn`` may change it then."""

    def __init__(self, turn: Callable[[Outcome], Outcome] = lambda outcome: outcome) -> None:
        self.came = threading.Event()
        self.go = threading.Event()
        self._turn = turn

    def wrap(self, vendor: Vendor) -> Vendor:
        return Stalled(vendor, after=self._hold)

    def _hold(self, _: Call, outcome: Outcome) -> Outcome:
        if self.came.is_set():
            return outcome
        self.came.set()
        assert self.go.wait(60), "nobody let it go"
        return self._turn(outcome)

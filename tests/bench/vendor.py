"""A vendor that costs nothing: its adapter answers at once, or after so many milliseconds, and
writes down each call. What a run takes beyond that is the product's own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from outbox import WriteTool
from outbox.contract import (
    Account,
    Call,
    Listing,
    Operation,
    Sought,
    TooLate,
    VendorContract,
)
from outbox.contracts import CONTRACTS, register
from outbox.outcomes import (
    Absent,
    Business,
    Found,
    LookUp,
    NotSent,
    Outcome,
    Reading,
    Receipt,
    Standing,
    Unreadable,
    WebhookFact,
    Wire,
)
from tests.bench.effects import Ledger
from vendors import registry

NAME = "bench"
OWNER = "acct_bench"
LEDGER = "BENCH_LEDGER"
LATENCY_MS = "BENCH_LATENCY_MS"
CONTRACT = VendorContract(
    vendor=NAME,
    api_version="1",
    operations={
        "writes.create": Operation(
            "writes.create", "POST", "/writes", marks=(("metadata",),), passes_all=True
        )
    },
    honours_keys=True,
    window_s=86_400.0,
    margin_s=7_200.0,
    in_flight_bound_s=120.0,
    read_lag_s=0.0,
    can_look_up=True,
    has_webhooks=False,
    adapter=NAME,
    tells_owner=False,
    body="json",
)


class _Socket:
    """Stands for the connection that a real adapter shows to its cut-off."""

    def shutdown(self, how: int) -> None:
        """There is nothing to cut: the call ends by itself."""


_SOCKET = _Socket()


class _Arrived:
    """Whose writes had arrived when the record was read."""

    def __init__(self, owners: frozenset[bytes]) -> None:
        self._owners = owners

    def look_up(self, call: Call) -> LookUp:
        """The one object of an intent, if it is there."""
        known = call.intent_id.bytes in self._owners
        return Found((_reading(call),)) if known else Absent()


class ZeroCostVendor:
    """Keeps to the adapter's protocol: one effect a call, no retry, and its look-up reads all that
    ever arrived."""

    def __init__(self, contract: VendorContract, ledger: Ledger, latency_s: float) -> None:
        self._contract = contract
        self._ledger = ledger
        self._latency_s = latency_s

    @property
    def contract(self) -> VendorContract:
        """Under the policy of the process."""
        return self._contract

    def perform(self, call: Call) -> Outcome:
        """Writes the call down, then answers after the latency."""
        try:
            call.cutoff.attach(_SOCKET)
        except TooLate:
            return NotSent("too_late", local=True)
        self._ledger.add(call.key, call.intent_id.bytes, call.params)
        if self._latency_s:
            time.sleep(self._latency_s)
        return Receipt(_reading(call), Wire(http_status=200))

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """Everything that arrived under the intent's id."""
        return _Arrived(frozenset(effect.owner for effect in self._ledger)).look_up(call)

    def shares_list(self, operation: str) -> bool:
        """Of its one operation."""
        return True

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        """Everything that arrived, of which each intent has its own."""
        return _Arrived(frozenset(effect.owner for effect in self._ledger))

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """As ``look_up``: an intent has one object."""
        return self.look_up(call, 0)

    def read_webhook(
        self, account: Account, headers: Mapping[str, str], body: bytes, now_epoch_s: int
    ) -> list[WebhookFact]:
        """There are none."""
        return []

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:
        """There are none."""
        return []

    def classify(
        self, operation: str, document: Mapping[str, Any], params: Mapping[str, Any] | None
    ) -> Reading | None:
        """No document of this vendor's is ever kept."""
        return None

    def whoami(self, account: Account) -> str | Unreadable:
        """The one account."""
        return OWNER

    def close(self) -> None:
        """Closes the record."""
        self._ledger.close()


def _reading(call: Call) -> Reading:
    return Reading(
        receipt_id=f"wr_{call.intent_id.hex}",
        standing=Standing.LANDED,
        business=Business.PAID,
        word="done",
        owner=str(call.intent_id),
    )


def install() -> None:
    """Makes the vendor known to this process; where it writes and how long it takes, the
    environment says (BENCH_LEDGER, BENCH_LATENCY_MS)."""
    if NAME in CONTRACTS:
        return
    register(CONTRACT)
    adapters = dict(registry.ADAPTERS)

    def build(contract: VendorContract, connect_s: float, read_s: float) -> ZeroCostVendor:
        ledger = Ledger(os.environ.get(LEDGER, os.devnull))
        return ZeroCostVendor(contract, ledger, float(os.environ.get(LATENCY_MS, "0")) / 1000)

    registry.ADAPTERS = {**adapters, NAME: build}


def write_tool(name: str = "write", lane: tuple[str, ...] = ()) -> WriteTool:
    """A write of this vendor's; the vendor must have been installed."""
    return WriteTool(
        name,
        vendor=NAME,
        operation="writes.create",
        identity=("number",),
        guard=("amount",),
        lane=lane,
    )

"""A vendor that costs nothing: its adapter answers at once, or after so many milliseconds, and
writes down each call. What a run takes beyond that is the product's own. It is there twice: the
second one is as well as a run says, and may say otherwise at any moment."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
    Lost,
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
PATIENT = "bench_patient"
OWNER = "acct_bench"
LEDGER = "BENCH_LEDGER"
LATENCY_MS = "BENCH_LATENCY_MS"
# One answer of so many is lost; 0: none.
LOST_EVERY = "BENCH_LOST_EVERY"
SLOW_S = 5.0
Health = Literal["well", "slow", "down"]
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


def fall(folder: Path | str, health: Health) -> None:
    """From now on the patient answers as the first vendor does, or ``SLOW_S`` late, or takes no
    connection; for all processes whose record is in that folder."""
    path = Path(folder) / "health"
    new = path.with_suffix(".new")
    new.write_text(health)
    new.replace(path)


class _Socket:
    """Stands for the connection that a real adapter shows to its cut-off."""

    def shutdown(self, how: int) -> None:
        """There is nothing to cut: the call ends by itself."""


_SOCKET = _Socket()


class _Arrived:
    """Whose writes have arrived."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def look_up(self, call: Call) -> LookUp:
        """The one object of an intent, if it is there."""
        known = self._ledger.knows(call.intent_id.bytes)
        return Found((_reading(call),)) if known else Absent()


class ZeroCostVendor:
    """Keeps to the adapter's protocol: one effect a call, no retry, and its look-up reads all that
    ever arrived. ``lost_every``: one answer of so many is lost after the effect."""

    def __init__(
        self, contract: VendorContract, ledger: Ledger, latency_s: float, lost_every: int
    ) -> None:
        self._contract = contract
        self._ledger = ledger
        self._latency_s = latency_s
        self._lost_every = lost_every
        self._calls = itertools.count(1)

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
        return self._answer(call, self._latency_s)

    def _answer(self, call: Call, latency_s: float) -> Outcome:
        self._ledger.add(call.key, call.intent_id.bytes, call.params)
        if latency_s:
            time.sleep(latency_s)
        if self._lost_every and next(self._calls) % self._lost_every == 0:
            return Lost("the answer was lost")
        return Receipt(_reading(call), Wire(http_status=200))

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """Everything that arrived under the intent's id."""
        return self._read().look_up(call)

    def shares_list(self, operation: str) -> bool:
        """Of its one operation."""
        return True

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        """Everything that arrived, of which each intent has its own."""
        return self._read()

    def _read(self) -> _Arrived:
        return _Arrived(self._ledger)

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


class Patient(ZeroCostVendor):
    """The vendor that falls ill and recovers, by ``fall``."""

    def _answer(self, call: Call, latency_s: float) -> Outcome:
        health = self._ledger.read("health") or "well"
        if health == "down":
            return NotSent("connection refused")
        return super()._answer(call, SLOW_S if health == "slow" else latency_s)


def _reading(call: Call) -> Reading:
    return Reading(
        receipt_id=f"wr_{call.intent_id.hex}",
        standing=Standing.LANDED,
        business=Business.PAID,
        word="done",
        owner=str(call.intent_id),
    )


def install() -> None:
    """Makes both known to this process; where they write, how long they take and how many answers
    are lost, the environment says (BENCH_LEDGER, BENCH_LATENCY_MS, BENCH_LOST_EVERY)."""
    if NAME in CONTRACTS:
        return
    adapters = dict(registry.ADAPTERS)
    for name, kind in ((NAME, ZeroCostVendor), (PATIENT, Patient)):
        register(replace(CONTRACT, vendor=name, adapter=name))
        adapters[name] = _builder(kind)
    registry.ADAPTERS = adapters


def _builder(kind: type[ZeroCostVendor]) -> registry.Builder:
    def build(contract: VendorContract, connect_s: float, read_s: float) -> ZeroCostVendor:
        ledger = Ledger(os.environ.get(LEDGER, os.devnull))
        latency_s = float(os.environ.get(LATENCY_MS, "0")) / 1000
        return kind(contract, ledger, latency_s, int(os.environ.get(LOST_EVERY, "0")))

    return build


def write_tool(name: str = "write", lane: tuple[str, ...] = (), vendor: str = NAME) -> WriteTool:
    """A write of one of the vendors; they must have been installed."""
    return WriteTool(
        name,
        vendor=vendor,
        operation="writes.create",
        identity=("number",),
        guard=("amount",),
        lane=lane,
    )

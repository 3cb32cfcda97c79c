"""What a process can send for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.contract import Account
from outbox.intent import gate_prefix
from outbox.store.rates import Meter


@dataclass(frozen=True, slots=True)
class Sendable:
    """One account this process can send for: its identity, its vendor's usable window (seconds
    from the first send; None where no key is honoured), the operations it knows, and by what the
    vendor knows a request of each again, by ``carried`` (empty where it is not given): rows that
    were frozen otherwise are left alone."""

    vendor: str
    account: Account
    window_s: float | None
    operations: tuple[str, ...]
    carries: Mapping[str, str] = field(default_factory=dict)

    @property
    def meter(self) -> Meter | None:
        """The account's rate; None where it has none."""
        return Meter.of(self.vendor, self.account)

    def as_json(self) -> dict[str, Any]:
        """The row of the claim's ``known`` relation."""
        return {
            "vendor": self.vendor,
            "account": self.account.name,
            "prefix": gate_prefix(self.vendor, self.account.name),
            "mode": self.account.mode,
            "vendor_account": self.account.vendor_account,
            "window_s": self.window_s,
            "operations": {name: self.carries.get(name, "") for name in self.operations},
            "rate": self.account.rate_per_s,
            "burst": self.account.burst,
        }

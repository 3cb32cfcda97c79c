"""Who we can talk to: adapters, accounts and contracts by name, built once per process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from outbox.codec import readable
from outbox.contract import Account, Vendor, VendorContract, carried
from outbox.contracts import CONTRACTS, contract_of
from outbox.fingerprint import RULES
from outbox.intent import gate_prefix
from outbox.policy import Policy
from outbox.settings import Settings
from outbox.store.intents import Intent
from outbox.store.rates import Meter
from outbox.store.sendable import Sendable
from vendors.registry import build


class Directory:
    """The adapters and accounts of one process. Build it after a fork: adapters hold sockets."""

    def __init__(self, settings: Settings, vendors: Mapping[str, Vendor]) -> None:
        self.settings = settings
        self._vendors = vendors
        self._accounts = dict(settings.accounts)

    @classmethod
    def of(cls, settings: Settings, *, read_s: float | None = None) -> Self:
        """An adapter for every vendor that an account is configured for and this release knows.
        ``read_s`` is how long each waits for a vendor's answer, the call deadline by default."""
        policy = settings.policy
        vendors = {
            name: build(
                name,
                contract=policy.adapted(contract_of(name)),
                connect_s=policy.connect_s,
                read_s=policy.call_deadline_s if read_s is None else read_s,
            )
            for name in sorted({vendor for vendor, _ in settings.accounts})
            if name in CONTRACTS
        }
        return cls(settings, vendors)

    @property
    def policy(self) -> Policy:
        """The time policy that every contract here is adapted to."""
        return self.settings.policy

    def vendor(self, name: str) -> Vendor | None:
        """The adapter, or None for a vendor this release does not know."""
        return self._vendors.get(name)

    def account(self, vendor: str, name: str) -> Account | None:
        """The account, or None where no credentials are configured for it."""
        return self._accounts.get((vendor, name))

    @property
    def accounts(self) -> dict[tuple[str, str], Account]:
        """Every account by (vendor, name), with its vendor account where that is known by now."""
        return dict(self._accounts)

    def learn(self, vendor: str, account: Account) -> None:
        """Whose account it is, for everything that is sent and compared from here on."""
        self._accounts[vendor, account.name] = account

    def contract(self, vendor: str) -> VendorContract | None:
        """The vendor's contract under this process's policy."""
        found = CONTRACTS.get(vendor)
        return self.policy.adapted(found) if found else None

    def reach(self, vendor: str, account: str) -> tuple[Vendor, Account, VendorContract] | None:
        """All three, or None where any is missing here."""
        adapter, found = self.vendor(vendor), self.account(vendor, account)
        contract = self.contract(vendor)
        if adapter is None or found is None or contract is None:
            return None
        return adapter, found, contract

    def sendable(self) -> tuple[Sendable, ...]:
        """Every account this process may claim for: a row is frozen to the vendor account at its
        first claim, so none is claimed before that is known."""
        return tuple(
            Sendable(
                vendor=vendor,
                account=account,
                window_s=self.policy.usable_window_s(CONTRACTS[vendor]),
                operations=tuple(sorted(CONTRACTS[vendor].operations)),
                carries={o: carried(CONTRACTS[vendor], o) for o in CONTRACTS[vendor].operations},
            )
            for (vendor, _), account in sorted(self._accounts.items())
            if account.vendor_account and self.reach(vendor, account.name)
        )

    def owners(self) -> dict[str, tuple[str, str]]:
        """Mode and vendor account of each name that this process sends for, as a heartbeat says
        it."""
        return {
            f"{vendor}/{name}": (account.mode, account.vendor_account)
            for (vendor, name), account in self.accounts.items()
            if account.vendor_account
        }

    def unsendable(self, row: Intent) -> str | None:
        """Why no claim of this process takes the row, whatever its state; None where one may. What
        nobody here can send, nobody here approves to be sent again."""
        contract = self.contract(row.vendor)
        if contract is None or row.operation not in contract.operations:
            return f"this release does not know {row.vendor} {row.operation}"
        if row.fingerprint_version not in RULES:
            return f"this release does not know version {row.fingerprint_version} of its key"
        if row.carries != carried(contract, row.operation):
            return "its request has its key or its mark elsewhere than the vendor's file says now"
        if row.request_codec not in readable(row.codec):
            return f"its request is sealed by {row.request_codec}, of which this process has no key"
        return None

    def windows(self) -> dict[str, float | None]:
        """By vendor: seconds from the first send that a key is honoured for, less the margin; None
        where none is."""
        return {name: self.policy.usable_window_s(known) for name, known in CONTRACTS.items()}

    def gate_prefixes(self) -> list[str]:
        """What the gates of the reachable accounts begin with."""
        return [gate_prefix(*place) for place in sorted(self._accounts) if self.reach(*place)]

    def meter(self, vendor: str, account: str) -> Meter | None:
        """The rate of an account; None where it has none, or is not configured here."""
        found = self.account(vendor, account)
        return Meter.of(vendor, found) if found else None

    def meters(self) -> dict[str, Meter]:
        """The rates of the reachable accounts that have one, by what their gates begin with."""
        found = [self.meter(*place) for place in sorted(self._accounts) if self.reach(*place)]
        return {meter.prefix: meter for meter in found if meter is not None}

    def close(self) -> None:
        """Drops the adapters' pooled connections."""
        for vendor in self._vendors.values():
            vendor.close()

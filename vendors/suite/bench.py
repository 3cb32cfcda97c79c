"""One face at work, as every check has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outbox.contract import Account, Call, Vendor
from outbox.outcomes import Receipt
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from vendors.suite.face import Face

AGO_S = 600
_WRITES = ("POST", "SMTP")


@dataclass
class Bench:
    """One face at work: an adapter and an account of its own in a running sandbox."""

    face: Face
    sandbox: Sandbox
    vendor: Vendor
    account: Account

    @classmethod
    @contextmanager
    def of(cls, face: Face, sandbox: Sandbox) -> Iterator[Bench]:
        vendor = build(face.name, contract=face.contract, connect_s=5.0, read_s=5.0)
        try:
            yield cls(face, sandbox, vendor, face.account(sandbox))
        finally:
            vendor.close()

    def writes(self) -> list[dict[str, Any]]:
        """The writes that the sandbox saw, oldest first."""
        seen = self.sandbox.requests(self.account.name)
        return [r for r in seen if r["method"] in _WRITES and r["origin"] == "client"]

    def landed(self) -> tuple[Call, Receipt]:
        """A write that landed."""
        call = self.face.call(self.account)
        outcome = self.vendor.perform(call)
        assert isinstance(outcome, Receipt), f"a write without a fault came back as {outcome}"
        return call, outcome

    def since(self) -> int:
        return int(self.sandbox.now(self.account.name)) - AGO_S


Check = Callable[[Bench], None]

"""What the suite must know of a vendor beyond its contract: how the sandbox plays it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outbox.contract import Account, Call, Cutoff, KeySlot, Unlimited, VendorContract
from outbox.intent import draft
from outbox.tool import Scope, WriteTool
from vendors.sandbox.client import Sandbox

Kind = Literal["Receipt", "Refused", "NotSent", "Lost"]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an outcome table: what happens at the vendor, and what the adapter must see of
    it. ``effects`` is how often the write took effect."""

    fault: str
    outcome: Kind
    effects: int
    covers_key: bool | None = None
    veto: bool = False
    pause: bool = False
    throttled: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Face:
    """A vendor as the sandbox plays it.

    ``params`` make a write that lands; ``rows`` are the outcome table beyond ``COMMON``;
    ``wire_key`` is what the sandbox must have recorded as the key of a call; ``lag`` is the
    account setting that makes the look-up's source late; ``many`` plants so many foreign objects
    that a look-up must read further pages; ``stamps`` whether a signature holds a time.
    """

    contract: VendorContract
    operation: str
    params: Mapping[str, Any]
    base_url: Callable[[Sandbox], str]
    wire_key: Callable[[Call], str | None]
    rows: tuple[Row, ...]
    credential: Callable[[Sandbox, str], str] = lambda sandbox, name: sandbox.api_key(name)
    mode: str = "test"
    lag: str = ""
    many: Callable[[Sandbox, str], None] | None = None
    stamps: bool = True
    secret: str = "whsec_c3VpdGUtc2VjcmV0LW1hcms="  # noqa: S105 - of a sandbox
    other_secret: str = "whsec_YW5vdGhlci1zZWNyZXQtbWFyaw=="  # noqa: S105

    @property
    def name(self) -> str:
        """The vendor's name."""
        return self.contract.vendor

    def account(self, sandbox: Sandbox) -> Account:
        """An account that nothing else uses."""
        name = f"c{os.getpid()}x{next(_numbers)}"
        return Account(
            name=name,
            mode=self.mode,
            credential=self.credential(sandbox, name),
            webhook_secrets=(self.secret,) if self.contract.has_webhooks else (),
            base_url=self.base_url(sandbox),
        )

    def call(
        self,
        account: Account,
        params: Mapping[str, Any] | None = None,
        cutoff: Cutoff | None = None,
    ) -> Call:
        """A new intent's call, frozen as a real enqueue freezes it."""
        tool = WriteTool(
            "suite",
            vendor=self.name,
            operation=self.operation,
            identity=("case",),
            request=lambda _: {**self.params, **(params or {})},
        )
        case = f"{os.getpid()}-{next(_numbers)}"
        made = draft(tool, Scope(tenant="suite", run_id="run"), {"case": case})
        frozen = json.loads(made.columns["request"])
        return Call(
            intent_id=made.id,
            key=made.key,
            operation=self.operation,
            method=frozen["method"],
            path=frozen["path"],
            api_version=frozen["api_version"],
            params=frozen["params"],
            account=account,
            recorded_epoch_s=1_790_000_000,
            key_slot=KeySlot.of(frozen.get("key")),
            cutoff=cutoff or Unlimited(),
        )


# The transport's faults, which mean the same at every vendor.
COMMON = (
    Row("none", "Receipt", 1),
    Row("lost_request", "Lost", 0),
    Row("lost_ack", "Lost", 1),
    Row("late_commit", "Lost", 1, fields={"after_s": 3600.0}),
)
HTTP = (
    Row("half_body", "Lost", 1),
    Row("empty_200", "Lost", 1),
    Row("bad_gateway_before", "Lost", 0),
    Row("bad_gateway_after", "Lost", 1),
    Row("redirect_302", "Lost", 0),
    Row("unauthorized_401", "NotSent", 0, pause=True),
    Row("forbidden_403", "NotSent", 0, pause=True),
    Row("rate_limited_429", "NotSent", 0, throttled=True),
)

"""The demo's faults: how each is set at the sandbox, one account per fault and strategy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from vendors.sandbox.client import Sandbox

# Longer than one call of the demo, shorter than its replay window.
LATE_S = 3.0
KILL_HOLD_S = 30.0
# Lists, events and objects; not `GET /v1/account`, without which nothing may be sent at all.
_READS = "GET /v1/[!a]*"

Allowed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table. ``allowed`` are the ends that keep the promise; ``paged`` says that a
    person must have been asked."""

    name: str
    title: str
    allowed: tuple[Allowed, ...]
    paged: bool


def faults() -> tuple[Fault, ...]:
    """Every fault of the demo, from the file that its test reads too."""
    document = tomllib.loads(files("workers").joinpath("demo_rows.toml").read_text("utf-8"))
    return tuple(
        Fault(name, row["title"], tuple(row["allowed"]), bool(row.get("paged", False)))
        for name, row in document.items()
    )


def arm(sandbox: Sandbox, fault: str, account: str) -> None:
    """Sets the fault at one account. A key's first request goes wrong; for a client that sends no
    key, or a new one each time, its first request does."""
    # The refused charge names a customer whom the vendor does not know.
    sandbox.set_account(account, any_customer=fault != "refused_4xx")

    def first(kind: str, **fields: Any) -> None:
        sandbox.fault(kind, account=account, times=1, **fields)

    match fault:
        case "lost_request" | "lost_ack" | "half_body" | "rate_limited_429":
            first(fault)
        case "redelivery" | "bad_gateway_before" | "bad_gateway_after":
            first(fault)
        case "late_commit":
            first("late_commit", after_s=LATE_S)
        case "in_use_409":
            first("in_use_409", after_s=LATE_S)
        case "stored_500_webhook":
            first("stored_500_object_later", after_s=LATE_S)
            # Only the webhook can tell: reads fail until long after it came.
            sandbox.fault("unavailable_503", account=account, endpoint=_READS)
        case "stored_500_silent":
            first("stored_500_object_later", after_s=LATE_S)
            sandbox.webhook_fault("never", account=account)
        case "webhook_first":
            sandbox.webhook_fault("before_answer", account=account, after_s=2)
        case "worker_killed":
            first("slow", after_s=KILL_HOLD_S)
        case "window_closed" | "lost_for_ever":
            sandbox.fault("lost_ack", account=account)
            sandbox.fault("unavailable_503", account=account, endpoint=_READS)
            sandbox.webhook_fault("never", account=account)
        case _:
            return


def parameters(fault: str) -> dict[str, Any]:
    """The charge that every strategy asks for, as Stripe takes it."""
    params: dict[str, Any] = {
        "amount": 4900,
        "currency": "usd",
        "customer": "cus_demo",
        "confirm": True,
        "payment_method": "pm_card_visa",
        "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
    }
    if fault == "declined_card":
        params["payment_method"] = "pm_card_chargeDeclined"
    return params

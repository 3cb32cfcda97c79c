"""Calls as the sender makes them: from the frozen request that a real enqueue would store."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from outbox.contract import Account, Call, Cutoff, Unlimited
from outbox.intent import draft
from outbox.tool import Scope, WriteTool
from tests.vendors.raw_server import answer
from vendors.sandbox.client import Sandbox

SECRET = "sk_test_SECRETMARK"
WEBHOOK_SECRET = "whsec_current"
NOWHERE = Account("nowhere", "test", credential="sk_test_nowhere", base_url="http://127.0.0.1:9")

_numbers = itertools.count()

CHARGE: Mapping[str, Any] = {
    "amount": 1999,
    "currency": "usd",
    "payment_method": "pm_card_visa",
    "confirm": True,
}


def call_of(
    operation: str = "payment_intents.create",
    params: Mapping[str, Any] = CHARGE,
    account: Account = NOWHERE,
    cutoff: Cutoff | None = None,
    case: str = "",
) -> Call:
    """A new intent's call; the same ``case`` gives the same intent. Raises ``Invalid``."""
    tool = WriteTool(
        "a_tool",
        vendor="stripe",
        operation=operation,
        identity=("case",),
        request=lambda _: dict(params),
    )
    case = case or f"case-{next(_numbers)}"
    made = draft(tool, Scope(tenant="acme", run_id="run"), {"case": case})
    frozen = json.loads(made.columns["request"])
    return Call(
        intent_id=made.id,
        key=made.key,
        operation=operation,
        method=frozen["method"],
        path=frozen["path"],
        api_version=frozen["api_version"],
        params=frozen["params"],
        account=account,
        cutoff=cutoff or Unlimited(),
    )


def marked(call: Call, **fields: Any) -> dict[str, Any]:
    """An object that bears the call's marks."""
    marks = {"outbox_id": str(call.intent_id), "outbox_key": call.key.hex()}
    return {"livemode": False, "created": 1_790_000_000, "metadata": marks, **fields}


def payment_intent(call: Call, **fields: Any) -> dict[str, Any]:
    """A payment intent that the call made."""
    base = {"id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 1999}
    return marked(call, **{**base, "currency": "usd", **fields})


def at(url: str) -> Account:
    return Account("a", "test", credential=SECRET, base_url=url)


def ok(call: Call) -> bytes:
    return answer("200 OK", json.dumps(payment_intent(call)).encode())


def lines(request: bytes) -> list[str]:
    return request.partition(b"\r\n\r\n")[0].decode().split("\r\n")


def header(request: bytes, name: str) -> list[str]:
    return [line.partition(": ")[2] for line in lines(request) if line.lower().startswith(name)]


def since(sandbox: Sandbox, account: Account) -> int:
    """A while ago, by the vendor's clock for this account."""
    return int(sandbox.now(account.vendor_account)) - 600

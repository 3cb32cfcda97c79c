"""Calls of recipes' vendors as the sender makes them, from what an enqueue would freeze."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from outbox.contract import Account, Call, Cutoff, KeySlot, Unlimited, VendorContract
from outbox.contracts import CONTRACTS, register
from outbox.contracts.recipes import read_recipe
from outbox.intent import draft
from outbox.tool import Scope, WriteTool
from vendors.sandbox import RECIPES

SECRET = "sk_test_SECRETMARK"
PAY: Mapping[str, Any] = {"amount": 100, "currency": "eur", "recipient": "ann"}


@contextmanager
def contracts_as_before() -> Iterator[None]:
    """What is made known inside is forgotten: other tests may know a vendor of the same name."""
    known = cast(dict[str, VendorContract], CONTRACTS)
    before = dict(known)
    try:
        yield
    finally:
        known.clear()
        known.update(before)


def contract_of(vendor: str, changes: Mapping[str, str] | None = None) -> VendorContract:
    """The contract of a recipe, in which ``changes`` replaces parts of the text."""
    text = (RECIPES / f"{vendor}.toml").read_text()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    return read_recipe(text)


def at(url: str, **fields: Any) -> Account:
    return Account("default", "test", credential=SECRET, base_url=url, **fields)


def call_of(
    contract: VendorContract,
    params: Mapping[str, Any] = PAY,
    account: Account | None = None,
    *,
    operation: str = "",
    cutoff: Cutoff | None = None,
) -> Call:
    """A new intent's call."""
    with contracts_as_before():
        register(contract)
        tool = WriteTool(
            "a_tool",
            vendor=contract.vendor,
            operation=operation or next(iter(contract.operations)),
            identity=("case",),
            request=lambda _: dict(params),
        )
        made = draft(tool, Scope(tenant="acme", run_id="run"), {"case": json.dumps(dict(params))})
    frozen = json.loads(made.columns["request"])
    return Call(
        intent_id=made.id,
        key=made.key,
        operation=tool.operation,
        method=frozen["method"],
        path=frozen["path"],
        api_version=frozen["api_version"],
        params=frozen["params"],
        account=account or at("http://127.0.0.1:9"),
        key_slot=KeySlot.of(frozen.get("key")),
        cutoff=cutoff or Unlimited(),
    )


def payment(call: Call, **fields: Any) -> dict[str, Any]:
    """A payment that the call made."""
    made = {
        "id": "pay_1",
        "status": "succeeded",
        "amount": 100,
        "currency": "EUR",
        "idempotency_key": call.key.hex(),
        "livemode": False,
        "updated_at": "2026-11-29T12:00:00.500+00:00",
    }
    return {**made, **fields}

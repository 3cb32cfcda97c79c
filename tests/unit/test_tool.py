"""A tool or scope that is declared wrongly is refused by the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.errors import Invalid
from outbox.tool import RESERVED_ARGUMENTS, Scope, WriteTool, is_reserved

GOOD: dict[str, Any] = {
    "name": "charge_invoice",
    "vendor": "stripe",
    "operation": "payment_intents.create",
    "side_effect": "charge",
    "identity": ("invoice_id",),
    "guard": ("amount", "currency"),
    "money": ("amount", "currency"),
}


def test_a_good_declaration_is_taken() -> None:
    tool = WriteTool(**GOOD)
    assert tool.contract.vendor == "stripe"
    assert tool.spec.name == "payment_intents.create"
    assert tool.validator is None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "tool.name"),
    "a name with a space": ({"name": "charge it"}, "tool.name"),
    "a name that ends in a newline": ({"name": "charge\n"}, "tool.name"),
    "a name that is no text": ({"name": 7}, "tool.name"),
    "a long name": ({"name": "x" * 101}, "tool.name"),
    "an unknown vendor": ({"vendor": "stripo"}, "tool.vendor"),
    "a vendor that is no text": ({"vendor": ["stripe"]}, "tool.vendor"),
    "an unknown operation": ({"operation": "payment_intents.teleport"}, "tool.operation"),
    "an unknown scope of the key": ({"once_per": "call"}, "tool.once_per"),
    "an unknown way of doubt": ({"on_doubt": "skip"}, "tool.on_doubt"),
    "no time to live": ({"ttl_s": 0}, "tool.ttl_s"),
    "a time to live that is no number": ({"ttl_s": float("nan")}, "tool.ttl_s"),
    "a time to live that is text": ({"ttl_s": "x"}, "tool.ttl_s"),
    "a time to live that is a flag": ({"ttl_s": True}, "tool.ttl_s"),
    "room for none": ({"max_depth": 0}, "tool.max_depth"),
    "room for a half": ({"max_depth": 1.5}, "tool.max_depth"),
    "room that is a flag": ({"max_depth": True}, "tool.max_depth"),
    "room that is text": ({"max_depth": "9"}, "tool.max_depth"),
    "room for more than is counted": ({"max_depth": 100_001}, "tool.max_depth"),
    "an operation that is no text": ({"operation": ["x"]}, "tool.operation"),
    "a side effect in capitals": ({"side_effect": "CHARGE"}, "tool.side_effect"),
    "a side effect of two words": ({"side_effect": "charge card"}, "tool.side_effect"),
    "a side effect that is no text": ({"side_effect": ["charge"]}, "tool.side_effect"),
    "identity that is no tuple": ({"identity": 7}, "tool.identity"),
    "a guard that is nothing": ({"guard": None}, "tool.guard"),
    "a schema that is text": ({"schema": "object"}, "tool.schema"),
    "a schema that is a flag": ({"schema": True}, "tool.schema"),
    "a request that is no function": ({"request": {}}, "tool.request"),
    "identity as one text": ({"identity": "invoice_id"}, "tool.identity"),
    "guard as one text": ({"guard": "amount"}, "tool.guard"),
    "an empty argument name": ({"identity": ("",)}, "tool.identity"),
    "identity of numbers": ({"identity": (1,)}, "tool.identity"),
    "a reserved identity": ({"identity": ("idempotency_key",)}, "tool.identity"),
    "a reserved guard": ({"guard": ("Tool-Call-Id",)}, "tool.guard"),
    "a reserved lane": ({"lane": ("runId",)}, "tool.lane"),
    "identity that is guard too": ({"guard": ("invoice_id", "amount", "currency")}, "tool.guard"),
    "money of three": ({"money": ("amount", "currency", "tax")}, "tool.money"),
    "money of one": ({"money": ("amount",)}, "tool.money"),
    "money that is free": ({"guard": ("currency",)}, "tool.money"),
    "a charge without identity": ({"identity": ()}, "tool.identity"),
    "a charge without guard": ({"guard": (), "money": ()}, "tool.guard"),
    "a refund without guard": (
        {"side_effect": "refund", "guard": (), "money": ()},
        "tool.guard",
    ),
    "a payout without identity": ({"side_effect": "payout", "identity": ()}, "tool.identity"),
    "a schema that is none": ({"schema": {"type": "objekt"}}, "tool.schema"),
    "a schema with a reserved argument": (
        {"schema": {"properties": {"idempotencyKey": {}}}},
        "tool.schema",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_is_refused_by_its_field(what: str) -> None:
    changes, field = WRONG[what]
    with pytest.raises(Invalid) as refused:
        WriteTool(**{**GOOD, **changes})
    assert refused.value.field == field


def test_a_write_without_identity_takes_its_money_as_identity() -> None:
    tool = WriteTool(**{**GOOD, "side_effect": "write", "identity": (), "guard": ()})
    assert tool.identity == ()


@pytest.mark.parametrize("name", sorted(RESERVED_ARGUMENTS))
def test_reserved_names_are_known_however_they_are_spelled(name: str) -> None:
    spellings = {name, name.upper(), f"_{name}", f"{name[:3]}-{name[3:]}", f"{name[:4]}_{name[4:]}"}
    assert all(is_reserved(spelling) for spelling in spellings)


@pytest.mark.parametrize("name", ["amount", "invoice_id", "epochs", "key"])
def test_ordinary_names_are_not_reserved(name: str) -> None:
    assert not is_reserved(name)


BAD_SCOPES: dict[str, tuple[dict[str, Any], str]] = {
    "no tenant": ({"tenant": ""}, "scope.tenant"),
    "no run": ({"run_id": ""}, "scope.run_id"),
    "no account": ({"account": ""}, "scope.account"),
    "a tenant that is a number": ({"tenant": 7}, "scope.tenant"),
    "an epoch that is nothing": ({"epoch": None}, "scope.epoch"),
    "a long run": ({"run_id": "x" * 201}, "scope.run_id"),
    "a NUL": ({"tenant": "a\x00"}, "scope.tenant"),
    "a line break": ({"epoch": "a\n"}, "scope.epoch"),
    "a lone surrogate": ({"account": "\ud800"}, "scope.account"),
}


@pytest.mark.parametrize("what", BAD_SCOPES)
def test_a_wrong_scope_is_refused_by_its_field(what: str) -> None:
    changes, field = BAD_SCOPES[what]
    with pytest.raises(Invalid) as refused:
        Scope(**{"tenant": "acme", "run_id": "run-1", **changes})
    assert refused.value.field == field


def test_a_scope_needs_no_epoch_and_may_be_in_any_script() -> None:
    assert Scope(tenant="株式会社", run_id="zażółć").epoch == ""

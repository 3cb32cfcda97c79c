"""The contract as data: the SDK's own parameters, and refusals of what Stripe cannot carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import stripe
import stripe.params
import stripe.params.checkout

from outbox.contracts import CONTRACTS, contract_of
from outbox.errors import Invalid
from tests.vendors.stripe_calls import CHARGE, call_of
from vendors.registry import ADAPTERS, build
from vendors.stripe import _METHODS
from vendors.stripe_reading import KINDS
from vendors.stripe_sources import EVENTS, SOURCES

STRIPE = contract_of("stripe")
TYPED: Mapping[str, Any] = {
    "customers.create": stripe.params.CustomerCreateParams,
    "payment_intents.create": stripe.params.PaymentIntentCreateParams,
    "payment_intents.confirm": stripe.params.PaymentIntentConfirmParams,
    "payment_intents.capture": stripe.params.PaymentIntentCaptureParams,
    "payment_intents.cancel": stripe.params.PaymentIntentCancelParams,
    "setup_intents.create": stripe.params.SetupIntentCreateParams,
    "setup_intents.confirm": stripe.params.SetupIntentConfirmParams,
    "setup_intents.cancel": stripe.params.SetupIntentCancelParams,
    "invoices.create": stripe.params.InvoiceCreateParams,
    "invoices.finalize": stripe.params.InvoiceFinalizeInvoiceParams,
    "invoices.pay": stripe.params.InvoicePayParams,
    "invoice_items.create": stripe.params.InvoiceItemCreateParams,
    "subscriptions.create": stripe.params.SubscriptionCreateParams,
    "checkout.sessions.create": stripe.params.checkout.SessionCreateParams,
    "refunds.create": stripe.params.RefundCreateParams,
    "transfers.create": stripe.params.TransferCreateParams,
}
OPTIONS = frozenset(stripe.RequestOptions.__annotations__)
TARGETS = frozenset({"payment_intent", "setup_intent", "invoice"})


def test_every_table_knows_every_operation() -> None:
    for table in (TYPED, KINDS, EVENTS, _METHODS):
        assert set(table) == set(STRIPE.operations)
    assert {kind.object for kind in KINDS.values()} == set(SOURCES)
    assert {contract.adapter for contract in CONTRACTS.values()} <= set(ADAPTERS)
    assert all(len(types) <= 20 for types in EVENTS.values())


@pytest.mark.parametrize("operation", sorted(TYPED))
def test_parameters_are_those_of_the_pinned_api_version(operation: str) -> None:
    assert STRIPE.api_version == stripe.api_version
    spec = STRIPE.operations[operation]
    target = {KINDS[operation].target} - {""}
    assert spec.passes - target == set(TYPED[operation].__annotations__) - OPTIONS
    assert target <= spec.passes
    # The key and the account are never a parameter: the SDK would drop the key without a word.
    assert not spec.passes & OPTIONS
    assert bool(spec.marks) is not bool(target)


@pytest.mark.parametrize("operation", sorted(TYPED))
def test_every_event_type_is_one_that_stripe_sends(operation: str) -> None:
    known = str(stripe.params.WebhookEndpointCreateParams.__annotations__["enabled_events"])
    assert all(f"'{kind}'" in known or f'"{kind}"' in known for kind in EVENTS[operation])


def test_an_unknown_vendor_is_named_beside_those_we_know() -> None:
    names: tuple[Any, ...] = ("paypal", "", None, [])
    for name in names:
        with pytest.raises(Invalid, match="stripe"):
            contract_of(name)
    with pytest.raises(Invalid, match="stripe"):
        build("paypal")


def test_the_window_and_the_margin_leave_room_for_a_late_request() -> None:
    assert STRIPE.window_s == 86400
    assert STRIPE.margin_s >= 60 + STRIPE.in_flight_bound_s + 300
    assert STRIPE.honours_keys
    assert STRIPE.can_look_up


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("payment_intents.create", {**CHARGE, "amount": 0}, "request.amount"),
    ("payment_intents.create", {**CHARGE, "amount": -5}, "request.amount"),
    ("payment_intents.create", {**CHARGE, "amount": 19.99}, "request.amount"),
    ("payment_intents.create", {**CHARGE, "amount": "1999"}, "request.amount"),
    ("payment_intents.create", {**CHARGE, "amount": True}, "request.amount"),
    ("payment_intents.create", {**CHARGE, "amount": 10**8}, "request.amount"),
    ("payment_intents.create", {"currency": "usd"}, "request.amount"),
    ("payment_intents.create", {"amount": 1999}, "request.currency"),
    ("payment_intents.create", {**CHARGE, "currency": "USD"}, "request.currency"),
    ("payment_intents.create", {**CHARGE, "currency": "dollar"}, "request.currency"),
    ("payment_intents.create", {**CHARGE, "currency": 5}, "request.currency"),
    (
        "payment_intents.create",
        {**CHARGE, "statement_descriptor": "x" * 23},
        "request.statement_descriptor",
    ),
    ("payment_intents.create", {**CHARGE, "metadata": "text"}, "request.metadata"),
    ("payment_intents.create", {**CHARGE, "metadata": {"a[b]": "c"}}, "request.metadata.a[b]"),
    ("payment_intents.create", {**CHARGE, "metadata": {"": "c"}}, "request.metadata."),
    (
        "payment_intents.create",
        {**CHARGE, "metadata": {"k" * 41: "c"}},
        "request.metadata." + "k" * 40,
    ),
    ("payment_intents.create", {**CHARGE, "metadata": {"k": "v" * 501}}, "request.metadata.k"),
    ("payment_intents.create", {**CHARGE, "metadata": {"k": ["v"]}}, "request.metadata.k"),
    ("payment_intents.create", {**CHARGE, "metadata": {"k": None}}, "request.metadata.k"),
    (
        "payment_intents.create",
        {**CHARGE, "metadata": {str(n): "v" for n in range(49)}},
        "request.metadata",
    ),
    (
        "payment_intents.create",
        {**CHARGE, "metadata": {"outbox_id": "x"}},
        "request.metadata.outbox_id",
    ),
    (
        "payment_intents.capture",
        {"payment_intent": "pi_1", "metadata": {"outbox_key": "x"}},
        "request.metadata.outbox_key",
    ),
    (
        "payment_intents.capture",
        {"payment_intent": "pi_1", "amount_to_capture": 0},
        "request.amount_to_capture",
    ),
    ("payment_intents.capture", {}, "request.payment_intent"),
    ("payment_intents.capture", {"payment_intent": "../customers"}, "request.payment_intent"),
    ("payment_intents.capture", {"payment_intent": ""}, "request.payment_intent"),
    ("invoices.pay", {"invoice": "in_1/../x"}, "request.invoice"),
    ("customers.create", {"email": "x" * 513}, "request.email"),
    ("checkout.sessions.create", {"success_url": "https://a.b"}, "request.mode"),
    ("checkout.sessions.create", {"mode": "donation"}, "request.mode"),
    (
        "checkout.sessions.create",
        {"mode": "payment", "payment_intent_data": {"metadata": {"k": "v" * 501}}},
        "request.payment_intent_data.metadata.k",
    ),
    (
        "checkout.sessions.create",
        {"mode": "payment", "payment_intent_data": "x"},
        "request.payment_intent_data",
    ),
    ("refunds.create", {"amount": 5}, "request.payment_intent"),
    ("refunds.create", {"payment_intent": "pi_1", "charge": "ch_1"}, "request.payment_intent"),
    ("refunds.create", {"payment_intent": "pi_1", "amount": 0}, "request.amount"),
    ("transfers.create", {"amount": 5, "currency": "usd"}, "request.destination"),
    ("invoice_items.create", {"amount": 1.5, "currency": "usd"}, "request.amount"),
]


@pytest.mark.parametrize(("operation", "params", "field"), BAD)
def test_what_stripe_could_not_carry_is_refused_by_name(
    operation: str, params: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        call_of(operation, params)
    assert refusal.value.field == field


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("payment_intents.create", {**CHARGE, "amount": 99_999_999}),
    ("payment_intents.create", {**CHARGE, "amount": 1, "currency": "jpy"}),
    ("payment_intents.create", {**CHARGE, "metadata": {str(n): "v" * 500 for n in range(48)}}),
    ("payment_intents.create", {**CHARGE, "metadata": {"n": 5, "f": 1.5, "b": True}}),
    ("invoice_items.create", {"amount": -500, "currency": "usd", "customer": "cus_1"}),
    ("refunds.create", {"charge": "ch_1"}),
    ("setup_intents.create", {"usage": "off_session"}),
]


@pytest.mark.parametrize(("operation", "params"), GOOD)
def test_what_stripe_carries_is_let_through(operation: str, params: dict[str, Any]) -> None:
    assert {k: v for k, v in call_of(operation, params).params.items() if k != "metadata"} == {
        k: v for k, v in params.items() if k != "metadata"
    }

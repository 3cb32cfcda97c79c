"""The sandbox as the SDK sees it: objects, their life, lists, search and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import stripe

from tests.vendors.sandbox_shop import CHARGE, Shop, open_shop, response_of
from vendors.sandbox.client import Sandbox, SandboxRefused

PAID: Any = {**CHARGE, "confirm": True}


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def test_a_charge_has_its_objects_and_events(shop: Shop) -> None:
    v1 = shop.client.v1
    customer = v1.customers.create({"email": "a@example.com"})
    intent = shop.pay("k1", customer=customer.id, metadata={"outbox_id": "i1"})
    assert (intent.status, intent.amount_received, intent.livemode) == ("succeeded", 1200, False)
    assert isinstance(intent.latest_charge, str)
    charge = v1.charges.retrieve(intent.latest_charge)
    assert (charge.paid, charge.payment_intent, charge.customer) == (True, intent.id, customer.id)
    assert v1.payment_intents.retrieve(intent.id).to_dict() == intent.to_dict()
    events = v1.events.list().data
    assert [e.type for e in events] == [
        "payment_intent.succeeded",
        "charge.succeeded",
        "payment_intent.created",
        "customer.created",
    ]
    assert events[0].request is not None
    assert events[0].request.idempotency_key == "k1"
    assert events[0].request.id == response_of(intent).request_id
    assert events[0].to_dict()["data"]["object"]["metadata"] == {"outbox_id": "i1"}
    assert v1.events.retrieve(events[0].id).id == events[0].id


def test_a_declined_charge_is_a_402_that_names_its_intent(shop: Shop) -> None:
    with pytest.raises(stripe.CardError) as raised:
        shop.pay(payment_method="pm_card_chargeDeclinedInsufficientFunds")
    error = raised.value.error
    assert error is not None
    assert (error.code, error.decline_code) == ("card_declined", "insufficient_funds")
    assert error.payment_intent is not None
    intent = shop.client.v1.payment_intents.retrieve(error.payment_intent.id)
    assert intent.status == "requires_payment_method"
    assert intent.last_payment_error is not None
    assert shop.client.v1.events.list({"limit": 1}).data[0].type == "payment_intent.payment_failed"
    assert [effect["outcome"] for effect in shop.effects()] == ["declined"]


def test_a_charge_that_needs_authentication_is_open_and_can_be_confirmed_again(shop: Shop) -> None:
    needy = "pm_card_authenticationRequired"
    intent = shop.pay(payment_method=needy)
    assert intent.status == "requires_action"
    confirmed = shop.client.v1.payment_intents.confirm(
        intent.id, {"payment_method": "pm_card_visa"}
    )
    assert confirmed.status == "succeeded"
    with pytest.raises(stripe.CardError):
        shop.pay(payment_method=needy, error_on_requires_action=True)


def test_manual_capture_then_partial_refunds(shop: Shop) -> None:
    v1 = shop.client.v1
    intent = shop.pay(capture_method="manual")
    assert (intent.status, intent.amount_capturable) == ("requires_capture", 1200)
    captured = v1.payment_intents.capture(intent.id, {"amount_to_capture": 1000})
    assert (captured.status, captured.amount_received) == ("succeeded", 1000)
    refund = v1.refunds.create({"payment_intent": intent.id, "amount": 400})
    assert (refund.object, refund.amount, refund.status) == ("refund", 400, "succeeded")
    with pytest.raises(stripe.InvalidRequestError):
        v1.refunds.create({"payment_intent": intent.id, "amount": 601})
    assert v1.refunds.create({"payment_intent": intent.id}).amount == 600
    assert isinstance(intent.latest_charge, str)
    charge = v1.charges.retrieve(intent.latest_charge)
    assert charge.amount_refunded == 1000
    kinds = [effect["kind"] for effect in shop.effects()]
    assert kinds == [
        "payment_intent.create",
        "payment_intent.capture",
        "refund.create",
        "refund.create",
    ]


def test_an_intent_can_be_cancelled_before_it_is_paid_and_not_after(shop: Shop) -> None:
    v1 = shop.client.v1
    open_intent = v1.payment_intents.create({"amount": 5, "currency": "EUR"})
    assert (open_intent.status, open_intent.currency) == ("requires_payment_method", "eur")
    cancelled = v1.payment_intents.cancel(open_intent.id, {"cancellation_reason": "duplicate"})
    assert (cancelled.status, cancelled.cancellation_reason) == ("canceled", "duplicate")
    paid = shop.pay()
    with pytest.raises(stripe.InvalidRequestError) as raised:
        v1.payment_intents.cancel(paid.id)
    assert raised.value.code == "payment_intent_unexpected_state"


def test_invoices_are_collected_from_items_finalized_and_paid(shop: Shop) -> None:
    v1 = shop.client.v1
    customer = v1.customers.create({"name": "A"})
    v1.invoice_items.create({"customer": customer.id, "amount": 700, "currency": "usd"})
    invoice = v1.invoices.create(
        {"customer": customer.id, "pending_invoice_items_behavior": "include"}
    )
    v1.invoice_items.create({"customer": customer.id, "invoice": invoice.id, "amount": 50})
    assert (invoice.status, invoice.total) == ("draft", 700)
    finalized = v1.invoices.finalize_invoice(invoice.id)
    assert (finalized.status, finalized.amount_due) == ("open", 750)
    with pytest.raises(stripe.CardError):
        v1.invoices.pay(invoice.id, {"payment_method": "pm_card_chargeDeclined"})
    paid = v1.invoices.pay(invoice.id)
    assert (paid.status, paid.amount_paid, paid.amount_remaining) == ("paid", 750, 0)
    with pytest.raises(stripe.InvalidRequestError):
        v1.invoices.void_invoice(invoice.id)


def test_the_other_kinds_can_be_created_read_and_ended(shop: Shop) -> None:
    v1 = shop.client.v1
    customer = v1.customers.create({"name": "A"})
    setup = v1.setup_intents.create({"customer": customer.id, "payment_method": "pm_card_visa"})
    assert v1.setup_intents.confirm(setup.id).status == "succeeded"
    transfer = v1.transfers.create({"amount": 5, "currency": "usd", "destination": "acct_other"})
    assert v1.transfers.retrieve(transfer.id).destination == "acct_other"
    product = v1.products.create({"name": "Tea"})
    price = v1.prices.create({"currency": "usd", "product": product.id, "unit_amount": 300})
    subscription = v1.subscriptions.create(
        {"customer": customer.id, "items": [{"price": price.id, "quantity": 2}]}
    )
    assert subscription.status == "active"
    assert isinstance(subscription.latest_invoice, str)
    assert v1.invoices.retrieve(subscription.latest_invoice).total == 600
    assert v1.subscriptions.cancel(subscription.id).status == "canceled"
    session = v1.checkout.sessions.create(
        {"mode": "payment", "success_url": "http://x/", "line_items": [{"price": price.id}]}
    )
    assert session.status == "open"
    assert v1.checkout.sessions.expire(session.id).status == "expired"
    assert v1.accounts.retrieve_current().id == f"acct_{shop.name}"


def test_metadata_is_merged_and_an_empty_value_removes_a_name(shop: Shop) -> None:
    customer = shop.client.v1.customers.create({"metadata": {"a": "1", "b": "2"}})
    changed = shop.client.v1.customers.update(customer.id, {"metadata": {"b": "", "c": "3"}})
    assert changed.to_dict()["metadata"] == {"a": "1", "c": "3"}
    event = shop.client.v1.events.list({"limit": 1}).data[0]
    assert event.type == "customer.updated"
    assert event.to_dict()["data"]["previous_attributes"] == {"metadata": {"a": "1", "b": "2"}}


def test_expand_replaces_an_id_by_its_object(shop: Shop) -> None:
    expanded = shop.pay(expand=["latest_charge"])
    assert isinstance(expanded.latest_charge, stripe.Charge)
    listed = shop.client.v1.payment_intents.list({"expand": ["data.latest_charge"]})
    assert isinstance(listed.data[0].latest_charge, stripe.Charge)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({f"metadata[k{n}]": "v" for n in range(51)}, "metadata"),
        ({f"metadata[{'k' * 41}]": "v"}, f"metadata[{'k' * 41}]"),
        ({"metadata[k]": "v" * 501}, "metadata[k]"),
        ({"metadata[k][deeper]": "v"}, "metadata"),
        ({"currency": "dollars"}, "currency"),
        ({"payment_method": "card"}, "payment_method"),
    ],
)
def test_limits_are_enforced_and_the_parameter_is_named(
    shop: Shop, form: dict[str, str], param: str
) -> None:
    refused = shop.post("/v1/payment_intents", {**CHARGE, **form}, "k")
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["param"] == param
    assert shop.effects() == []


def test_unknown_paths_objects_and_content_types_are_refused(shop: Shop) -> None:
    assert shop.post("/v1/nothing", {}, "k").status == 404
    missing = shop.post("/v1/payment_intents/pi_none", {}, method="GET")
    assert (missing.status, json.loads(missing.body)["error"]["code"]) == (404, "resource_missing")
    assert shop.post("/v1/customers", {"a": 1}, "k", Content_Type="application/json").status == 400


def test_lists_page_both_ways_newest_first(shop: Shop) -> None:
    ids = [shop.client.v1.customers.create({}).id for _ in range(7)]
    v1 = shop.client.v1
    first = v1.customers.list({"limit": 3})
    assert [c.id for c in first.data] == ids[:3:-1]
    assert first.has_more
    assert [c.id for c in v1.customers.list({"limit": 3}).auto_paging_iter()] == ids[::-1]
    before = v1.customers.list({"limit": 2, "ending_before": ids[3]})
    assert [c.id for c in before.data] == [ids[5], ids[4]]
    assert before.has_more
    upwards = v1.customers.list({"limit": 2, "ending_before": ids[0]})
    assert [c.id for c in upwards.auto_paging_iter()] == ids[1:]
    for refused in ({"limit": 0}, {"limit": 101}, {"starting_after": "cus_none"}):
        with pytest.raises(stripe.InvalidRequestError):
            v1.customers.list(refused)  # type: ignore[arg-type]


def test_lists_filter_by_creation_time_and_fields(shop: Shop) -> None:
    v1 = shop.client.v1
    old = v1.customers.create({"email": "old@example.com"})
    shop.sandbox.set_account(shop.name, clock_offset_s=1000)
    new = v1.customers.create({"email": "new@example.com"})
    assert 999 <= new.created - old.created <= 1010
    bounds: list[tuple[Any, list[str]]] = [
        ({"gt": old.created}, [new.id]),
        ({"gte": old.created}, [new.id, old.id]),
        ({"lt": new.created}, [old.id]),
        ({"gte": old.created, "lte": new.created}, [new.id, old.id]),
    ]
    for created, expected in bounds:
        found = v1.customers.list({"created": created})
        assert [c.id for c in found.data] == expected
    assert [c.id for c in v1.customers.list({"created": old.created}).data] == [old.id]
    assert [c.id for c in v1.customers.list({"email": "new@example.com"}).data] == [new.id]


def test_events_lag_behind_and_can_be_filtered_by_type(shop: Shop) -> None:
    v1 = shop.client.v1
    intent = shop.pay()
    types = ["payment_intent.succeeded", "charge.*"]
    assert len(v1.events.list({"types": types}).data) == 2
    assert len(v1.events.list({"type": "payment_intent.created"}).data) == 1
    shop.sandbox.set_account(shop.name, events_lag_s=60)
    assert v1.events.list().data == []
    assert v1.payment_intents.list().data[0].id == intent.id
    shop.sandbox.set_account(shop.name, clock_offset_s=61)
    assert len(v1.events.list().data) == 3


def test_search_lags_finds_by_metadata_and_may_be_off(shop: Shop) -> None:
    v1 = shop.client.v1
    intent = shop.pay(metadata={"outbox_id": "i1"})
    query: Any = {"query": "metadata['outbox_id']:'i1' AND status:'succeeded'"}
    assert v1.payment_intents.search(query).data == []
    shop.sandbox.set_account(shop.name, search_lag_s=0)
    assert [found.id for found in v1.payment_intents.search(query).data] == [intent.id]
    assert v1.payment_intents.search({"query": "metadata['outbox_id']:'i2'"}).data == []
    with pytest.raises(stripe.InvalidRequestError):
        v1.payment_intents.search({"query": "anything"})
    shop.sandbox.set_account(shop.name, search_enabled=False)
    with pytest.raises(stripe.InvalidRequestError):
        v1.payment_intents.search(query)


def test_a_connected_account_has_its_own_objects_and_its_events_name_it(shop: Shop) -> None:
    other = f"acct_of_{shop.name}"
    made = shop.client.v1.customers.create({}, {"stripe_account": other})
    assert shop.client.v1.customers.list().data == []
    assert shop.client.v1.customers.list({}, {"stripe_account": other}).data[0].id == made.id
    (event,) = shop.sandbox.objects(other, "events")
    assert event["account"] == other
    assert "account" not in shop.sandbox.plant(shop.name, "customers.create", {})


def test_the_mode_can_be_made_to_contradict_the_key(shop: Shop) -> None:
    shop.sandbox.set_account(shop.name, livemode=True)
    assert shop.client.v1.customers.create({}).livemode is True


def test_a_planted_object_is_not_an_effect_of_ours(shop: Shop) -> None:
    planted = shop.sandbox.plant(
        shop.name,
        "payment_intents.create",
        {**PAID, "metadata": {"outbox_id": "i1"}},
        status="on_hold",
    )
    assert shop.client.v1.payment_intents.retrieve(planted["id"]).status == "on_hold"
    assert [effect["outcome"] for effect in shop.effects()] == ["planted"]
    assert shop.sandbox.oracle(shop.name) == {"effects_by_intent": {}, "violations": []}


def test_a_wrong_account_setting_is_refused_by_name(shop: Shop) -> None:
    for setting in ({"clock": 1}, {"honours_keys": "no"}, {"webhook_retry_s": [None]}):
        (name,) = setting
        with pytest.raises(SandboxRefused, match=rf"^{name}: "):
            shop.sandbox.set_account(shop.name, **setting)


def test_reset_forgets_one_account_only(shop: Shop, sandbox: Sandbox) -> None:
    with open_shop(sandbox) as neighbour:
        for one in (shop, neighbour):
            one.sandbox.fault("status:processing", account=one.name)
            one.charge("k1")
        sandbox.reset(shop.name)
        assert (shop.effects(), sandbox.requests(shop.name)) == ([], [])
        again = shop.charge("k1")
        assert json.loads(again.body)["status"] == "succeeded"
        assert "idempotent-replayed" not in again.headers
        assert neighbour.charge("k1").headers["idempotent-replayed"] == "true"
        assert sandbox.requests(shop.name)[0]["attempt"] == 1

"""The adapter against the sandbox: every operation, every fault, one request per call."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import Account, Call
from outbox.contracts import contract_of
from outbox.outcomes import (
    Absent,
    Business,
    Found,
    Lost,
    Receipt,
    Refused,
    Standing,
)
from tests.vendors.stripe_calls import CHARGE, call_of, since
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

OPERATIONS = contract_of("stripe").operations


def landed(vendor: StripeVendor, call: Call) -> str:
    outcome = vendor.perform(call)
    assert isinstance(outcome, Receipt), outcome
    assert outcome.reading.standing is Standing.LANDED
    return outcome.reading.receipt_id


class World:
    """Objects that operations need to work on."""

    def __init__(self, vendor: StripeVendor, account: Account) -> None:
        self._vendor = vendor
        self._account = account

    def call(self, operation: str, params: Mapping[str, Any]) -> Call:
        return call_of(operation, params, self._account)

    def make(self, operation: str, **params: Any) -> str:
        return landed(self._vendor, self.call(operation, params))

    def unpaid(self) -> str:
        return self.make("payment_intents.create", amount=5, currency="usd")

    def held(self) -> str:
        return self.make("payment_intents.create", **CHARGE, capture_method="manual")

    def invoice(self) -> str:
        customer = self.make("customers.create", name="x")
        invoice = self.make("invoices.create", customer=customer)
        self.make(
            "invoice_items.create", customer=customer, amount=9, currency="usd", invoice=invoice
        )
        return invoice

    def finalized(self) -> str:
        return self.make("invoices.finalize", invoice=self.invoice())

    def params_of(self, operation: str) -> Mapping[str, Any]:
        customer = {"customer": self.make("customers.create", name="x")}
        card = {"payment_method": "pm_card_visa"}
        makers: dict[str, Any] = {
            "customers.create": lambda: {"name": "x", "metadata": {"a": "b"}},
            "payment_intents.create": lambda: {**CHARGE, **customer},
            "payment_intents.confirm": lambda: {"payment_intent": self.unpaid(), **card},
            "payment_intents.capture": lambda: {"payment_intent": self.held()},
            "payment_intents.cancel": lambda: {"payment_intent": self.unpaid()},
            "setup_intents.create": lambda: {**customer, "usage": "off_session"},
            "setup_intents.confirm": lambda: {
                "setup_intent": self.make("setup_intents.create", **customer),
                **card,
            },
            "setup_intents.cancel": lambda: {
                "setup_intent": self.make("setup_intents.create", **customer)
            },
            "invoices.create": lambda: customer,
            "invoices.finalize": lambda: {"invoice": self.invoice()},
            "invoices.pay": lambda: {"invoice": self.finalized()},
            "invoice_items.create": lambda: {**customer, "amount": 9, "currency": "usd"},
            "subscriptions.create": lambda: {**customer, "items": [{"price": "price_1"}]},
            "checkout.sessions.create": lambda: {"mode": "payment", "success_url": "https://a.b"},
            "refunds.create": lambda: {
                "payment_intent": self.make("payment_intents.create", **CHARGE)
            },
            "transfers.create": lambda: {
                "amount": 9,
                "currency": "usd",
                "destination": "acct_other",
            },
        }
        params: Mapping[str, Any] = makers[operation]()
        return params


@pytest.fixture
def world(vendor: StripeVendor, account: Account) -> World:
    return World(vendor, account)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_lands_once_and_is_found_again(
    operation: str, world: World, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = world.call(operation, world.params_of(operation))
    began = since(sandbox, account)
    assert isinstance(vendor.look_up(call, began), Absent)
    receipt_id = landed(vendor, call)
    found = vendor.look_up(call, began)
    assert isinstance(found, Found)
    assert [reading.receipt_id for reading in found.readings] == [receipt_id]
    assert found.readings[0].standing is Standing.LANDED
    retrieved = vendor.retrieve(call, receipt_id)
    assert isinstance(retrieved, Found)
    assert retrieved.readings[0].receipt_id == receipt_id
    again = vendor.perform(call)
    assert isinstance(again, Receipt)
    assert again.wire.replayed
    assert again.reading.receipt_id == receipt_id
    mine = sandbox.requests(account.vendor_account, call.key.hex())
    assert [(row["path"], row["key"]) for row in mine] == [(call.path, call.key.hex())] * 2
    assert len({row["body_sha256"] for row in mine}) == 1
    assert {row["api_version"] for row in mine} == {call.api_version}
    assert len(sandbox.effects(account.vendor_account, call.key.hex())) == 1
    assert sandbox.oracle(account.vendor_account)["violations"] == []


def test_the_same_call_gives_the_same_bytes_from_another_process_image(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    """The body is made from the row alone: JSON read back gives the same bytes on the wire."""
    params = {**CHARGE, "metadata": {"z": 1, "a": "é", "flag": True}, "description": "ümläut & ="}
    call = call_of(params=params, account=account)
    vendor.perform(call)
    reread = replace(call, params=json.loads(json.dumps(dict(call.params))))
    assert isinstance(vendor.perform(reread), Receipt)
    requests = sandbox.requests(account.vendor_account, call.key.hex())
    assert len({row["body_sha256"] for row in requests}) == 1


def test_a_decline_is_refused_under_the_key_and_reads_the_same_everywhere(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(params={**CHARGE, "payment_method": "pm_card_radarBlock"}, account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Refused)
    assert outcome.covers_key
    assert outcome.reading is not None
    found = vendor.look_up(call, since(sandbox, account))
    assert isinstance(found, Found)
    assert replace(found.readings[0], vendor_time=0, document="") == replace(
        outcome.reading, vendor_time=0, document=""
    )
    replay = vendor.perform(call)
    assert isinstance(replay, Refused)
    assert replay.wire.replayed


def test_a_decline_of_somebody_else_is_not_taken_for_ours(
    vendor: StripeVendor, sandbox: Sandbox, account: Account, world: World
) -> None:
    """The target was declined before; our own confirm was lost and says nothing about it."""
    target = world.unpaid()
    declined = {"payment_intent": target, "payment_method": "pm_card_radarBlock"}
    other = world.call("payment_intents.confirm", declined)
    assert isinstance(vendor.perform(other), Refused)
    assert isinstance(vendor.look_up(other, since(sandbox, account)), Found)
    ours = world.call("payment_intents.confirm", {"payment_intent": target})
    assert isinstance(vendor.look_up(ours, since(sandbox, account)), Absent)


def test_a_validation_error_does_not_cover_the_key(vendor: StripeVendor, account: Account) -> None:
    outcome = vendor.perform(call_of(params={**CHARGE, "payment_method": "nope"}, account=account))
    assert isinstance(outcome, Refused)
    assert not outcome.covers_key


def test_an_executed_400_covers_the_key_at_once_and_when_replayed(
    vendor: StripeVendor, world: World
) -> None:
    call = world.call("payment_intents.capture", {"payment_intent": world.unpaid()})
    for _ in range(2):
        outcome = vendor.perform(call)
        assert isinstance(outcome, Refused)
        assert outcome.covers_key
    assert outcome.wire.replayed


def test_a_drifted_body_is_an_alarm_and_no_refusal(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account=account)
    landed(vendor, call)
    outcome = vendor.perform(replace(call, params={**call.params, "amount": 2000}))
    assert isinstance(outcome, Lost)
    assert outcome.veto == "key_mismatch"
    assert len(sandbox.effects(account.vendor_account)) == 1


@pytest.mark.parametrize("word", ["processing", "requires_action", "requires_capture", "on_hold"])
def test_a_200_that_is_not_paid_is_not_called_paid(
    word: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    """B38."""
    sandbox.fault(f"status:{word}", account=account.vendor_account)
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Receipt)
    assert outcome.reading.word == word
    assert outcome.reading.business is not Business.PAID
    found = vendor.look_up(call, since(sandbox, account))
    assert isinstance(found, Found)
    assert found.readings[0].business is outcome.reading.business


def test_a_refund_shows_on_the_payment_that_it_gave_back(
    vendor: StripeVendor, world: World, account: Account, sandbox: Sandbox
) -> None:
    call = world.call("payment_intents.create", CHARGE)
    receipt_id = landed(vendor, call)
    world.make("refunds.create", payment_intent=receipt_id, amount=1)
    partly = vendor.retrieve(call, receipt_id)
    assert isinstance(partly, Found)
    assert (partly.readings[0].business, partly.readings[0].word) == (
        Business.PAID, "partially_refunded")  # fmt: skip
    world.make("refunds.create", payment_intent=receipt_id)
    for looked in (
        vendor.retrieve(call, receipt_id),
        vendor.look_up(call, since(sandbox, account)),
    ):
        assert isinstance(looked, Found)
        assert looked.readings[0].business is Business.REVERSED


def test_checkout_marks_the_object_that_is_born_of_the_session(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    """B34: metadata of a session does not reach its payment unless it is said twice."""
    for mode, inner in [
        ("payment", "payment_intent_data"),
        ("subscription", "subscription_data"),
        ("setup", "setup_intent_data"),
    ]:
        call = call_of("checkout.sessions.create", {"mode": mode, "success_url": "https://a.b"})
        ours = {"outbox_id": str(call.intent_id), "outbox_key": call.key.hex()}
        assert call.params["metadata"] == ours
        assert call.params[inner]["metadata"] == ours
        landed(vendor, replace(call, account=account))


def test_the_client_follows_a_credential_that_was_replaced(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    landed(vendor, call_of(account=account))
    other = replace(account, credential=sandbox.api_key(account.name + "b"), vendor_account="")
    landed(vendor, call_of(account=other))
    assert len(sandbox.effects(account.vendor_account)) == 1
    assert len(sandbox.effects(account.vendor_account + "b")) == 1


def test_many_threads_use_one_adapter(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    calls = [call_of(account=account) for _ in range(24)]
    outcomes: list[Any] = []

    def work(own: list[Call]) -> None:
        outcomes.extend((call, vendor.perform(call)) for call in own)

    threads = [threading.Thread(target=work, args=(calls[n::6],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 24
    for call, outcome in outcomes:
        assert isinstance(outcome, Receipt)
        assert outcome.reading.owner == str(call.intent_id)
    assert sandbox.oracle(account.vendor_account)["violations"] == []

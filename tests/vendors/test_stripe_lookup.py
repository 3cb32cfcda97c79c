"""Looking for an intent's objects: everything is read to its end, or nothing was proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outbox.contract import Account, Call
from outbox.outcomes import Absent, Business, Found, Receipt, Standing
from tests.vendors.raw_server import Pages, RawServer, page
from tests.vendors.stripe_calls import CHARGE, at, call_of, payment_intent, since
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

UNPAID = {"amount": 5, "currency": "usd"}


def marks_of(call: Call) -> dict[str, str]:
    return {"outbox_id": str(call.intent_id), "outbox_key": call.key.hex()}


def plant(sandbox: Sandbox, call: Call, **fields: Any) -> str:
    """A second object with the call's marks, made without the call's key."""
    params = {**UNPAID, "metadata": marks_of(call)}
    planted = sandbox.plant(call.account.vendor_account, "payment_intents.create", params, **fields)
    return str(planted["id"])


def test_objects_of_others_are_not_ours_however_many_pages_they_fill(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(params=UNPAID, account=account)
    other = call_of(params=UNPAID, account=account)
    began = since(sandbox, account)
    oldest = plant(sandbox, call)
    for _ in range(120):
        plant(sandbox, other)
    assert len(sandbox.objects(account.vendor_account, "payment_intents")) == 121
    found = vendor.look_up(call, began)
    assert isinstance(found, Found)
    assert [reading.receipt_id for reading in found.readings] == [oldest]


def test_a_second_object_is_told_and_never_dropped(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account=account)
    assert isinstance(vendor.perform(call), Receipt)
    plant(sandbox, call)
    found = vendor.look_up(call, since(sandbox, account))
    assert isinstance(found, Found)
    assert len(found.readings) == 2


def test_the_look_up_reads_only_since_the_time_it_was_given(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account=account)
    assert isinstance(vendor.perform(call), Receipt)
    assert isinstance(vendor.look_up(call, since(sandbox, account) + 3600), Absent)


def test_an_object_with_another_amount_is_found_with_that_amount(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account=account)
    plant(sandbox, call)
    found = vendor.look_up(call, since(sandbox, account))
    assert isinstance(found, Found)
    assert found.readings[0].amount_minor == 5


def test_events_that_lag_do_not_hide_what_the_list_has(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.set_account(account.vendor_account, events_lag_s=3600)
    call = call_of(account=account)
    assert isinstance(vendor.perform(call), Receipt)
    assert isinstance(vendor.look_up(call, since(sandbox, account)), Found)


def test_an_object_that_only_an_event_shows_is_found_as_it_is_now(vendor: StripeVendor) -> None:
    call = call_of(account=at(""))
    request = {"id": "req_1", "idempotency_key": call.key.hex()}
    bare = {**payment_intent(call, status="processing"), "metadata": {}}
    event = {"id": "evt_1", "created": 7, "data": {"object": bare}, "request": request}

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/events":
            return page(event)
        if path == "/v1/payment_intents/pi_1":
            return "200 OK", payment_intent(call, status="succeeded")
        return page()

    with RawServer(Pages(listed)) as server:
        found = vendor.look_up(replace(call, account=at(server.url)), 0)
    assert isinstance(found, Found)
    assert found.readings[0].business is Business.PAID


def test_an_object_that_was_deleted_since_is_found_by_its_event(vendor: StripeVendor) -> None:
    call = call_of("customers.create", {"name": "x"})
    customer = {"id": "cus_1", "object": "customer", "metadata": marks_of(call)}
    event = {"id": "evt_1", "created": 7, "data": {"object": customer}, "request": None}

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/events":
            return page(event)
        if path == "/v1/customers/cus_1":
            return "404 Not Found", {"error": {"code": "resource_missing"}}
        return page()

    with RawServer(Pages(listed)) as server:
        found = vendor.look_up(replace(call, account=at(server.url)), 0)
    assert isinstance(found, Found)
    assert (found.readings[0].receipt_id, found.readings[0].vendor_time) == ("cus_1", 7)


def test_a_mark_by_key_alone_is_enough(vendor: StripeVendor) -> None:
    call = call_of()
    ours = payment_intent(call, metadata={"outbox_key": call.key.hex()})

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        return page(ours) if path == "/v1/payment_intents" else page()

    with RawServer(Pages(listed)) as server:
        found = vendor.look_up(replace(call, account=at(server.url)), 0)
    assert isinstance(found, Found)
    assert found.readings[0].owner == str(call.intent_id)


def test_a_busy_account_is_read_by_customer(vendor: StripeVendor) -> None:
    call = call_of(params={**CHARGE, "customer": "cus_7"})
    pages = Pages(lambda _, __: page())
    with RawServer(pages) as server:
        assert isinstance(vendor.look_up(replace(call, account=at(server.url)), 1234), Absent)
    queries = dict(pages.queries)
    assert queries["/v1/payment_intents"] == {
        "created[gte]": "1234",
        "customer": "cus_7",
        "expand[0]": "data.latest_charge",
        "limit": "100",
    }
    assert queries["/v1/events"]["types[0]"] == "payment_intent.created"


def test_nothing_is_read_that_came_after_the_request_could_land(vendor: StripeVendor) -> None:
    call = call_of(params={**CHARGE, "customer": "cus_7"})
    pages = Pages(lambda _, __: page())
    with RawServer(pages) as server:
        placed = replace(call, account=at(server.url))
        assert isinstance(vendor.look_up(placed, 1234, 5678), Absent)
    spans = {path: (query["created[gte]"], query["created[lte]"]) for path, query in pages.queries}
    assert spans == {"/v1/payment_intents": ("1234", "5678"), "/v1/events": ("1234", "5678")}


def test_cancelled_subscriptions_are_listed_too(vendor: StripeVendor) -> None:
    call = call_of("subscriptions.create", {"customer": "cus_7", "items": [{"price": "price_1"}]})
    pages = Pages(lambda _, __: page())
    with RawServer(pages) as server:
        vendor.look_up(replace(call, account=at(server.url)), 1)
    assert dict(pages.queries)["/v1/subscriptions"]["status"] == "all"


def test_retrieve_gives_only_what_is_ours(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    call, other = call_of(account=account), call_of(account=account)
    mine, others = vendor.perform(call), vendor.perform(other)
    assert isinstance(mine, Receipt)
    assert isinstance(others, Receipt)
    found = vendor.retrieve(call, mine.reading.receipt_id)
    assert isinstance(found, Found)
    assert found.readings[0].standing is Standing.LANDED
    for wrong in (others.reading.receipt_id, "pi_missing", "../customers", "", "pi 1", "pi_é"):
        assert isinstance(vendor.retrieve(call, wrong), Absent)


def test_a_capture_is_settled_by_the_event_that_names_its_key(vendor: StripeVendor) -> None:
    """The target has moved on since (a refund, a dispute): the event still tells."""
    call = call_of("payment_intents.capture", {"payment_intent": "pi_1"})
    bare = {"id": "pi_1", "object": "payment_intent", "currency": "usd", "livemode": False}
    request = {"id": None, "idempotency_key": call.key.hex()}
    taken = {**bare, "status": "succeeded", "amount_received": 9}
    event = {"id": "evt_1", "created": 7, "data": {"object": taken}, "request": request}

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/events":
            return page({**event, "request": "req_old_shape"}, event)
        return "200 OK", {**bare, "status": "unheard_of"}

    with RawServer(Pages(listed)) as server:
        found = vendor.look_up(replace(call, account=at(server.url)), 0)
    assert isinstance(found, Found)
    assert (found.source, found.readings[0].amount_minor) == ("events", 9)
    assert found.readings[0].owner == ""


def test_the_events_of_another_target_or_key_do_not_settle_a_capture(vendor: StripeVendor) -> None:
    call = call_of("payment_intents.capture", {"payment_intent": "pi_1"})
    bare = {"id": "pi_1", "object": "payment_intent", "livemode": False}
    taken = {**bare, "status": "succeeded"}
    by_us = {"id": None, "idempotency_key": call.key.hex()}

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/events":
            return page(
                {"id": "evt_1", "data": {"object": taken}, "request": {"idempotency_key": "x"}},
                {"id": "evt_2", "data": {"object": {**taken, "id": "pi_2"}}, "request": by_us},
                {"id": "evt_3", "data": None, "request": by_us},
            )
        return "200 OK", {**bare, "status": "requires_capture"}

    with RawServer(Pages(listed)) as server:
        assert isinstance(vendor.look_up(replace(call, account=at(server.url)), 0), Absent)

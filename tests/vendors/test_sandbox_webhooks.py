"""The webhook sender: who hears what, signatures as the SDK verifies them, and repeats."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import stripe

from tests.vendors.sandbox_shop import (
    CHARGE,
    SECRET,
    Receiver,
    Shop,
    open_shop,
    receiver,
    wait_until,
)
from vendors.sandbox.client import Sandbox, SandboxRefused


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


@pytest.fixture
def hooks(shop: Shop) -> Iterator[Receiver]:
    with receiver() as listening:
        shop.sandbox.add_endpoint(shop.name, listening.url, SECRET)
        shop.sandbox.set_account(shop.name, webhook_retry_s=[0.02, 0.02])
        yield listening
        shop.sandbox.reset(shop.name)


def customer(shop: Shop, key: str = "k1") -> dict[str, Any]:
    reply = shop.post("/v1/customers", {"metadata[outbox_id]": "i1"}, key)
    found: dict[str, Any] = json.loads(reply.body)
    return found


def settled(shop: Shop) -> None:
    assert shop.sandbox.wait_for_deliveries(shop.name)


def test_an_event_arrives_signed_with_its_request_and_a_snapshot(
    shop: Shop, hooks: Receiver
) -> None:
    made = customer(shop)
    event = hooks.next_event()
    assert (event["type"], event["data"]["object"]) == ("customer.created", made)
    assert event["request"]["idempotency_key"] == "k1"
    assert event["request"]["id"] == shop.sandbox.requests(shop.name, "k1")[0]["id"]
    assert (event["livemode"], event["pending_webhooks"]) == (False, 1)
    settled(shop)
    assert hooks.nothing_more()
    (row,) = shop.sandbox.deliveries(shop.name)
    assert (row["state"], row["tries"], row["status"]) == ("done", 1, 200)


def test_an_endpoint_made_through_the_api_gets_the_events_it_asked_for(shop: Shop) -> None:
    with receiver() as listening:
        endpoint = shop.client.v1.webhook_endpoints.create(
            {
                "url": listening.url,
                "enabled_events": ["payment_intent.succeeded"],
                "api_version": "2025-03-31.basil",
            }
        )
        assert endpoint.secret is not None
        shop.charge("k1")
        header, body = listening.next()
        event = stripe.Webhook.construct_event(body, header, endpoint.secret)
        assert (event.type, event.api_version) == ("payment_intent.succeeded", "2025-03-31.basil")
        settled(shop)
        assert listening.nothing_more()
        shop.client.v1.webhook_endpoints.delete(endpoint.id)
        shop.charge("k2")
        assert len(shop.sandbox.deliveries(shop.name)) == 1


def test_a_refused_delivery_is_repeated_with_a_new_signature_until_it_is_given_up(
    shop: Shop, hooks: Receiver
) -> None:
    hooks.status = 500
    customer(shop)
    settled(shop)
    tries = [hooks.next() for _ in range(3)]
    assert hooks.nothing_more()
    assert len({body for _, body in tries}) == 1
    (row,) = shop.sandbox.deliveries(shop.name)
    assert (row["state"], row["tries"], row["status"]) == ("given_up", 3, 500)
    failed = shop.client.v1.events.list({"delivery_success": False})
    assert [event.id for event in failed.data] == [row["event_id"]]
    assert shop.client.v1.events.list({"delivery_success": True}).data == []


def test_a_redirect_is_not_followed_and_counts_as_a_failure(shop: Shop, hooks: Receiver) -> None:
    hooks.status = 302
    customer(shop)
    hooks.next()
    hooks.status = 200
    settled(shop)
    (row,) = shop.sandbox.deliveries(shop.name)
    assert row["state"] in ("done", "given_up")
    assert row["tries"] > 1


def test_a_platform_hears_of_its_connected_accounts_on_a_connect_endpoint(shop: Shop) -> None:
    other = f"acct_under_{shop.name}"
    with receiver() as listening:
        shop.sandbox.add_endpoint(shop.name, listening.url, SECRET, connect=True)
        customer(shop)
        shop.client.v1.customers.create({}, {"stripe_account": other})
        event = listening.next_event()
        assert event["account"] == other
        assert listening.nothing_more()


def test_two_secrets_give_two_signatures(shop: Shop) -> None:
    with receiver() as listening:
        shop.sandbox.add_endpoint(shop.name, listening.url, [SECRET, "whsec_older"])
        customer(shop)
        header, body = listening.next()
        for secret in (SECRET, "whsec_older"):
            assert stripe.Webhook.construct_event(body, header, secret).type == "customer.created"


def test_a_hand_made_event_is_delivered_as_given(shop: Shop, hooks: Receiver) -> None:
    event = {"id": "evt_1", "object": "event", "type": "charge.refunded", "request": None}
    shop.sandbox.deliver(shop.name, hooks.url, SECRET, event=event)
    assert hooks.next_event() == event
    shop.sandbox.deliver(shop.name, hooks.url, "whsec_other", body="not json", skew_s=-1000)
    header, body = hooks.next()
    assert body == b"not json"
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(body.decode(), header, SECRET)
    stripe.WebhookSignature.verify_header(body.decode(), header, "whsec_other")


def test_signatures_follow_the_vendors_clock(shop: Shop, hooks: Receiver) -> None:
    shop.sandbox.set_account(shop.name, clock_offset_s=-3600)
    customer(shop)
    header, body = hooks.next()
    with pytest.raises(stripe.SignatureVerificationError, match="tolerance"):
        stripe.Webhook.construct_event(body, header, SECRET)
    event = stripe.Webhook.construct_event(body, header, SECRET, tolerance=4000)
    assert event.created < time.time() - 3500


def test_a_receiver_that_is_down_gets_the_event_when_it_is_back(shop: Shop) -> None:
    with receiver() as gone:
        url = gone.url
    shop.sandbox.set_account(shop.name, webhook_retry_s=[0.05] * 200)
    shop.sandbox.add_endpoint(shop.name, url, SECRET)
    customer(shop)
    wait_until(lambda: shop.sandbox.deliveries(shop.name)[0]["tries"] > 0)
    assert shop.sandbox.deliveries(shop.name)[0]["status"] is None
    with receiver(urlsplit(url).port or 0) as back:
        assert back.next_event()["type"] == "customer.created"
        settled(shop)


def test_what_waits_for_a_receiver_that_moved_goes_to_its_new_address(shop: Shop) -> None:
    with receiver() as gone:
        url = gone.url
    shop.sandbox.set_account(shop.name, webhook_retry_s=[0.05] * 200)
    old = shop.sandbox.add_endpoint(shop.name, url, SECRET)
    customer(shop)
    wait_until(lambda: shop.sandbox.deliveries(shop.name)[0]["tries"] > 0)
    with receiver() as moved:
        new = shop.sandbox.add_endpoint(shop.name, moved.url, SECRET)
        shop.sandbox.replace_endpoint(old, by=new)
        assert moved.next_event()["type"] == "customer.created"
        settled(shop)
    assert [e["id"] for e in shop.sandbox.endpoints(shop.name)] == [new]


def test_only_this_machine_is_ever_delivered_to(shop: Shop) -> None:
    for url in ("http://example.com/", "https://127.0.0.1/", "ftp://127.0.0.1/"):
        with pytest.raises(SandboxRefused, match=r"^url: "):
            shop.sandbox.add_endpoint(shop.name, url, SECRET)
        refused = shop.post("/v1/webhook_endpoints", {"url": url, "enabled_events[]": "*"}, "k")
        assert refused.status == 400


def test_no_event_is_sent_for_a_refused_or_replayed_request(shop: Shop, hooks: Receiver) -> None:
    shop.post("/v1/payment_intents", {**CHARGE, "colour": "red"}, "bad")
    for _ in range(2):
        customer(shop)
    settled(shop)
    hooks.next_event()
    assert hooks.nothing_more()

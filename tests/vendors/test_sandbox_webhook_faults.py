"""Every webhook fault, as a receiver sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stripe

from tests.vendors.sandbox_shop import (
    SECRET,
    Receiver,
    Shop,
    open_shop,
    receiver,
)
from vendors.sandbox.client import Sandbox
from vendors.sandbox.faults import WEBHOOK_KINDS


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


def fault(shop: Shop, kind: str, **fields: Any) -> None:
    shop.sandbox.webhook_fault(kind, account=shop.name, **fields)


def test_a_duplicate_is_the_same_event_twice(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "duplicate")
    customer(shop)
    assert hooks.next_event()["id"] == hooks.next_event()["id"]


def test_a_second_event_tells_the_same_change_under_another_id(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "second_event")
    made = customer(shop)
    one, two = hooks.next_event(), hooks.next_event()
    assert one["id"] != two["id"]
    assert one["data"]["object"] == two["data"]["object"] == made
    assert len(shop.client.v1.events.list().data) == 2


def test_reordered_events_arrive_last_first(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "reorder")
    shop.charge("k1")
    types = [hooks.next_event()["type"] for _ in range(3)]
    assert types == ["payment_intent.succeeded", "charge.succeeded", "payment_intent.created"]


def test_a_delayed_event_comes_after_the_others(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "delay", type="payment_intent.created", after_s=0.3)
    shop.charge("k1")
    types = [hooks.next_event()["type"] for _ in range(3)]
    assert types[2] == "payment_intent.created"


def test_a_wrong_secret_does_not_verify(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "wrong_secret", first_tries=1)
    hooks.status = 400
    customer(shop)
    header, body = hooks.next()
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, header, SECRET)
    hooks.status = 200
    assert hooks.next_event()["type"] == "customer.created"


def test_an_old_timestamp_is_refused_by_the_sdk(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "old_timestamp")
    customer(shop)
    header, body = hooks.next()
    with pytest.raises(stripe.SignatureVerificationError, match="tolerance"):
        stripe.Webhook.construct_event(body, header, SECRET)


def test_a_future_timestamp_is_not_refused_by_the_sdk(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "future_timestamp")
    customer(shop)
    header, body = hooks.next()
    assert stripe.Webhook.construct_event(body, header, SECRET)
    assert int(header.split(",")[0].removeprefix("t=")) > time.time() + 500


def test_of_two_signatures_the_second_is_the_good_one(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "two_signatures")
    customer(shop)
    header, body = hooks.next()
    assert header.count("v1=") == 2
    assert stripe.Webhook.construct_event(body, header, SECRET)
    first_only = ",".join(header.split(",")[:2])
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, first_only, SECRET)


def test_an_event_that_is_never_delivered_is_in_the_events_list(
    shop: Shop, hooks: Receiver
) -> None:
    fault(shop, "never")
    customer(shop)
    settled(shop)
    assert hooks.nothing_more()
    (event,) = shop.client.v1.events.list({"delivery_success": False}).data
    assert event.type == "customer.created"


def test_an_event_can_arrive_before_the_answer(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "before_answer", type="payment_intent.succeeded")
    hooks.status = 503
    shop.sandbox.set_account(shop.name, webhook_retry_s=[0.2])
    shop.charge("k1")
    (request,) = shop.sandbox.requests(shop.name, "k1")
    events = {d["event_type"]: d for d in shop.sandbox.deliveries(shop.name)}
    assert events["payment_intent.succeeded"]["tries"] == 2
    assert request["answered_at"] - request["arrived_at"] >= 0.2


def test_a_held_answer_does_not_wait_for_ever(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "before_answer", after_s=0.1)
    hooks.status = 503
    shop.sandbox.set_account(shop.name, webhook_retry_s=[60])
    assert customer(shop)["object"] == "customer"


def test_an_event_for_an_unknown_key_comes_first(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "unknown_key")
    made = customer(shop)
    by_key = {
        event["request"]["idempotency_key"]: event for event in (hooks.next_event() for _ in "12")
    }
    ours = by_key.pop("k1")
    assert ours["data"]["object"]["id"] == made["id"]
    (foreign,) = by_key.values()
    assert foreign["data"]["object"]["id"] != made["id"]
    assert foreign["data"]["object"]["metadata"] == {}


def test_an_event_may_have_no_request(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "null_request")
    customer(shop)
    event = hooks.next_event()
    assert event["request"] is None
    assert event["data"]["object"]["metadata"] == {"outbox_id": "i1"}


def test_an_event_may_have_lost_its_metadata(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "no_metadata")
    customer(shop)
    event = hooks.next_event()
    assert event["data"]["object"]["metadata"] == {}
    assert event["request"]["idempotency_key"] == "k1"


def test_the_signature_covers_the_bytes_as_sent(shop: Shop, hooks: Receiver) -> None:
    fault(shop, "pretty")
    customer(shop)
    header, body = hooks.next()
    assert body.startswith(b"{\n  ")
    assert stripe.Webhook.construct_event(body, header, SECRET)
    compact = json.dumps(json.loads(body), separators=(",", ":"))
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(compact, header, SECRET)


def test_every_webhook_fault_is_tried_in_this_file() -> None:
    source = Path(__file__).read_text()
    assert [kind for kind in WEBHOOK_KINDS if f'fault(shop, "{kind}"' not in source] == []

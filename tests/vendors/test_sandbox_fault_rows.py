"""Fault rows: which requests they hit, how they combine, and what a status word does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import stripe

from tests.vendors.sandbox_shop import CHARGE, WAIT_S, Shop, open_shop
from vendors.sandbox.client import Sandbox, SandboxRefused


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


@pytest.mark.parametrize("word", ["processing", "requires_capture", "canceled", "on_hold"])
def test_a_status_word_is_what_the_charge_ends_with(shop: Shop, word: str) -> None:
    shop.sandbox.fault(f"status:{word}", account=shop.name)
    intent = json.loads(shop.charge("k1").body)
    assert (intent["status"], intent["amount_received"]) == (word, 0)


def test_a_status_word_combines_with_a_lost_answer_and_the_vendor_moves_it_on(shop: Shop) -> None:
    shop.sandbox.fault("status:processing", account=shop.name)
    shop.sandbox.fault("lost_ack", account=shop.name, attempts=[1])
    assert shop.charge("k1").lost == "reset"
    intent = json.loads(shop.charge("k1").body)
    assert intent["status"] == "processing"
    shop.sandbox.move(intent["id"], "succeeded")
    assert shop.client.v1.payment_intents.retrieve(intent["id"]).status == "succeeded"
    event = shop.sandbox.objects(shop.name, "events")[-1]
    assert (event["type"], event["request"]["id"]) == ("payment_intent.succeeded", None)


def test_metadata_asks_for_a_status_too(shop: Shop) -> None:
    reply = shop.post(
        "/v1/payment_intents", {**CHARGE, "metadata[sandbox_status]": "processing"}, "k"
    )
    assert json.loads(reply.body)["status"] == "processing"


@pytest.mark.parametrize(
    ("lose", "view"), [("reset", "reset"), ("hang", "silence"), ("close", "closed")]
)
def test_an_answer_is_lost_in_the_way_the_row_says(shop: Shop, lose: str, view: str) -> None:
    shop.sandbox.fault("lost_ack", account=shop.name, lose=lose)
    assert shop.charge("k1", timeout_s=0.3 if lose == "hang" else WAIT_S).lost == view
    assert len(shop.effects("k1")) == 1


def test_a_stored_500_can_be_lost_on_the_way(shop: Shop) -> None:
    shop.sandbox.fault("lost_ack", account=shop.name, attempts=[1])
    shop.sandbox.fault("stored_500_no_object", account=shop.name, attempts=[1])
    assert shop.charge("k1").lost == "reset"
    replayed = shop.charge("k1")
    assert (replayed.status, replayed.headers["idempotent-replayed"]) == (500, "true")
    assert shop.sandbox.requests(shop.name)[0]["fault"] == "lost_ack+stored_500_no_object"


@pytest.mark.parametrize(
    ("kind", "view"),
    [
        ("lost_ack", "reset"),
        ("half_body", "cut"),
        ("empty_200", 200),
        ("bad_gateway_after", 502),
        ("stored_500_no_object", 500),
        ("unavailable_503", 503),
        ("rate_limited_429", 429),
    ],
)
def test_reads_go_wrong_where_a_row_names_them(shop: Shop, kind: str, view: int | str) -> None:
    shop.charge("k1")
    shop.sandbox.fault(kind, account=shop.name, endpoint="payment_intents.list", times=1)
    assert shop.post("/v1/payment_intents", {}, method="GET").view == view
    again = shop.post("/v1/payment_intents", {}, method="GET")
    assert len(json.loads(again.body)["data"]) == 1


def test_a_row_selects_by_account_key_endpoint_attempt_and_number_of_times(
    shop: Shop, sandbox: Sandbox
) -> None:
    with open_shop(sandbox) as neighbour:
        sandbox.fault("unavailable_503", account=shop.name, key="k1", attempts=[2])
        sandbox.fault("forbidden_403", account=shop.name, endpoint="customers.*", times=1)
        sandbox.fault("bad_gateway_before", account=shop.name, endpoint="GET /v1/account")
        assert [shop.charge("k1").status for _ in range(3)] == [200, 503, 200]
        assert shop.charge("k2").status == 200
        assert [shop.post("/v1/customers", {}, f"c{n}").status for n in range(2)] == [403, 200]
        assert shop.post("/v1/account", {}, method="GET").status == 502
        assert neighbour.post("/v1/account", {}, method="GET").status == 200
        assert neighbour.post("/v1/customers", {}, "c").status == 200


def test_connections_are_refused_while_the_listener_is_closed(tmp_path: Any) -> None:
    with Sandbox.start(tmp_path / "vendor.sqlite") as own, open_shop(own) as shop:
        assert shop.charge("k1").status == 200
        own.accept_connections(False)
        with pytest.raises(stripe.APIConnectionError):
            shop.client.v1.customers.create({})
        own.accept_connections(True)
        assert shop.charge("k1").headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"kind": "lost_ark"}, "kind"),
        ({"kind": "lost_ack", "lose": "maybe"}, "lose"),
        ({"kind": "lost_ack", "attempts": 1}, "attempts"),
        ({"kind": "slow", "after_s": "long"}, "after_s"),
        ({"kind": "slow", "after": 1}, "after"),
    ],
)
def test_a_wrong_fault_row_is_refused_by_name(shop: Shop, row: dict[str, Any], named: str) -> None:
    with pytest.raises(SandboxRefused, match=rf"^{named}: "):
        shop.sandbox.fault(account=shop.name, **row)

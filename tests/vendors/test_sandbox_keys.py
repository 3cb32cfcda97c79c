"""The idempotency layer of the sandbox, and the order of the layers around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import stripe

from tests.vendors.sandbox_shop import CHARGE, Shop, open_shop, response_of
from vendors.sandbox.client import Sandbox

DAY_S = 24 * 3600


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def error(reply: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)["error"]
    return found


def test_a_replay_has_the_same_status_and_bytes_and_says_so(shop: Shop) -> None:
    first, second = shop.charge("k1"), shop.charge("k1")
    assert (first.status, first.body) == (second.status, second.body)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["original-request"] == first.headers["request-id"]
    assert second.headers["request-id"] != first.headers["request-id"]
    assert second.headers["idempotency-key"] == "k1"
    assert len(shop.effects("k1")) == 1


def test_the_sdk_sees_a_replay(shop: Shop) -> None:
    params: Any = {"email": "a@example.com"}
    made = [shop.client.v1.customers.create(params, {"idempotency_key": "k"}) for _ in range(2)]
    assert made[0].id == made[1].id
    seen = [response_of(one).headers.get("Idempotent-Replayed") for one in made]
    assert seen == [None, "true"]
    assert response_of(made[1]).idempotency_key == "k"


def test_the_order_of_parameters_does_not_matter_and_their_values_do(shop: Shop) -> None:
    assert shop.post("/v1/customers", {"email": "a", "name": "b"}, "k1").status == 200
    assert shop.post("/v1/customers", {"name": "b", "email": "a"}, "k1").status == 200
    other = shop.post("/v1/customers", {"email": "a", "name": "c"}, "k1")
    assert (other.status, error(other)["type"]) == (400, "idempotency_error")
    assert "idempotent-replayed" not in other.headers


def test_a_key_belongs_to_one_endpoint_even_with_the_same_parameters(shop: Shop) -> None:
    form = {"metadata[a]": "1"}
    assert shop.post("/v1/customers", form, "k1").status == 200
    assert error(shop.post("/v1/setup_intents", form, "k1"))["type"] == "idempotency_error"
    intent = shop.client.v1.payment_intents.create({"amount": 5, "currency": "usd"})
    with pytest.raises(stripe.IdempotencyError):
        shop.client.v1.payment_intents.confirm(intent.id, {}, {"idempotency_key": "k1"})


def test_a_key_belongs_to_one_account(shop: Shop, sandbox: Sandbox) -> None:
    with open_shop(sandbox) as neighbour:
        assert shop.charge("k1").body != neighbour.charge("k1").body
    connected = shop.charge("k1", Stripe_Account="acct_connected_to_" + shop.name)
    assert "idempotent-replayed" not in connected.headers


def test_test_mode_and_live_mode_share_nothing(shop: Shop) -> None:
    live = shop.charge("k1", Authorization=f"Bearer sk_live_{shop.name}")
    test = shop.charge("k1", Authorization=f"Bearer rk_test_{shop.name}")
    assert json.loads(live.body)["livemode"] is True
    assert json.loads(test.body)["livemode"] is False
    assert "idempotent-replayed" not in test.headers
    assert len(shop.sandbox.effects(f"acct_{shop.name}/live")) == 1


def test_a_key_is_forgotten_24_hours_after_its_first_use_by_the_vendors_clock(shop: Shop) -> None:
    shop.charge("k1")
    shop.sandbox.set_account(shop.name, clock_offset_s=DAY_S - 60)
    assert shop.charge("k1").headers["idempotent-replayed"] == "true"
    shop.sandbox.set_account(shop.name, clock_offset_s=DAY_S + 1)
    assert "idempotent-replayed" not in shop.charge("k1").headers
    assert len(shop.effects("k1")) == 2
    assert set(shop.violations()) == {"post_after_window", "more_than_one_effect"}


def test_the_window_of_an_account_can_be_shorter(shop: Shop) -> None:
    shop.sandbox.set_account(shop.name, key_window_s=40)
    shop.charge("k1")
    shop.sandbox.set_account(shop.name, clock_offset_s=41)
    assert "idempotent-replayed" not in shop.charge("k1").headers
    assert set(shop.violations()) == {"post_after_window", "more_than_one_effect"}


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("/v1/payment_intents", {**CHARGE, "payment_method": "pm_card_chargeDeclined"}, 402),
        ("/v1/refunds", {"charge": "CHARGE", "amount": 99999}, 400),
        ("/v1/payment_intents/INTENT/cancel", {}, 400),
        ("/v1/payment_intents/INTENT/capture", {}, 400),
    ],
)
def test_what_execution_refused_is_stored(
    shop: Shop, path: str, form: dict[str, Any], status: int
) -> None:
    intent = json.loads(shop.charge("paid").body)
    path = path.replace("INTENT", intent["id"])
    form = {n: str(v).replace("CHARGE", intent["latest_charge"]) for n, v in form.items()}
    first, second = shop.post(path, form, "k1"), shop.post(path, form, "k1")
    assert first.status == second.status == status
    assert first.body == second.body
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"amount": 5, "currency": "usd", "colour": "red"}, 400, "parameter_unknown"),
        ({"currency": "usd"}, 400, "parameter_missing"),
        ({"amount": "", "currency": "usd"}, 400, "parameter_invalid_empty"),
        ({"amount": "1.5", "currency": "usd"}, 400, "parameter_invalid_integer"),
        ({"amount": 0, "currency": "usd"}, 400, "parameter_invalid_integer"),
        ({"amount": 5, "currency": "usd", "customer": "cus_none"}, 400, "resource_missing"),
    ],
)
def test_what_validation_refused_is_not_stored(
    shop: Shop, form: Mapping[str, Any], status: int, code: str
) -> None:
    refused = shop.post("/v1/payment_intents", form, "k1")
    assert (refused.status, error(refused)["code"]) == (status, code)
    assert error(refused)["type"] == "invalid_request_error"
    good = shop.charge("k1")
    assert good.status == 200
    assert "idempotent-replayed" not in good.headers


@pytest.mark.parametrize(
    "form",
    [
        {"customer[a]": "1"},
        {"payment_method[]": "pm_card_visa"},
        {"confirm[a]": "true"},
        {"automatic_payment_methods": "x"},
        {"expand": "customer"},
        {"currency[a]": "usd"},
    ],
)
def test_a_parameter_of_another_shape_is_refused_by_its_name(
    shop: Shop, form: Mapping[str, str]
) -> None:
    (name,) = (written.split("[")[0] for written in form)
    given = {k: v for k, v in {"amount": 5, "currency": "usd"}.items() if k != name}
    shop.sandbox.set_account(shop.name, any_customer=True)
    refused = shop.post("/v1/payment_intents", {**given, **form}, "k1")
    assert (refused.status, error(refused)["param"]) == (400, name)
    assert error(refused)["type"] == "invalid_request_error"


def test_authentication_comes_before_the_key_and_stores_nothing(shop: Shop) -> None:
    for wrong in ("", "Bearer nonsense", "Bearer pk_test_x", "Basic !!!", "Basic A"):
        assert shop.charge("k1", Authorization=wrong).status == 401
    assert "idempotent-replayed" not in shop.charge("k1").headers


def test_the_limiter_comes_before_the_key(shop: Shop) -> None:
    shop.charge("k1")
    shop.sandbox.set_account(shop.name, requests_per_s=0.5)
    answers = [shop.charge("k1") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert error(answers[1])["code"] == "rate_limit"
    assert answers[1].headers["retry-after"] == "1"


def test_the_key_comes_before_validation(shop: Shop) -> None:
    shop.charge("k1")
    drifted = shop.post("/v1/payment_intents", {"amount": -1, "colour": "red"}, "k1")
    assert error(drifted)["type"] == "idempotency_error"


def test_a_key_has_at_most_255_characters(shop: Shop) -> None:
    assert shop.charge("k" * 255).status == 200
    assert shop.charge("k" * 256).status == 400


def test_a_key_and_a_body_may_hold_any_characters(shop: Shop) -> None:
    for _ in range(2):
        reply = shop.post(
            "/v1/customers", {"name": "Zoë & Ümit=[1]"}, "ключ".encode().decode("latin-1")
        )
        assert json.loads(reply.body)["name"] == "Zoë & Ümit=[1]"
    assert reply.headers["idempotent-replayed"] == "true"
    assert len(shop.effects()) == 1


def test_keys_on_get_and_delete_have_no_effect(shop: Shop) -> None:
    a = json.loads(shop.charge("k1").body)["id"]
    b = json.loads(shop.charge("k2").body)["id"]
    for intent in (a, b):
        read = shop.post(f"/v1/payment_intents/{intent}", {}, "k3", method="GET")
        assert json.loads(read.body)["id"] == intent


def test_a_vendor_that_ignores_keys_executes_each_time(shop: Shop) -> None:
    shop.sandbox.set_account(shop.name, honours_keys=False)
    assert shop.charge("k1").body != shop.charge("k1").body
    assert len(shop.effects("k1")) == 2

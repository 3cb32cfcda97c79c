"""The oracle finds what a careless client did, and finds nothing where nothing was done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest

from tests.vendors.sandbox_shop import CHARGE, Shop, open_shop
from vendors.sandbox.client import Sandbox


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def body_changes(shop: Shop) -> None:
    shop.charge("k1")
    shop.post("/v1/payment_intents", {**CHARGE, "amount": 9}, "k1")


def a_validation_error_is_corrected_under_the_same_key(shop: Shop) -> None:
    shop.post("/v1/payment_intents", {**CHARGE, "amount": 0}, "k1")
    shop.charge("k1")


def endpoint_changes(shop: Shop) -> None:
    shop.post("/v1/customers", {}, "k1")
    shop.post("/v1/products", {}, "k1")


def version_changes(shop: Shop) -> None:
    shop.charge("k1", Stripe_Version="2026-10-28.endive")
    shop.charge("k1", Stripe_Version="2027-01-01.other")


def no_key(shop: Shop) -> None:
    shop.charge(None)


def one_intent_twice(shop: Shop) -> None:
    shop.sandbox.set_account(shop.name, honours_keys=False)
    shop.charge("k1")
    shop.charge("k1")


def one_intent_under_two_keys(shop: Shop) -> None:
    for key in ("k1", "k2"):
        shop.post("/v1/payment_intents", {**CHARGE, "metadata[outbox_id]": "i1"}, key)


def a_declined_charge_is_tried_under_another_key(shop: Shop) -> None:
    for key, card in (("k1", "pm_card_chargeDeclined"), ("k2", "pm_card_visa")):
        form = {**CHARGE, "payment_method": card, "metadata[outbox_id]": "i1"}
        shop.post("/v1/payment_intents", form, key)


def post_after_the_window(shop: Shop) -> None:
    shop.sandbox.fault("lost_request", account=shop.name, attempts=[1])
    shop.charge("k1")
    shop.sandbox.set_account(shop.name, clock_offset_s=24 * 3600 + 1)
    shop.charge("k1")


def post_after_the_window_of_the_first_that_left_its_key(shop: Shop) -> None:
    a_day_s = 24 * 3600 + 1
    shop.sandbox.fault("rate_limited_429", account=shop.name, attempts=[1])
    for days in range(3):
        shop.sandbox.set_account(shop.name, clock_offset_s=days * a_day_s)
        shop.charge("k1")
        assert bool(shop.violations()) == (days == 2)


def post_after_a_stored_500(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_no_object", account=shop.name)
    shop.charge("k1")
    shop.charge("k1")


def post_after_a_veto(shop: Shop) -> None:
    shop.sandbox.fault("do_not_retry", account=shop.name, attempts=[1])
    shop.charge("k1")
    shop.charge("k1")


@pytest.mark.parametrize(
    ("careless", "checks"),
    [
        (body_changes, {"body_changed"}),
        (a_validation_error_is_corrected_under_the_same_key, {"body_changed"}),
        (endpoint_changes, {"endpoint_changed"}),
        (version_changes, {"api_version_changed"}),
        (no_key, {"post_without_key"}),
        (one_intent_twice, {"more_than_one_effect"}),
        (one_intent_under_two_keys, {"more_than_one_effect", "two_keys_for_one_intent"}),
        (
            a_declined_charge_is_tried_under_another_key,
            {"more_than_one_effect", "two_keys_for_one_intent"},
        ),
        (post_after_the_window, {"post_after_window"}),
        (
            post_after_the_window_of_the_first_that_left_its_key,
            {"post_after_window", "more_than_one_effect"},
        ),
        (post_after_a_stored_500, {"post_after_stored_500"}),
        (post_after_a_veto, {"post_after_do_not_retry"}),
    ],
)
def test_a_planted_violation_is_found_and_no_other(
    shop: Shop, careless: Callable[[Shop], None], checks: set[str]
) -> None:
    careless(shop)
    assert set(shop.violations()) == checks


@pytest.mark.parametrize(
    "kind",
    ["lost_ack", "lost_request", "refuse", "rate_limited_429", "unavailable_503", "half_body"],
)
def test_a_client_that_repeats_the_same_bytes_under_the_same_key_did_nothing_wrong(
    shop: Shop, kind: str
) -> None:
    shop.sandbox.fault(kind, account=shop.name, attempts=[1, 2])
    for _ in range(3):
        shop.charge("k1")
    verdict = shop.sandbox.oracle(shop.name)
    assert verdict["violations"] == []
    assert verdict["effects_by_intent"]["k1"]["count"] == 1


def test_a_500_that_never_reached_the_client_is_no_reason_to_stop(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_no_object", account=shop.name)
    shop.sandbox.fault("lost_ack", account=shop.name, attempts=[1])
    shop.sandbox.fault("slow", account=shop.name, attempts=[2], after_s=0.2)
    assert shop.charge("k1").lost == "reset"
    assert shop.charge("k1", timeout_s=0.1).lost == "silence"
    assert shop.charge("k1").status == 500
    assert shop.violations() == []
    shop.charge("k1")
    assert shop.violations() == ["post_after_stored_500"]


def test_every_request_is_recorded_as_it_came(shop: Shop) -> None:
    form = {**CHARGE, "metadata[outbox_id]": "k1"}
    shop.sandbox.fault("lost_ack", account=shop.name, attempts=[1])
    shop.sandbox.set_account(shop.name, clock_offset_s=3600)
    for _ in range(2):
        shop.post("/v1/payment_intents", form, "k1", Stripe_Version="2026-10-28.endive")
    shop.post("/v1/payment_intents?limit=1", {}, method="GET")
    lost, replayed, read = shop.sandbox.requests(shop.name)
    assert (lost["attempt"], lost["status"], lost["answered_at"], lost["fault"]) == (
        1,
        None,
        None,
        "lost_ack",
    )
    assert (replayed["attempt"], replayed["status"], replayed["replayed"]) == (2, 200, 1)
    digest = hashlib.sha256(urlencode(form).encode()).hexdigest()
    assert lost["body_sha256"] == replayed["body_sha256"] == digest
    assert lost["api_version"] == "2026-10-28.endive"
    assert lost["operation"] == "payment_intents.create"
    assert 3599 < lost["at"] - lost["arrived_at"] < 3601
    assert (read["method"], read["key"], read["operation"]) == ("GET", None, "payment_intents.list")
    assert [row["id"] for row in shop.sandbox.requests(shop.name, "k1")] == [
        lost["id"],
        replayed["id"],
    ]


def test_effects_carry_the_intent_the_money_and_the_key(shop: Shop) -> None:
    form = {**CHARGE, "metadata[outbox_id]": "i1", "metadata[outbox_key]": "digest"}
    shop.post("/v1/payment_intents", form, "k1")
    (effect,) = shop.effects()
    assert {name: effect[name] for name in ("kind", "amount", "currency", "key", "outcome")} == {
        "kind": "payment_intent.create",
        "amount": 1200,
        "currency": "usd",
        "key": "k1",
        "outcome": "applied",
    }
    assert (effect["outbox_id"], effect["outbox_key"]) == ("i1", "digest")
    by_intent = shop.sandbox.oracle(shop.name)["effects_by_intent"]["i1"]
    assert (by_intent["count"], by_intent["amount"], by_intent["keys"]) == (1, 1200, ["k1"])


def test_the_oracle_cannot_be_seen_through_the_vendors_own_api(shop: Shop) -> None:
    for path in ("/effects", "/requests", "/oracle", "/v1/effects", "/faults"):
        assert shop.post(path, {}, method="GET").status == 404

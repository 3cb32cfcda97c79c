"""Every request fault: what the client sees, and what the vendor's ledger says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import stripe

from tests.vendors.sandbox_shop import Shop, open_shop, wait_until
from vendors.sandbox.client import Sandbox
from vendors.sandbox.faults import REQUEST_KINDS

# kind -> what the client of attempt 1 sees, effects after it, and what attempt 2 sees
SEEN: dict[str, tuple[int | str, int, int | str]] = {
    "refuse": ("reset", 0, 200),
    "lost_request": ("reset", 0, 200),
    "lost_ack": ("reset", 1, 200),
    "late_commit": ("reset", 0, 200),
    "slow": (200, 1, 200),
    "half_body": ("cut", 1, 200),
    "drip": (200, 1, 200),
    "empty_200": (200, 1, 200),
    "bad_gateway_before": (502, 0, 200),
    "bad_gateway_after": (502, 1, 200),
    "stored_500_no_object": (500, 0, 500),
    "stored_500_object_later": (500, 0, 500),
    "stored_500_rolled_back": (500, 2, 500),
    "in_use_409": ("reset", 0, 409),
    "rate_limited_429": (429, 0, 200),
    "lock_timeout_429": (429, 0, 200),
    "unavailable_503": (503, 0, 200),
    "redirect_302": (302, 0, 200),
    "redelivery": (200, 1, 200),
    "unauthorized_401": (401, 0, 200),
    "forbidden_403": (403, 0, 200),
    "do_not_retry": (503, 0, 200),
    "hang": ("silence", 0, 200),
    "pruned_early": (200, 1, 200),
    "version_changed_replay": (200, 1, 200),
}
REPLAYED_BY_ATTEMPT_2 = {
    "lost_ack", "slow", "half_body", "drip", "empty_200", "bad_gateway_after", "redelivery",
    "stored_500_no_object", "stored_500_object_later", "stored_500_rolled_back", "pruned_early",
    "version_changed_replay",
}  # fmt: skip
LATER_S = {"late_commit": 600, "stored_500_object_later": 600, "in_use_409": 600, "drip": 0.05}


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def test_the_table_below_covers_every_fault_there_is() -> None:
    assert set(SEEN) == set(REQUEST_KINDS)


@pytest.mark.parametrize("kind", SEEN)
def test_a_fault_hits_the_first_attempt_and_the_second_shows_what_was_stored(
    shop: Shop, kind: str
) -> None:
    shop.sandbox.fault(kind, account=shop.name, attempts=[1], after_s=LATER_S.get(kind, 0))
    seen, effects, then = SEEN[kind]
    first = shop.charge("k1", timeout_s=0.3 if kind == "hang" else 10)
    assert first.view == seen
    assert len(shop.effects("k1")) == effects
    second = shop.charge("k1")
    assert second.view == then
    assert (second.headers.get("idempotent-replayed") == "true") == (kind in REPLAYED_BY_ATTEMPT_2)
    if then == 200:
        assert len(shop.effects("k1")) == 1
    assert [
        r["fault"] for r in shop.sandbox.requests(shop.name, "k1") if r["origin"] == "client"
    ] == [
        kind,
        None,
    ]


def test_a_late_commit_lands_once_though_the_client_was_served_in_between(shop: Shop) -> None:
    shop.sandbox.fault("late_commit", account=shop.name, key="k1", attempts=[1], after_s=600)
    assert shop.charge("k1").lost == "reset"
    assert shop.effects() == []
    assert shop.charge("k1").status == 200
    shop.sandbox.release(shop.name)
    assert len(shop.effects("k1")) == 1
    late = shop.sandbox.requests(shop.name, "k1")[-1]
    assert (late["origin"], late["status"], late["replayed"]) == ("transport", 200, 1)


def test_a_late_commit_executes_by_itself_when_it_is_due(shop: Shop) -> None:
    shop.sandbox.fault("late_commit", account=shop.name, after_s=0.1)
    assert shop.charge("k1").lost == "reset"
    shop.sandbox.clear_faults(shop.name)
    wait_until(lambda: not shop.sandbox.held(shop.name))
    assert len(shop.effects("k1")) == 1
    client, transport = shop.sandbox.requests(shop.name, "k1")
    assert transport["arrived_at"] - client["arrived_at"] >= 0.1
    assert shop.charge("k1").headers["idempotent-replayed"] == "true"


def test_a_late_commit_after_the_key_was_pruned_is_a_second_effect(shop: Shop) -> None:
    shop.sandbox.fault("late_commit", account=shop.name, attempts=[1], after_s=600)
    shop.charge("k1")
    assert shop.charge("k1").status == 200
    shop.sandbox.set_account(shop.name, clock_offset_s=25 * 3600)
    shop.sandbox.release(shop.name)
    assert len(shop.effects("k1")) == 2
    assert shop.violations() == ["more_than_one_effect"]


def test_a_stored_500_whose_object_appears_later_has_an_event_without_a_request(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_object_later", account=shop.name, after_s=600)
    answer = shop.charge("k1")
    assert answer.status == 500
    assert answer.headers["stripe-should-retry"] == "false"
    assert shop.sandbox.objects(shop.name, "payment_intents") == []
    shop.sandbox.release(shop.name)
    (intent,) = shop.sandbox.objects(shop.name, "payment_intents")
    assert intent["metadata"] == {"outbox_id": "k1"}
    assert intent["status"] == "succeeded"
    for event in shop.sandbox.objects(shop.name, "events"):
        assert event["request"] == {"id": None, "idempotency_key": None}
    assert shop.charge("k1").body == answer.body
    (effect,) = shop.effects("k1")
    assert effect["outbox_id"] == "k1"


def test_a_stored_500_may_not_say_that_it_is_stored(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_no_object", account=shop.name, told=False)
    first, second = shop.charge("k1"), shop.charge("k1")
    assert (first.status, second.headers["idempotent-replayed"]) == (500, "true")
    assert "stripe-should-retry" not in first.headers | second.headers
    assert shop.violations() == ["post_after_stored_500"]


def test_a_rolled_back_charge_leaves_a_cancelled_intent_and_no_standing_effect(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_rolled_back", account=shop.name)
    shop.charge("k1")
    (intent,) = shop.sandbox.objects(shop.name, "payment_intents")
    assert intent["status"] == "canceled"
    assert shop.sandbox.objects(shop.name, "charges") == []
    types = [event["type"] for event in shop.sandbox.objects(shop.name, "events")]
    assert types == ["payment_intent.created", "payment_intent.canceled"]
    by_intent = shop.sandbox.oracle(shop.name)["effects_by_intent"]["k1"]
    assert (by_intent["count"], by_intent["reversed"]) == (0, 1)


def test_another_rolled_back_write_leaves_no_trace(shop: Shop) -> None:
    shop.sandbox.fault("stored_500_rolled_back", account=shop.name)
    assert shop.post("/v1/customers", {"email": "a@example.com"}, "k1").status == 500
    assert shop.sandbox.objects(shop.name, "customers") == []
    assert shop.effects() == []


def test_an_execution_that_lasts_answers_409_until_it_ends(shop: Shop) -> None:
    shop.sandbox.fault("in_use_409", account=shop.name, attempts=[1], after_s=600)
    assert shop.charge("k1").lost == "reset"
    busy = shop.charge("k1")
    error = json.loads(busy.body)["error"]
    assert (busy.status, error["code"]) == (409, "idempotency_key_in_use")
    assert "idempotent-replayed" not in busy.headers
    shop.sandbox.release(shop.name, "finish")
    replayed = shop.charge("k1")
    assert replayed.status == 200
    first = shop.sandbox.requests(shop.name, "k1")[0]
    assert replayed.headers["original-request"] == first["id"]
    assert shop.effects("k1")[0]["request_id"] == first["id"]


@pytest.mark.parametrize("kind", ["idempotency_error", "invalid_request_error"])
def test_the_type_of_a_409_is_selectable_and_the_sdk_raises_an_api_error(
    shop: Shop, kind: str
) -> None:
    shop.sandbox.set_account(shop.name, conflict_type=kind)
    shop.sandbox.fault("in_use_409", account=shop.name, attempts=[1], after_s=600)
    shop.post("/v1/customers", {}, "k1")
    with pytest.raises(stripe.APIError) as raised:
        shop.client.v1.customers.create({}, {"idempotency_key": "k1"})
    assert raised.value.http_status == 409
    assert raised.value.error is not None
    assert (raised.value.error.type, raised.value.error.code) == (kind, "idempotency_key_in_use")


def test_an_early_pruned_key_executes_again(shop: Shop) -> None:
    shop.sandbox.fault("pruned_early", account=shop.name, attempts=[2])
    one, two = shop.charge("k1"), shop.charge("k1")
    assert json.loads(one.body)["id"] != json.loads(two.body)["id"]
    assert len(shop.effects("k1")) == 2


def test_a_replay_in_another_version_has_the_same_object_in_other_bytes(shop: Shop) -> None:
    shop.sandbox.fault("version_changed_replay", account=shop.name, attempts=[2])
    one, two = shop.charge("k1"), shop.charge("k1")
    assert json.loads(one.body)["id"] == json.loads(two.body)["id"]
    assert one.body != two.body
    assert one.headers["stripe-version"] != two.headers["stripe-version"]


def test_redelivery_executes_once_where_keys_are_honoured_and_twice_where_not(shop: Shop) -> None:
    shop.sandbox.fault("redelivery", account=shop.name)
    assert shop.charge("k1").status == 200
    assert len(shop.effects("k1")) == 1
    shop.sandbox.set_account(shop.name, honours_keys=False)
    assert shop.charge("k2").status == 200
    assert len(shop.effects("k2")) == 2
    origins = [row["origin"] for row in shop.sandbox.requests(shop.name, "k2")]
    assert origins == ["client", "transport"]


def test_a_redirect_leads_a_trusting_client_to_somebody_elses_object(shop: Shop) -> None:
    other = json.loads(shop.charge("other").body)["id"]
    shop.sandbox.fault("redirect_302", account=shop.name, key="k1")
    assert shop.charge("k1").headers["location"] == f"/v1/payment_intents/{other}"
    wrong = shop.pay("k1")
    assert wrong.id == other
    assert shop.effects("k1") == []


def test_what_limits_and_vetoes_say_in_their_headers(shop: Shop) -> None:
    shop.sandbox.fault("rate_limited_429", account=shop.name, key="a", after_s=7)
    shop.sandbox.fault("lock_timeout_429", account=shop.name, key="b")
    shop.sandbox.fault("unavailable_503", account=shop.name, key="c")
    shop.sandbox.fault("do_not_retry", account=shop.name, key="d", status=500)
    assert shop.charge("a").headers["retry-after"] == "7"
    lock = shop.charge("b")
    assert json.loads(lock.body)["error"]["code"] == "lock_timeout"
    assert lock.headers["stripe-should-retry"] == "true"
    assert shop.charge("c").headers["stripe-should-retry"] == "true"
    veto = shop.charge("d")
    assert (veto.status, veto.headers["stripe-should-retry"]) == (500, "false")

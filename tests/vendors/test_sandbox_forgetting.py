"""Keys that the vendor forgets, and replays that it renders otherwise, as its clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.vendors.sandbox_shop import CHARGE, Shop, open_shop
from vendors.sandbox.client import Sandbox, SandboxRefused

HOUR = 3600.0
DAY = 24 * HOUR
# More than a test lasts: the vendor's clock runs on while it asks.
AWHILE = 60.0


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def _is_replayed_at(shop: Shop, age_s: float) -> bool:
    """Whether the key is still known so long after its first use, by the vendor's clock."""
    shop.sandbox.set_account(shop.name, clock_offset_s=age_s)
    return shop.charge("k1").headers.get("idempotent-replayed") == "true"


def test_a_key_is_forgotten_at_24_hours_exactly_and_by_the_vendors_clock_alone(shop: Shop) -> None:
    shop.charge("k1")
    first = shop.sandbox.requests(shop.name, "k1")[0]
    assert _is_replayed_at(shop, DAY - AWHILE)
    assert not _is_replayed_at(shop, DAY)
    last = shop.sandbox.requests(shop.name, "k1")[-1]
    assert DAY <= last["at"] - first["at"] < DAY + AWHILE
    assert last["arrived_at"] - first["arrived_at"] < AWHILE
    assert len(shop.effects("k1")) == 2


def test_a_key_is_forgotten_as_early_as_the_fault_says_and_not_before(shop: Shop) -> None:
    shop.sandbox.fault("pruned_early", account=shop.name, after_s=3 * HOUR)
    shop.charge("k1")
    assert _is_replayed_at(shop, 3 * HOUR - AWHILE)
    assert len(shop.effects("k1")) == 1
    assert not _is_replayed_at(shop, 3 * HOUR)
    assert len(shop.effects("k1")) == 2
    # The window was promised: it is the vendor that broke its word, and no client sent too late.
    assert shop.violations() == ["more_than_one_effect"]


def test_a_key_is_never_kept_longer_than_the_window_by_a_fault(shop: Shop) -> None:
    shop.sandbox.fault("pruned_early", account=shop.name, after_s=10 * DAY)
    shop.charge("k1")
    assert not _is_replayed_at(shop, DAY)


def test_only_the_key_that_a_row_names_is_forgotten_early(shop: Shop) -> None:
    shop.sandbox.fault("pruned_early", account=shop.name, key="k2", after_s=HOUR)
    for key in ("k1", "k2"):
        shop.charge(key)
    shop.sandbox.set_account(shop.name, clock_offset_s=2 * HOUR)
    for key in ("k1", "k2"):
        shop.charge(key)
    assert [len(shop.effects(key)) for key in ("k1", "k2")] == [1, 2]


@pytest.mark.parametrize("after_s", ["soon", True])
def test_a_time_that_is_no_number_is_refused_by_name(shop: Shop, after_s: object) -> None:
    with pytest.raises(SandboxRefused, match=r"^after_s: a number"):
        shop.sandbox.fault("pruned_early", account=shop.name, after_s=after_s)
    assert [row for row in shop.sandbox.faults() if row["account"] == f"acct_{shop.name}"] == []


def test_a_replay_of_another_version_moves_fields_and_keeps_the_object(shop: Shop) -> None:
    shop.sandbox.fault("version_changed_replay", account=shop.name)
    one, two = (json.loads(shop.charge("k1").body) for _ in range(2))
    assert isinstance(one["latest_charge"], str)
    assert "latest_charge" not in two
    assert two["charges"]["data"][0]["id"] == one["latest_charge"]
    for name in ("id", "object", "status", "amount", "currency", "metadata", "created", "livemode"):
        assert two[name] == one[name]
    first, second = shop.sandbox.requests(shop.name, "k1")
    assert (first["replayed"], second["replayed"]) == (0, 1)
    assert len(shop.effects("k1")) == 1


def test_a_refusal_is_replayed_in_another_version_too(shop: Shop) -> None:
    shop.sandbox.fault("version_changed_replay", account=shop.name)
    declined = {**CHARGE, "payment_method": "pm_card_chargeDeclined"}
    replies = [shop.post("/v1/payment_intents", declined, "k1") for _ in range(2)]
    assert [reply.status for reply in replies] == [402, 402]
    errors = [json.loads(reply.body)["error"] for reply in replies]
    assert errors[0]["code"] == errors[1]["code"]
    assert replies[1].headers["stripe-version"] != replies[0].headers["stripe-version"]

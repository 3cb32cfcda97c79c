"""The time policy: windows, margins and the orderings that keep a call inside its lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.contract import VendorContract
from outbox.contracts import contract_of
from outbox.policy import Policy

HOUR = 3600.0
STRIPE = contract_of("stripe")
KEYLESS = replace(STRIPE, honours_keys=False, window_s=None)
BLIND = replace(KEYLESS, can_look_up=False)


@pytest.mark.parametrize("policy", [Policy(), Policy.demo()], ids=["production", "demo"])
def test_the_shipped_policies_have_no_problem(policy: Policy) -> None:
    assert list(policy.problems()) == []
    assert policy.start_limit_s + policy.call_deadline_s + policy.start_slack_s < policy.lease_s


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lease_s": 55.0}, "lease_s"),
        ({"call_deadline_s": 25.0}, "lease_s"),
        ({"start_limit_s": 35.0}, "lease_s"),
        ({"soft_limit_s": 50.0}, "soft_limit_s"),
        ({"drain_budget_s": 60.0}, "soft_limit_s"),
        ({"hard_limit_s": 90.0}, "hard_limit_s"),
        ({"visibility_timeout_s": 120.0}, "visibility_timeout_s"),
        ({"batch": 0}, "batch"),
        ({"threads": 0}, "threads"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"children": 1}, "children"),
        ({"tick_drain_s": 0.0}, "tick_drain_s"),
        ({"tick_page_s": 0.0}, "tick_page_s"),
        ({"look_deadline_s": 0.0}, "look_deadline_s"),
    ],
)
def test_an_ordering_that_does_not_hold_is_named(changes: dict[str, Any], field: str) -> None:
    assert [name for name, _ in replace(Policy(), **changes).problems()] == [field]


def test_stripes_window_is_a_day_less_two_hours() -> None:
    assert Policy().usable_window_s(STRIPE) == 22 * HOUR
    assert Policy().ttl_s(STRIPE) == 4 * HOUR


def test_the_demos_window_ends_within_a_minute_and_after_its_page() -> None:
    demo = Policy.demo()
    adapted = demo.adapted(STRIPE)
    assert (adapted.window_s, adapted.margin_s, adapted.in_flight_bound_s) == (40, 10, 5)
    usable = demo.usable_window_s(STRIPE)
    assert usable == 30
    assert demo.ttl_s(STRIPE) + adapted.margin_s < (adapted.window_s or 0)


def test_a_vendor_without_keys_has_no_window() -> None:
    assert Policy().usable_window_s(KEYLESS) is None
    assert Policy().usable_window_s(replace(STRIPE, window_s=None)) is None
    assert Policy.demo().usable_window_s(KEYLESS) is None


def test_without_a_key_and_without_a_look_up_a_person_is_asked_soon() -> None:
    assert Policy().ttl_s(BLIND) == 900
    assert Policy().ttl_s(KEYLESS) == 4 * HOUR


def test_a_window_that_is_set_shorter_shortens_the_time_to_live_with_it() -> None:
    assert replace(Policy(), window_override_s=HOUR).ttl_s(STRIPE) == HOUR / 2


def test_no_setting_makes_a_vendor_remember_its_keys_for_longer() -> None:
    longer = replace(Policy(), window_override_s=48 * HOUR)
    assert longer.usable_window_s(STRIPE) == Policy().usable_window_s(STRIPE) == 22 * HOUR


def test_no_setting_lets_an_intent_wait_for_longer_than_the_window_allows() -> None:
    assert replace(Policy(), ttl_override_s=99 * HOUR).ttl_s(STRIPE) == 4 * HOUR
    assert replace(Policy(), ttl_override_s=99 * HOUR).ttl_s(BLIND) == 900


def test_a_tool_may_ask_for_an_earlier_page_and_never_for_a_later_one() -> None:
    assert Policy().ttl_s(STRIPE, 60) == 60
    assert Policy().ttl_s(STRIPE, 99 * HOUR) == 4 * HOUR


def test_a_window_shorter_than_its_margin_allows_no_re_send() -> None:
    assert Policy().usable_window_s(replace(STRIPE, window_s=300.0, margin_s=30.0)) == 0


CONTRACTS = st.builds(
    lambda window, margin, bound: replace(
        STRIPE, window_s=window, margin_s=margin, in_flight_bound_s=bound
    ),
    st.floats(1, 90 * 86400),
    st.floats(0, 86400),
    st.floats(0, 7200),
)


@given(CONTRACTS)
def test_no_send_can_still_land_after_the_window(contract: VendorContract) -> None:
    policy = Policy()
    usable = policy.usable_window_s(contract)
    assert usable is not None
    last = usable + policy.lease_s + contract.in_flight_bound_s + policy.margin_slack_s
    assert usable == 0 or last <= (contract.window_s or 0) + 1e-6
    assert usable <= (contract.window_s or 0)


@given(CONTRACTS, st.none() | st.floats(1, 1e6))
def test_a_page_comes_within_half_the_window(contract: VendorContract, asked: float | None) -> None:
    ttl = Policy().ttl_s(contract, asked)
    assert 0 < ttl <= (contract.window_s or 0) / 2


@given(st.integers(0, 100), st.booleans())
def test_look_ups_grow_apart_and_never_stop(looks: int, escalated: bool) -> None:
    policy = Policy()
    delay = policy.look_delay_s(looks, escalated=escalated)
    assert delay <= policy.look_delay_s(looks + 1, escalated=escalated) <= policy.look_after_page_s
    assert (
        policy.resend_delay_s(looks)
        <= policy.resend_delay_s(looks + 1)
        == min(policy.resend_delay_s(looks + 1), 900)
    )


def test_quiescence_adds_the_in_flight_bound_and_the_read_lag() -> None:
    assert Policy().quiet_after_s(STRIPE) == 120
    assert Policy().quiet_after_s(replace(STRIPE, read_lag_s=60.0)) == 180
    assert Policy.demo().quiet_after_s(replace(STRIPE, read_lag_s=3.0)) == 8


def test_the_first_look_after_a_lost_lease_is_reckoned_from_the_last_end_of_its_call() -> None:
    """30 s to start, 20 s to answer and 5 s to be listed are within the lease of 60 s."""
    assert Policy().look_after_lease_s() == -5.0
    assert replace(Policy(), lease_s=56.0).look_after_lease_s() == -1.0
    assert Policy.demo().look_after_lease_s() == 0.5

"""Every request fault of the sandbox, as the adapter tells it."""

from __future__ import annotations

import pytest

from outbox.contract import Account
from outbox.outcomes import Absent, Business, Found, Lost, NotSent, Receipt
from tests.vendors.stripe_calls import call_of, since
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

LOST_WITHOUT_TRACE = [
    "refuse",
    "lost_request",
    "bad_gateway_before",
    "unavailable_503",
    "redirect_302",
]
LOST_AND_LANDED = ["lost_ack", "half_body", "empty_200", "bad_gateway_after"]


@pytest.mark.parametrize("kind", LOST_WITHOUT_TRACE)
def test_a_request_that_was_lost_is_in_doubt_and_heals_under_the_same_key(
    kind: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault(kind, account=account.vendor_account, attempts=[1])
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""
    assert isinstance(vendor.look_up(call, since(sandbox, account)), Absent)
    assert isinstance(vendor.perform(call), Receipt)
    assert len(sandbox.effects(account.vendor_account)) == 1
    assert sandbox.oracle(account.vendor_account)["violations"] == []


@pytest.mark.parametrize("kind", LOST_AND_LANDED)
def test_an_answer_that_was_lost_is_found_by_the_look_up(
    kind: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault(kind, account=account.vendor_account, attempts=[1])
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Lost)
    found = vendor.look_up(call, since(sandbox, account))
    assert isinstance(found, Found)
    assert found.readings[0].business is Business.PAID
    assert len(sandbox.requests(account.vendor_account, call.key.hex())) == 1


@pytest.mark.parametrize(
    "kind", ["stored_500_no_object", "stored_500_object_later", "stored_500_rolled_back"]
)
def test_a_stored_500_is_a_veto(
    kind: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault(kind, account=account.vendor_account, attempts=[1], after_s=3600)
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Lost)
    assert outcome.veto == "stored_500"
    looked = vendor.look_up(call, since(sandbox, account))
    if kind == "stored_500_no_object":
        assert isinstance(looked, Absent)
    if kind == "stored_500_rolled_back":
        assert isinstance(looked, Found)
        assert looked.readings[0].business is Business.FAILED
    if kind == "stored_500_object_later":
        assert isinstance(looked, Absent)
        sandbox.release(account.vendor_account)
        later = vendor.look_up(call, since(sandbox, account))
        assert isinstance(later, Found)
        assert later.readings[0].owner == str(call.intent_id)


def test_a_late_commit_is_absent_first_and_found_later(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault("late_commit", account=account.vendor_account, attempts=[1], after_s=3600)
    call = call_of(account=account)
    assert isinstance(vendor.perform(call), Lost)
    assert isinstance(vendor.look_up(call, since(sandbox, account)), Absent)
    sandbox.release(account.vendor_account)
    assert isinstance(vendor.look_up(call, since(sandbox, account)), Found)


@pytest.mark.parametrize("conflict", ["idempotency_error", "invalid_request_error"])
def test_a_first_request_that_still_runs_is_neither_success_nor_refusal(
    conflict: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.set_account(account.vendor_account, conflict_type=conflict)
    sandbox.fault("in_use_409", account=account.vendor_account, attempts=[1], after_s=3600)
    call = call_of(account=account)
    assert isinstance(vendor.perform(call), Lost)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Lost)
    assert (outcome.wire.http_status, outcome.veto) == (409, "")
    sandbox.release(account.vendor_account)
    assert isinstance(vendor.perform(call), Receipt)
    assert len(sandbox.effects(account.vendor_account)) == 1


@pytest.mark.parametrize("kind", ["rate_limited_429", "lock_timeout_429"])
def test_a_429_was_not_executed(
    kind: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault(kind, account=account.vendor_account, attempts=[1], after_s=7)
    outcome = vendor.perform(call_of(account=account))
    assert isinstance(outcome, NotSent)
    assert outcome.throttled
    assert outcome.retry_after_s == (7.0 if kind == "rate_limited_429" else None)
    assert sandbox.effects(account.vendor_account) == []


@pytest.mark.parametrize("kind", ["unauthorized_401", "forbidden_403"])
def test_refused_credentials_pause_the_account(
    kind: str, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault(kind, account=account.vendor_account, attempts=[1])
    outcome = vendor.perform(call_of(account=account))
    assert isinstance(outcome, NotSent)
    assert outcome.pause


@pytest.mark.parametrize("status", [400, 409, 429, 502, 503])
def test_do_not_retry_is_a_veto(
    status: int, vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault("do_not_retry", account=account.vendor_account, attempts=[1], status=status)
    outcome = vendor.perform(call_of(account=account))
    assert isinstance(outcome, Lost)
    assert outcome.veto == "do_not_retry"

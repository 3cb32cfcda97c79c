"""Whose credential it is: asked once, compared before the first call, and never guessed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from outbox.contract import Account
from outbox.outcomes import NotSent, Receipt, Unreadable
from tests.vendors.stripe_calls import call_of, since
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor


def test_it_says_whose_credential_it_holds(
    vendor: StripeVendor, account: Account, sandbox: Sandbox
) -> None:
    assert vendor.whoami(account) == account.vendor_account
    wrong = replace(account, name="x", credential="sk_wrong")
    assert vendor.whoami(wrong) == Unreadable("http_401", pause=True)
    silent = vendor.whoami(replace(account, name="y", base_url="http://127.0.0.1:1"))
    assert isinstance(silent, Unreadable)
    assert not silent.pause


def test_a_credential_of_another_account_sends_nothing_and_reads_nothing(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    """A key that one account knows is new to another: the same request is a second effect."""
    other = account.vendor_account + "b"
    swapped = replace(account, credential=sandbox.api_key(other))
    call = call_of(account=swapped)
    outcome = vendor.perform(call)
    assert isinstance(outcome, NotSent)
    assert outcome.pause
    looked = vendor.look_up(call, since(sandbox, account))
    assert looked == Unreadable("credential_of_other_account", pause=True)
    assert {r["path"] for r in sandbox.requests(other)} == {"/v1/account"}


def test_whose_credential_it_is_is_asked_once_for_all_threads(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(vendor.perform, [call_of(account=account) for _ in range(16)]))
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    reads = [r for r in sandbox.requests(account.vendor_account) if r["method"] == "GET"]
    assert [r["path"] for r in reads] == ["/v1/account"]


@pytest.mark.parametrize("kind", ["unavailable_503", "rate_limited_429"])
def test_a_vendor_that_does_not_say_whose_it_is_just_now_is_not_sent_to_and_pauses_nothing(
    vendor: StripeVendor, sandbox: Sandbox, account: Account, kind: str
) -> None:
    sandbox.fault(kind, account=account.vendor_account, endpoint="GET *", attempts=[1])
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, NotSent)
    assert not outcome.pause
    assert isinstance(vendor.perform(call), Receipt)


def test_a_restricted_key_that_may_not_read_its_account_sends_all_the_same(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault("forbidden_403", account=account.vendor_account, endpoint="GET /v1/account")
    outcomes = [vendor.perform(call_of(account=account)) for _ in range(2)]
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    reads = [r for r in sandbox.requests(account.vendor_account) if r["method"] == "GET"]
    assert len(reads) == 1

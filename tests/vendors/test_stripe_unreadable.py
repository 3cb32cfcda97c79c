"""Look-ups that prove nothing: a source not read to its end, or not the right one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import Account, TooLate
from outbox.outcomes import Unreadable
from tests.vendors.raw_server import Pages, RawServer, page
from tests.vendors.stripe_calls import at, call_of, payment_intent
from vendors import stripe_lookup
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

ERROR = {"error": {"type": "api_error"}}


@pytest.mark.parametrize("where", ["/v1/payment_intents", "/v1/events"])
@pytest.mark.parametrize(
    ("status", "document", "pause"),
    [
        ("401 Unauthorized", ERROR, True),
        ("403 Forbidden", ERROR, True),
        ("404 Not Found", ERROR, False),
        ("429 Too Many Requests", ERROR, False),
        ("500 Oops", ERROR, False),
        ("502 Bad Gateway", b"<html>", False),
        ("302 Found", b"", False),
        ("200 OK", b"", False),
        ("200 OK", b"[]", False),
        ("200 OK", {"object": "list", "has_more": False}, False),
        ("200 OK", {"object": "list", "data": []}, False),
        ("200 OK", {"object": "list", "data": [], "has_more": True}, False),
        ("200 OK", {"object": "list", "data": [{"no": "id"}], "has_more": True}, False),
        ("200 OK", {"object": "list", "data": [{"id": "pi_9"}], "has_more": True}, False),
    ],
)
def test_a_source_that_was_not_read_to_its_end_proves_nothing(
    vendor: StripeVendor, where: str, status: str, document: Any, pause: bool
) -> None:
    call = call_of()

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        return (status, document) if path == where else page()

    with RawServer(Pages(listed)) as server:
        looked = vendor.look_up(replace(call, account=at(server.url)), 0)
    assert isinstance(looked, Unreadable)
    assert looked.pause is pause


def test_a_list_without_end_is_given_up(
    vendor: StripeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_lookup, "MAX_PAGES", 3)

    def listed(_: str, query: Mapping[str, str]) -> tuple[str, Any]:
        number = int(query.get("starting_after", "pi_0")[3:])
        return page({"id": f"pi_{number + 1}"}, more=True)

    with RawServer(Pages(listed)) as server:
        looked = vendor.look_up(call_of(account=at(server.url)), 0)
        assert len(server.requests) == 3
    assert looked == Unreadable("too many pages")


@pytest.mark.parametrize("fields", [{"livemode": True}, {"status": None}, {"object": "charge"}])
def test_an_object_of_ours_that_cannot_be_read_is_not_absent(
    vendor: StripeVendor, fields: dict[str, Any]
) -> None:
    call = call_of()

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        return page(payment_intent(call, **fields)) if path == "/v1/payment_intents" else page()

    with RawServer(Pages(listed)) as server:
        assert isinstance(vendor.look_up(replace(call, account=at(server.url)), 0), Unreadable)


def test_the_list_of_another_account_proves_nothing(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    stranger = replace(account, credential=sandbox.api_key(account.name + "other"))
    call = call_of(account=stranger)
    for looked in (vendor.look_up(call, 0), vendor.retrieve(call, "pi_1")):
        assert isinstance(looked, Unreadable)
        assert looked.pause


def test_a_credential_of_the_other_mode_proves_nothing(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    live = replace(account, credential=sandbox.api_key(account.name, live=True))
    assert isinstance(vendor.look_up(call_of(account=live), 0), Unreadable)


def test_a_look_up_that_is_too_late_reads_nothing(
    vendor: StripeVendor, sandbox: Sandbox, account: Account
) -> None:
    class Closed:
        def attach(self, sock: Any) -> None:
            raise TooLate

    looked = vendor.look_up(call_of(account=account, cutoff=Closed()), 0)
    assert looked == Unreadable("no_answer:too_late")
    assert sandbox.requests(account.vendor_account) == []


def test_an_outage_of_the_vendor_proves_nothing(vendor: StripeVendor) -> None:
    looked = vendor.look_up(call_of(account=at("http://127.0.0.1:1")), 0)
    assert looked == Unreadable("no_answer:ConnectionRefusedError")

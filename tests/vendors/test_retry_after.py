"""How long a vendor asks to be left alone: in seconds, or as a date by its own clock (RFC 9110)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.outcomes import NotSent, Unreadable
from tests.vendors import stripe_calls
from tests.vendors.raw_server import RawServer, answer, replying
from tests.vendors.recipe_calls import at, call_of
from tests.vendors.test_http_json_lookup import PAYMENTS, _vendor
from vendors.stripe import StripeVendor

DATE = "Sun, 29 Nov 2026 12:30:00 GMT"
SAID = [
    ("Sun, 29 Nov 2026 12:30:07 GMT", 7.0),
    ("Sunday, 29-Nov-26 12:30:07 GMT", 7.0),
    ("Sun Nov 29 12:30:07 2026", 7.0),
    ("Sun, 29 Nov 2026 13:30:07 +0100", 7.0),
    ("Sun, 29 Nov 2026 13:30:00 GMT", 3600.0),
    ("Sun, 29 Nov 2026 13:30:01 GMT", 3600.0),
    ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
    (DATE, 0.0),
    ("Sun, 29 Nov 2026 12:29:59 GMT", 0.0),
    ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
    ("Sun, 29 Nov 2026 25:30:00 GMT", None),
    ("Sun, 31 Feb 2026 12:30:07 GMT", None),
    ("Nov 99999999999999999999 12:30:07 94", None),
    ("Sun, 29 Nov 2026 12:30:07 +9999", None),
    ("2026-11-29T12:30:07Z", None),
    ("5, 10", None),
    ("7", 7.0),
    ("7200", 3600.0),
    ("-7", None),
]


@pytest.fixture(params=["UTC", "XST-9"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host's own zone says nothing of the vendor's."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _throttling(said: str, *headers: str) -> RawServer:
    return RawServer(replying(answer("429 x", b"{}", f"Retry-After: {said}", *headers)))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("said", "wait_s"), SAID)
def test_a_date_counts_from_the_answers_own(
    vendor: StripeVendor, said: str, wait_s: float | None
) -> None:
    """Of a write and of a read, at either kind of vendor; an hour at the most, and never less than
    nothing."""
    with _throttling(said, f"Date: {DATE}") as server, _vendor(PAYMENTS) as described:
        call = call_of(PAYMENTS, account=at(server.url))
        charge = stripe_calls.call_of(account=stripe_calls.at(server.url))
        told = [described.perform(call), vendor.perform(charge)]
        seen = [described.look_up(call, 0), vendor.look_up(charge, 0)]
    assert [isinstance(one, NotSent) and one.retry_after_s for one in told] == [wait_s] * 2
    assert seen == [Unreadable("http_429", retry_after_s=wait_s)] * 2


@pytest.mark.parametrize("date", ["", "soon", "Sun, 29 Nov 2026 12:30:00 +9999"])
def test_a_date_without_a_clock_to_count_from_asks_for_nothing(date: str) -> None:
    headers = [f"Date: {date}"] if date else []
    with _throttling(SAID[0][0], *headers) as server, _vendor(PAYMENTS) as vendor:
        told = vendor.perform(call_of(PAYMENTS, account=at(server.url)))
    assert isinstance(told, NotSent)
    assert (told.throttled, told.retry_after_s) == (True, None)


def test_an_answers_clock_is_in_utc_whatever_the_form(anywhere: None) -> None:
    body = b'{"data": [], "next_cursor": null}'
    raw = answer("200 OK", body, "Date: Sun Nov 29 12:30:00 2026")
    with RawServer(replying(raw)) as server, _vendor(PAYMENTS) as vendor:
        seen = vendor.look_up(replace(call_of(PAYMENTS), account=at(server.url)), 0)
    assert not isinstance(seen, Unreadable)
    assert seen.vendor_now == 1795955400

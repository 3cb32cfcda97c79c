"""What vendors write oddly neither proves an absence nor passes as what was asked for."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from outbox.contract import Call
from outbox.outcomes import (
    Absent,
    Business,
    Found,
    LookUp,
    Lost,
    Outcome,
    Reading,
    Receipt,
    Standing,
    Unreadable,
    WebhookFact,
)
from tests.vendors.raw_server import RawServer, answer
from tests.vendors.recipe_calls import at, call_of, contract_of, payment
from vendors.http_json import HttpJsonVendor
from vendors.http_json_links import next_link
from vendors.stripe_reading import classify

NO_WHOAMI = {'[whoami]\npath = "/account"\nid = "id"\n': ""}
UNFILTERED = {'query = { reference = "{owner}", per_page = "2" }': 'query = { per_page = "2" }'}
LINKED = {**UNFILTERED, 'next = { first = 1, parameter = "page" }': "next = { link = true }"}
TICKET = {"title": "a", "body": "b"}
PAYMENTS = contract_of("payments", NO_WHOAMI)
NEXT = [
    '</tickets?page=2>; rel="next"',
    '</tickets?page=2>; rel="Next"',
    '</tickets?page=2>; rel="last  next"',
    "</tickets?page=2>; Rel=next",
    "</tickets?page=2> ;rel = next ; x",
    '</tickets?page=2>; title="x;y, <z>"; rel="next"',
    '</tickets?page=2&a=b;c,d>; rel="next"',
    '</a>; rel=prev, </tickets?page=2>; title="\\""; rel="next"',
    "<?page=2>; rel=next",
]


def _ticket(reference: Any) -> dict[str, Any]:
    return {"id": 7, "reference": reference, "state": "open", "created_at": "2026-11-30T00:00:00Z"}


def _look(
    changes: dict[str, str], pages: Callable[[Call, bool], list[Any]], link: str = ""
) -> tuple[LookUp, int]:
    contract = contract_of("tickets", changes)
    calls: list[Call] = []

    def reply(connection: socket.socket, request: bytes) -> None:
        first = re.search(rb"[?&]page=2", request.split(b"\r\n")[0]) is None
        headers = [f"Link: {link}"] if first and link else []
        body = json.dumps({"tickets": pages(calls[0], first)}).encode()
        connection.sendall(answer("200 OK", body, *headers))

    with RawServer(reply) as server:
        vendor = HttpJsonVendor(contract, connect_s=2, read_s=5)
        calls.append(call_of(contract, TICKET, at(server.url)))
        seen = vendor.look_up(calls[0], 0)
        vendor.close()
        return seen, len(server.requests)


@pytest.mark.parametrize("link", NEXT)
def test_a_list_goes_on_however_its_link_is_written(link: str) -> None:
    seen, asked = _look(LINKED, lambda call, first: [] if first else [_ticket(_id(call))], link)
    assert isinstance(seen, Found)
    assert asked == 2


@pytest.mark.parametrize(
    "link",
    ["nonsense", '</x; rel="next"', '</x>; rel="next', "</x>; rel", "</x> rel=next",
     "</x>; rel=next, </y>; rel=next", "<http://[>; rel=next", "</x>" + "; " * 20000 + "("],
)  # fmt: skip
def test_a_link_that_cannot_be_read_is_no_end_of_a_list(link: str) -> None:
    seen, _ = _look(LINKED, lambda call, first: [], link)
    assert isinstance(seen, Unreadable)


def test_a_link_to_no_next_page_ends_a_list() -> None:
    seen, asked = _look(LINKED, lambda call, first: [], '</x?rel=next>; rel="last prev"')
    assert (type(seen), asked) == (Absent, 1)
    assert next_link("") is None


def _id(call: Call) -> str:
    return str(call.intent_id)


@pytest.mark.parametrize(
    "spelled",
    [
        _id,
        lambda call: _id(call).upper(),
        lambda call: f" {_id(call)} ",
        lambda call: _id(call).replace("-", ""),
        lambda call: "{" + _id(call).upper() + "}",
        lambda call: f"urn:uuid:{_id(call)}",
        lambda call: call.key.hex().upper(),
    ],
)
@pytest.mark.parametrize("changes", [{}, UNFILTERED])
def test_a_mark_names_its_intent_in_any_spelling(
    changes: dict[str, str], spelled: Callable[[Call], str]
) -> None:
    seen, _ = _look(changes, lambda call, first: [_ticket(spelled(call))] if first else [])
    assert isinstance(seen, Found)


@pytest.mark.parametrize(
    "shown",
    [lambda call: [_id(call)], lambda _: None, lambda call: f"ref {_id(call)}", lambda _: 7],
)
def test_an_object_without_a_readable_mark_proves_no_absence(shown: Callable[[Call], Any]) -> None:
    seen, _ = _look(UNFILTERED, lambda call, first: [_ticket(shown(call))] if first else [])
    assert isinstance(seen, Unreadable)


def test_an_object_of_another_intent_is_not_ours() -> None:
    other = call_of(contract_of("tickets"), {**TICKET, "title": "other"})
    seen, _ = _look(UNFILTERED, lambda _, first: [_ticket(_id(other))] if first else [])
    assert isinstance(seen, Absent)


def _paid(read: bool, **fields: Any) -> Outcome | LookUp:
    calls: list[Call] = []

    def reply(connection: socket.socket, request: bytes) -> None:
        made = payment(calls[0], **fields)
        body = json.dumps({"data": [made], "next_cursor": None} if read else made)
        connection.sendall(answer("200 OK", body.encode()))

    with RawServer(reply) as server:
        vendor = HttpJsonVendor(PAYMENTS, connect_s=2, read_s=5)
        calls.append(call_of(PAYMENTS, account=at(server.url)))
        seen = vendor.look_up(calls[0], 0) if read else vendor.perform(calls[0])
        vendor.close()
        return seen


@pytest.mark.parametrize(
    "fields",
    [
        *({"amount": odd} for odd in ["9.99", "", 9.5, True, [100], 10**30, -(2**63) - 1, 1e30]),
        *({"currency": odd} for odd in ["us\0d", "us\ud800", "e" * 300, ["usd"]]),
    ],
)
def test_money_that_cannot_be_read_is_not_the_right_amount(fields: dict[str, Any]) -> None:
    told = _paid(False, **fields)
    assert isinstance(told, Lost)
    assert (told.reason, told.veto) == ("unreadable_amount", "unreadable_amount")
    assert isinstance(_paid(True, **fields), Unreadable)


@pytest.mark.parametrize(("shown", "amount"), [("999", 999), (999.0, 999), (None, None)])
def test_a_whole_number_is_an_amount_however_it_is_written(shown: Any, amount: int | None) -> None:
    told = _paid(False, amount=shown)
    assert isinstance(told, Receipt)
    assert told.reading.amount_minor == amount


@pytest.mark.parametrize("time", [1e30, 10**400, -1, "9" * 400, "0001-01-01T00:00:00Z", "nan"])
def test_a_time_beyond_the_calendar_is_none(time: Any) -> None:
    told = _paid(False, updated_at=time)
    assert isinstance(told, Receipt)
    assert told.reading.vendor_time == 0


def test_whatever_is_read_fits_what_is_kept() -> None:
    reading = Reading(
        "pi_1", Standing.LANDED, Business.PAID, "w\0", amount_minor=2**63, currency="u\ud800sd",
        vendor_time=10**18, vendor_account="a" * 300,
    )  # fmt: skip
    assert (reading.amount_minor, reading.vendor_time) == (None, 0)
    assert (reading.word, reading.currency) == ("w\ufffd", "u\ufffdsd")
    assert reading.vendor_account == "a" * 255
    facts = [
        WebhookFact(f"evt_\0{n}", "k\0", "o\0", ("o\0", "pi_1"), vendor_time=10**30) for n in "12"
    ]
    assert len({fact.event_id for fact in facts}) == 2
    assert all(fact.event_id.startswith("sha256:") for fact in facts)
    assert (facts[0].object_id, facts[0].receipt_ids) == ("", ("pi_1",))
    assert (facts[0].kind, facts[0].vendor_time) == ("k\ufffd", 0)


def test_an_amount_of_stripes_that_cannot_be_kept_has_no_reading() -> None:
    shown = {"object": "refund", "id": "re_1", "status": "succeeded", "amount": 10**30}
    assert classify("refunds.create", shown, {}) is None
    assert classify("refunds.create", {**shown, "amount": 5}, {}) is not None

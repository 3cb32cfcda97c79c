"""Look-ups by a recipe: absence is told only where the whole of a consistent source was read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from outbox.contract import Call, VendorContract
from outbox.outcomes import Absent, Found, LookUp, Unreadable
from tests.vendors.raw_server import RawServer, answer
from tests.vendors.recipe_calls import SECRET, at, call_of, contract_of, payment
from vendors.http_json import HttpJsonVendor
from vendors.registry import build

NO_WHOAMI = {'[whoami]\npath = "/account"\nid = "id"\n': ""}
PAYMENTS = contract_of("payments", NO_WHOAMI)
TICKETS = contract_of("tickets")
DATE = "Date: Sun, 29 Nov 2026 12:30:00 GMT"
Listed = Callable[[str, Mapping[str, str]], tuple[Any, ...]]


class Lists:
    """Answers every read by ``listed(path, query)``: (document, status); 200 without one."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self.asked: list[tuple[str, dict[str, str]]] = []

    def __call__(self, connection: socket.socket, request: bytes) -> None:
        target = urlsplit(request.split(b" ", 2)[1].decode())
        query = dict(parse_qsl(target.query))
        self.asked.append((target.path, query))
        document, status = (*self._listed(target.path, query), "200 OK")[:2]
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        connection.sendall(answer(status, body, DATE))


@contextmanager
def _vendor(contract: VendorContract) -> Iterator[HttpJsonVendor]:
    built = build(contract.vendor, contract=contract, connect_s=0.5, read_s=2.0)
    assert isinstance(built, HttpJsonVendor)
    yield built
    built.close()


def _look(
    contract: VendorContract, call: Call, listed: Listed, receipt_id: str = ""
) -> tuple[LookUp, list[tuple[str, dict[str, str]]]]:
    lists = Lists(listed)
    with _vendor(contract) as vendor, RawServer(lists) as server:
        placed = replace(call, account=at(f"{server.url}/api"))
        if receipt_id:
            return vendor.retrieve(placed, receipt_id), lists.asked
        return vendor.look_up(placed, 1795953600), lists.asked


def _page(*items: Any, after: Any = None) -> tuple[Any]:
    return ({"data": list(items), "next_cursor": after},)


def test_a_list_is_asked_by_the_key_and_read_to_its_end() -> None:
    call = call_of(PAYMENTS)

    def listed(path: str, query: Mapping[str, str]) -> tuple[Any, ...]:
        if "cursor" not in query:
            return _page(payment(call, id="pay_1"), after="c 1&x")
        return _page(payment(call, id="pay_2"))

    seen, asked = _look(PAYMENTS, call, listed)
    assert isinstance(seen, Found)
    assert [one.receipt_id for one in seen.readings] == ["pay_1", "pay_2"]
    assert seen.vendor_now == 1795955400
    first = {
        "idempotency_key": call.key.hex(), "created_after": "2026-11-29T12:00:00Z", "limit": "50",
    }  # fmt: skip
    assert asked == [("/api/payments", first), ("/api/payments", {**first, "cursor": "c 1&x"})]


@pytest.mark.parametrize(
    ("until", "wanted"), [(1795960800, "2026-11-29T14:00:00Z"), (None, "2100-01-01T00:00:00Z")]
)
def test_a_list_that_can_be_asked_for_a_span_is_asked_for_no_more(
    until: int | None, wanted: str
) -> None:
    spanned = {**NO_WHOAMI, 'limit = "50"': 'limit = "50", created_before = "{until}"'}
    lists = Lists(lambda *_: _page())
    contract = contract_of("payments", spanned)
    with _vendor(contract) as vendor, RawServer(lists) as server:
        placed = replace(call_of(contract), account=at(f"{server.url}/api"))
        assert isinstance(vendor.look_up(placed, 1795953600, until), Absent)
    ((_, query),) = lists.asked
    assert (query["created_after"], query["created_before"]) == ("2026-11-29T12:00:00Z", wanted)


def test_a_row_is_looked_up_by_the_key_that_it_was_sent_under() -> None:
    """Whatever the file says of keys by now."""
    recorded = call_of(PAYMENTS)
    changed = contract_of("payments", {**NO_WHOAMI, 'rendering = "hex64"': 'rendering = "uuid"'})
    _, asked = _look(changed, recorded, lambda *_: _page())
    assert asked[0][1]["idempotency_key"] == recorded.key.hex()


def test_nothing_in_a_whole_list_is_absence() -> None:
    seen, _ = _look(PAYMENTS, call_of(PAYMENTS), lambda *_: _page())
    assert seen == Absent(vendor_now=1795955400)


def test_objects_of_others_are_passed_over_where_the_vendor_ignores_the_filter() -> None:
    call = call_of(PAYMENTS)
    others = [payment(call, id=f"pay_{n}", idempotency_key=f"{n:064x}") for n in range(3)]
    seen, _ = _look(PAYMENTS, call, lambda *_: _page(*others))
    assert isinstance(seen, Absent)


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        ({}, "200 OK", "a list that cannot be read"),
        ({"data": {}}, "200 OK", "a list that cannot be read"),
        ({"data": [1]}, "200 OK", "an object that cannot be read"),
        (b"<html>", "200 OK", "unreadable_answer"),
        ({"data": []}, "404 x", "http_404"),
        ({"data": []}, "500 x", "http_500"),
        ({"data": []}, "302 x", "http_302"),
        ({"data": [{"id": "pay_1"}]}, "200 OK", "an object that cannot be read"),
        ({"data": [{"status": "succeeded"}]}, "200 OK", "an object that cannot be read"),
        # Trimmed objects that do not show the mark: finding none of ours would be no proof.
        ({"data": [{"id": "pay_1", "status": "succeeded"}]}, "200 OK",
         "an object came under our key and does not tell whose it is"),
        ({"data": [], "next_cursor": "again"}, "200 OK", "a list that does not go on"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_whole_is_never_absence(
    document: Any, status: str, reason: str
) -> None:
    seen, _ = _look(PAYMENTS, call_of(PAYMENTS), lambda *_: (document, status))
    assert seen == Unreadable(reason)


def test_an_object_of_the_other_mode_is_never_ours() -> None:
    call = call_of(PAYMENTS)
    seen, _ = _look(PAYMENTS, call, lambda *_: _page(payment(call, livemode=True)))
    assert seen == Unreadable("an object of the other mode")


@pytest.mark.parametrize("status", ["401 x", "403 x"])
def test_refused_credentials_pause(status: str) -> None:
    seen, _ = _look(PAYMENTS, call_of(PAYMENTS), lambda *_: ({}, status))
    assert isinstance(seen, Unreadable)
    assert seen.pause


def test_pages_by_number_end_at_an_empty_one_and_never_go_round() -> None:
    call = call_of(TICKETS, {"title": "a"})

    def ticket(number: int) -> dict[str, Any]:
        return {"id": f"t{number}", "reference": str(call.intent_id), "state": "open"}

    pages = {"1": [ticket(1), ticket(2)], "2": [ticket(3)], "3": []}
    seen, asked = _look(TICKETS, call, lambda _, query: ({"tickets": pages[query["page"]]},))
    assert isinstance(seen, Found)
    assert [one.receipt_id for one in seen.readings] == ["t1", "t2", "t3"]
    assert [query["page"] for _, query in asked] == ["1", "2", "3"]
    seen, asked = _look(TICKETS, call, lambda *_: ({"tickets": [ticket(1)]},))
    assert seen == Unreadable("a list that does not go on")
    assert len(asked) == 2


def _linked() -> VendorContract:
    return contract_of("tickets", {'{ first = 1, parameter = "page" }': "{ link = true }"})


def test_pages_by_link_header_are_followed_at_the_vendors_address_only() -> None:
    contract = _linked()
    call = call_of(contract, {"title": "a"})
    mine = {"id": "t9", "reference": str(call.intent_id), "state": "open"}
    for link, good in (
        ("/api/tickets?page=b", True),
        ("tickets?page=b", True),
        ("http://elsewhere.example/api/tickets?page=b", False),
        ("/other/tickets?page=b", False),
        ("/apiary?page=b", False),
    ):

        def reply(connection: socket.socket, request: bytes, link: str = link) -> None:
            last = b"page=b" in request
            body = json.dumps({"tickets": [mine] if last else []}).encode()
            headers = [] if last else [f'Link: <{link}>; rel="next", </api/x>; rel="last"']
            connection.sendall(answer("200 OK", body, *headers))

        with _vendor(contract) as vendor, RawServer(reply) as server:
            seen = vendor.look_up(replace(call, account=at(f"{server.url}/api")), 0)
        if good:
            assert isinstance(seen, Found), link
        else:
            assert seen == Unreadable("a list that goes on elsewhere"), link


def test_a_source_that_is_not_consistent_finds_and_never_proves() -> None:
    contract = contract_of("payments", {**NO_WHOAMI, 'parameter = "cursor" }\nconsistent = true':
                                        'parameter = "cursor" }\nconsistent = false'})  # fmt: skip
    call = call_of(contract)
    seen, _ = _look(contract, call, lambda *_: _page())
    assert isinstance(seen, Unreadable)
    seen, _ = _look(contract, call, lambda *_: _page(payment(call)))
    assert isinstance(seen, Found)


CONTACTS = contract_of("contacts", {'[whoami]\npath = "/me"\nid = "workspace.id"\n': ""})


def test_an_object_by_its_external_id_is_asked_for_as_one_segment() -> None:
    call = call_of(CONTACTS, {"email": "a"})
    external_id = str(call.params["external_id"])
    found = {"contact": {"id": 12, "external_id": external_id, "updated_at": 1795953600}}
    seen, asked = _look(CONTACTS, call, lambda *_: (found,))
    assert isinstance(seen, Found)
    (reading,) = seen.readings
    assert (reading.receipt_id, reading.owner) == ("12", str(call.intent_id))
    assert asked == [(f"/api/contacts/find_by_external_id/{external_id}", {})]


@pytest.mark.parametrize(
    ("document", "status", "proof"),
    [
        ({"errors": []}, "404 x", True),
        (b"<html>404 of a gateway</html>", "404 x", False),
        (b"", "404 x", False),
        ({"contact": None}, "200 OK", False),
        ({"contact": {"id": 1, "external_id": None}}, "200 OK", False),
    ],
)
def test_only_the_vendors_own_404_is_absence(document: Any, status: str, proof: bool) -> None:
    seen, _ = _look(CONTACTS, call_of(CONTACTS, {"email": "a"}), lambda *_: (document, status))
    assert isinstance(seen, Absent if proof else Unreadable)


def test_a_target_that_does_not_show_the_effect_is_absence() -> None:
    call = call_of(PAYMENTS, {"payment_id": "pay_1"}, operation="payments.cancel")
    for status, kind in (("canceled", Found), ("succeeded", Absent)):
        document = {"id": "pay_1", "status": status}
        seen, asked = _look(PAYMENTS, call, lambda *_, d=document: (d,))
        assert isinstance(seen, kind)
        assert asked == [("/api/payments/pay_1", {})]
    seen, _ = _look(PAYMENTS, call, lambda *_: ({"id": "pay_2", "status": "canceled"},))
    assert isinstance(seen, Absent)


def test_a_receipt_is_retrieved_and_must_be_the_one_asked_for_and_ours() -> None:
    call = call_of(PAYMENTS)
    seen, asked = _look(PAYMENTS, call, lambda *_: (payment(call),), "pay_1")
    assert isinstance(seen, Found)
    assert asked == [("/api/payments/pay_1", {})]
    _, asked = _look(PAYMENTS, call, lambda *_: ({},), "../../a b?c")
    assert asked == [("/api/payments/..%2F..%2Fa%20b%3Fc", {})], "one segment, whatever it holds"
    seen, _ = _look(PAYMENTS, call, lambda *_: (payment(call, id="pay_2"),), "pay_1")
    assert isinstance(seen, Unreadable)
    foreign = payment(call, idempotency_key="f" * 64)
    seen, _ = _look(PAYMENTS, call, lambda *_: (foreign,), "pay_1")
    assert seen == Absent("retrieve")
    seen, _ = _look(PAYMENTS, call, lambda *_: ({"error": {}}, "404 x"), "pay_1")
    assert seen == Absent("retrieve")
    seen, _ = _look(PAYMENTS, call, lambda *_: (b"<html>", "404 x"), "pay_1")
    assert isinstance(seen, Unreadable)


def test_without_a_retrieve_the_look_up_is_asked_for_the_receipt() -> None:
    contract = contract_of("payments", {**NO_WHOAMI, '[retrieve]\npath = "/payments/{id}"\n': ""})
    call = call_of(contract)
    seen, _ = _look(contract, call, lambda *_: _page(payment(call)), "pay_1")
    assert isinstance(seen, Found)
    seen, _ = _look(contract, call, lambda *_: _page(payment(call)), "pay_2")
    assert isinstance(seen, Absent)


def test_what_fails_is_told_without_credential_or_argument() -> None:
    call = call_of(PAYMENTS, {"amount": 1, "currency": "eur", "recipient": "SECRETMARK"})
    with _vendor(PAYMENTS) as vendor:
        gone = vendor.look_up(replace(call, account=at("http://127.0.0.1:9")), 0)
    assert isinstance(gone, Unreadable)
    assert "SECRETMARK" not in repr((gone, call, vendor.contract))
    assert SECRET not in repr(call)

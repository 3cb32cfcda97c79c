"""What goes over the wire, and what leaves nothing: the gate, the bytes, the headers."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import rfc8785

from outbox.contract import Call, TooLate, VendorContract
from outbox.outcomes import Lost, NotSent, Receipt, Unreadable
from tests.vendors.raw_server import RawServer, answer, replying
from tests.vendors.recipe_calls import SECRET, at, call_of, contract_of, payment
from vendors.http_json import HttpJsonVendor
from vendors.registry import build

TRICKY: Mapping[str, Any] = {
    "amount": 1,
    "currency": "eur",
    "recipient": 'é€"\\\u2028',
    "memo": "0.1",
}
WINDOW = 'window_s = 90\non_duplicate = "latest"'


class Closed:
    """A claim whose time to start has passed."""

    def attach(self, sock: Any) -> None:
        raise TooLate


@contextmanager
def _vendor(contract: VendorContract) -> Iterator[HttpJsonVendor]:
    built = build(contract.vendor, contract=contract, connect_s=0.5, read_s=2.0)
    assert isinstance(built, HttpJsonVendor)
    yield built
    built.close()


def _head(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def _landing(call: Call) -> Any:
    return replying(answer("200 OK", json.dumps(payment(call)).encode()))


def test_the_body_is_the_frozen_json_and_every_send_has_the_same_bytes() -> None:
    contract = contract_of("payments", {'[whoami]\npath = "/account"\nid = "id"\n': ""})
    call = call_of(contract, TRICKY)
    with _vendor(contract) as vendor, RawServer(_landing(call)) as server:
        for _ in range(2):
            prefixed = replace(call, account=at(f"{server.url}/v9/"))
            assert isinstance(vendor.perform(prefixed), Receipt)
    first, second = server.requests
    assert first == second
    assert first.partition(b"\r\n\r\n")[2] == rfc8785.dumps(dict(call.params))
    assert first.startswith(b"POST /v9/payments HTTP/1.1\r\n")
    head = _head(first)
    assert head["idempotency-key"] == call.key.hex()
    assert head["content-type"] == "application/json"
    assert head["authorization"] == f"Bearer {SECRET}"
    assert head["api-version"] == "2026-05-01"
    assert server.connections == 1, "the connection was kept"


def test_the_api_version_is_the_one_that_was_recorded() -> None:
    recorded = contract_of("payments", {'[whoami]\npath = "/account"\nid = "id"\n': ""})
    call = call_of(recorded)
    now = replace(recorded, api_version="2027-01-01")
    with _vendor(now) as vendor, RawServer(_landing(call)) as server:
        vendor.perform(replace(call, account=at(server.url)))
    assert _head(server.requests[0])["api-version"] == "2026-05-01"


@pytest.mark.parametrize(
    ("vendor", "name", "value"),
    [
        ("contacts", "x-api-key", f"Token {SECRET}"),
        ("tickets", "authorization", "Basic " + base64.b64encode(f"{SECRET}:".encode()).decode()),
        ("messages", "authorization", f"Bearer {SECRET}"),
    ],
)
def test_the_credential_goes_where_the_recipe_says(vendor: str, name: str, value: str) -> None:
    contract = contract_of(vendor)
    params = {"contacts": {"email": "a"}, "tickets": {"title": "a"}, "messages": {"text": "a"}}
    call = call_of(contract, params[vendor])
    with _vendor(contract) as adapter, RawServer(replying(answer("500 x"))) as server:
        outcome = adapter.perform(replace(call, account=at(server.url)))
    assert isinstance(outcome, Lost)
    head = _head(server.requests[0])
    assert head[name] == value
    assert "idempotency-key" not in head


def test_a_user_and_password_are_taken_as_they_are() -> None:
    contract = contract_of("tickets")
    call = call_of(contract, {"title": "a"})
    with _vendor(contract) as adapter, RawServer(replying(answer("500 x"))) as server:
        adapter.perform(replace(call, account=replace(at(server.url), credential="ann:pa:ss")))
    encoded = base64.b64encode(b"ann:pa:ss").decode()
    assert _head(server.requests[0])["authorization"] == f"Basic {encoded}"


def test_too_late_and_refused_connections_send_nothing() -> None:
    contract = contract_of("tickets")
    call = call_of(contract, {"title": "a"})
    with _vendor(contract) as adapter:
        with RawServer(replying(b"")) as server:
            late = replace(call, account=at(server.url), cutoff=Closed())
            assert adapter.perform(late) == NotSent("too_late")
            assert server.requests == []
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        gone = adapter.perform(replace(call, account=at(f"http://127.0.0.1:{port}")))
    assert gone == NotSent("ConnectionRefusedError")


def test_a_credential_that_no_header_can_carry_sends_nothing_and_is_not_told() -> None:
    contract = contract_of("messages")
    call = call_of(contract, {"text": "a"})
    with _vendor(contract) as adapter, RawServer(replying(b"")) as server:
        account = replace(at(server.url), credential=f"{SECRET}\r\nX: y")
        outcome = adapter.perform(replace(call, account=account))
        assert server.requests == []
    assert isinstance(outcome, NotSent)
    assert "SECRET" not in repr(outcome)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 307 x\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_broken_answer_is_lost_and_nothing_is_sent_again(raw: bytes) -> None:
    def reply(connection: socket.socket, _: bytes) -> None:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_RDWR)

    contract = contract_of("messages")
    call = call_of(contract, {"text": "a"})
    with _vendor(contract) as adapter, RawServer(reply) as server:
        outcome = adapter.perform(replace(call, account=at(server.url)))
        assert len(server.requests) == 1
    assert isinstance(outcome, Lost)


_NONE = 'slot = "none"'
_IN_BODY = (
    'slot = "body"\npath = "key"\nrendering = "hex64"\nwindow_s = 90\non_duplicate = "latest"'
)
_IN_HEADER = 'slot = "header"\nname = "X-Key"\nrendering = "uuid"\n' + WINDOW
_ELSEWHERE = _IN_HEADER.replace("X-Key", "X-Other-Key")
_OTHERWISE = _IN_HEADER.replace("uuid", "hex64")


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (_NONE, _IN_BODY),
        (_NONE, _IN_HEADER),
        (_IN_HEADER, _NONE),
        (_IN_HEADER, _ELSEWHERE),
        (_IN_HEADER, _OTHERWISE),
        (_IN_HEADER, _IN_BODY),
        (_IN_BODY, _NONE),
    ],
)
def test_a_row_recorded_with_another_place_for_its_key_is_not_sent(recorded: str, now: str) -> None:
    """What is promised of the key (that a second send is safe) is not true of its request."""
    call = call_of(contract_of("tickets", {_NONE: recorded}), {"title": "a"})
    with (
        _vendor(contract_of("tickets", {_NONE: now})) as adapter,
        RawServer(replying(answer("500 x"))) as server,
    ):
        outcome = adapter.perform(replace(call, account=at(server.url)))
        assert server.requests == []
    # No veto: a process of the other file may send it.
    assert outcome == NotSent("recorded_with_another_key_slot", local=True)


def test_a_write_without_a_body_sends_none() -> None:
    changes = {'method = "POST"\npath = "/tickets"': 'method = "DELETE"\npath = "/tickets/{id}"',
               'mark = "reference"\nmark_as = "text"\n': "",
               'owner = "reference"': 'target = "id"\nlanded = ["open"]'}  # fmt: skip
    contract = contract_of("tickets", changes)
    call = call_of(contract, {"id": "tic_1"})
    with _vendor(contract) as adapter, RawServer(replying(answer("500 x"))) as server:
        adapter.perform(replace(call, account=at(server.url)))
    (request,) = server.requests
    assert request.startswith(b"DELETE /tickets/tic_1 HTTP/1.1")
    assert request.endswith(b"\r\n\r\n")
    assert "content-type" not in _head(request)


def test_whose_the_credential_is_is_asked_once_and_another_one_sends_nothing() -> None:
    contract = contract_of("payments")
    call = call_of(contract)
    who = {"id": "acct_other"}

    def reply(connection: socket.socket, request: bytes) -> None:
        document = who if request.startswith(b"GET /account ") else payment(call)
        connection.sendall(answer("200 OK", json.dumps(document).encode()))

    with _vendor(contract) as adapter, RawServer(reply) as server:
        account = at(server.url, vendor_account="acct_ours")
        assert adapter.perform(replace(call, account=account)) == NotSent(
            "credential_of_other_account", pause=True
        )
        assert adapter.look_up(replace(call, account=account), 0) == Unreadable(
            "credential_of_other_account", pause=True
        )
        assert adapter.whoami(account) == "acct_other"
    assert [r.split(b" ")[0] for r in server.requests] == [b"GET"], "once in a process"


def test_a_vendor_that_cannot_be_asked_says_what_to_set() -> None:
    with _vendor(contract_of("messages")) as adapter:
        seen = adapter.whoami(at("http://127.0.0.1:9"))
    assert isinstance(seen, Unreadable)
    assert "vendor_account" in seen.reason
    assert not seen.pause

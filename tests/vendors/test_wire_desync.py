"""Answers that belong to another request: interim ones, doubled ones, and ones without an end."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from dataclasses import replace

from outbox.contract import Account, Call
from outbox.outcomes import Lost, Receipt, Refused
from tests.vendors.raw_server import RawServer, answer
from tests.vendors.stripe_calls import at, call_of, ok
from vendors.registry import build

DECLINED = answer(
    "402 Payment Required",
    json.dumps({"error": {"type": "card_error", "code": "card_declined"}}).encode(),
)
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"


def test_an_interim_answer_is_not_taken_for_the_answer_nor_the_answer_for_the_next_ones() -> None:
    """A 103 and then a decline: the next intent on this thread must not be told of the decline."""
    first = call_of()
    second = call_of()

    def reply(connection: socket.socket, request: bytes) -> None:
        if first.key.hex().encode() in request:
            connection.sendall(EARLY_HINTS + EARLY_HINTS)
            connection.sendall(DECLINED)
        else:
            connection.sendall(ok(second))

    with RawServer(reply) as server:
        vendor = build("stripe", connect_s=2.0, read_s=5.0)
        account = at(server.url)
        one = vendor.perform(_of(first, account))
        two = vendor.perform(_of(second, account))
        vendor.close()
    assert isinstance(one, Refused)
    assert isinstance(two, Receipt)


def test_a_refusal_that_comes_twice_is_not_told_to_the_next_intent() -> None:
    first, second = call_of(), call_of()
    asked_again = threading.Event()

    def reply(connection: socket.socket, request: bytes) -> None:
        if first.key.hex().encode() in request:
            connection.sendall(DECLINED)

            def again() -> None:
                # The copy arrives when the next request is on its way.
                asked_again.wait(10)
                try:
                    connection.sendall(DECLINED)
                except OSError:
                    return

            threading.Thread(target=again, daemon=True).start()
        else:
            asked_again.set()
            connection.sendall(ok(second))

    with RawServer(reply) as server:
        vendor = build("stripe", connect_s=2.0, read_s=5.0)
        account = at(server.url)
        assert isinstance(vendor.perform(_of(first, account)), Refused)
        assert isinstance(vendor.perform(_of(second, account)), Receipt)
        assert server.connections == 2
        vendor.close()


def test_a_small_answer_that_unpacks_to_gigabytes_is_cut() -> None:
    body = gzip.compress(b" " * (64 << 20))
    raw = answer("200 OK", body, "Content-Encoding: gzip", "Content-Type: application/json")
    with RawServer(lambda connection, _: connection.sendall(raw)) as server:
        vendor = build("stripe", connect_s=2.0, read_s=5.0)
        assert isinstance(vendor.perform(call_of(account=at(server.url))), Lost)
        vendor.close()


def _of(call: Call, account: Account) -> Call:
    return replace(call, account=account)


def test_a_refusal_of_another_key_is_no_word_on_this_one() -> None:
    other = answer(
        "402 Payment Required",
        json.dumps({"error": {"type": "card_error", "code": "card_declined"}}).encode(),
        f"Idempotency-Key: {'0' * 64}",
    )
    with RawServer(lambda connection, _: connection.sendall(other)) as server:
        vendor = build("stripe", connect_s=2.0, read_s=5.0)
        assert vendor.perform(call_of(account=at(server.url))) == Lost("foreign_answer")
        vendor.close()

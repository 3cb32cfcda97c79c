"""The gate before the first byte: too late, cut off, never connected, or not what was recorded."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import TooLate, Unlimited
from outbox.outcomes import Lost, NotSent, Receipt, Unreadable
from tests.vendors.raw_server import RawServer, replying
from tests.vendors.stripe_calls import at, call_of, ok
from vendors import wire
from vendors.registry import build
from vendors.stripe import StripeVendor


class Watchdog:
    """The sender's part: it holds the attached socket and shuts it from another thread."""

    def __init__(self) -> None:
        self.attached = threading.Event()
        self.sockets: list[socket.socket] = []

    def attach(self, sock: socket.socket) -> None:
        self.sockets.append(sock)
        self.attached.set()

    def shut(self) -> None:
        self.sockets[-1].shutdown(socket.SHUT_RDWR)


class Closed:
    """A claim whose time to start has passed."""

    def attach(self, sock: Any) -> None:
        raise TooLate


@pytest.fixture
def quick() -> Iterator[StripeVendor]:
    built = build("stripe", connect_s=0.3, read_s=0.5)
    assert isinstance(built, StripeVendor)
    yield built
    built.close()


def test_too_late_sends_nothing_on_a_new_connection(vendor: StripeVendor) -> None:
    with RawServer(replying(b"")) as server:
        outcome = vendor.perform(call_of(account=at(server.url), cutoff=Closed()))
        assert server.requests == []
    assert outcome == NotSent("too_late")


def test_too_late_sends_nothing_on_a_pooled_connection(vendor: StripeVendor) -> None:
    first = call_of()
    with RawServer(replying(ok(first))) as server:
        account = at(server.url)
        assert isinstance(vendor.perform(replace(first, account=account)), Receipt)
        assert vendor.perform(call_of(account=account, cutoff=Closed())) == NotSent("too_late")
        assert len(server.requests) == 1


def test_connections_are_reused_and_each_request_passes_the_gate(vendor: StripeVendor) -> None:
    call = call_of()
    with RawServer(replying(ok(call))) as server:
        watchdog = Watchdog()
        call = replace(call, account=at(server.url), cutoff=watchdog)
        for _ in range(3):
            assert isinstance(vendor.perform(call), Receipt)
        assert server.connections == 1
        assert len(watchdog.sockets) == 3


def test_a_pooled_connection_that_the_server_closed_is_not_written_to(
    vendor: StripeVendor,
) -> None:
    call = call_of()
    closed = threading.Event()

    def once(connection: socket.socket, _: bytes) -> None:
        connection.sendall(ok(call))
        connection.shutdown(socket.SHUT_WR)
        closed.set()

    with RawServer(once) as server:
        call = replace(call, account=at(server.url))
        for _ in range(3):
            closed.clear()
            assert isinstance(vendor.perform(call), Receipt)
            assert closed.wait(10)
        assert server.connections == 3


def test_a_connection_that_idled_too_long_is_not_trusted(
    vendor: StripeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of()
    with RawServer(replying(ok(call))) as server:
        call = replace(call, account=at(server.url))
        assert isinstance(vendor.perform(call), Receipt)
        monkeypatch.setattr(wire, "_IDLE_LIMIT_S", -1.0)
        assert isinstance(vendor.perform(call), Receipt)
        assert server.connections == 2


@pytest.mark.parametrize("behaviour", ["hanging", "dripping"])
def test_the_watchdog_ends_an_answer_that_does_not_end(
    vendor: StripeVendor, behaviour: str
) -> None:
    """A read time-out starts anew with each byte: only the cut-off bounds the whole call."""
    stop = threading.Event()

    def reply(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(0.02):
            if behaviour == "dripping":
                connection.sendall(b" ")

    with RawServer(reply) as server, ThreadPoolExecutor(1) as pool:
        watchdog = Watchdog()
        performed = pool.submit(vendor.perform, call_of(account=at(server.url), cutoff=watchdog))
        assert server.arrived.wait(10)
        assert not performed.done()
        watchdog.shut()
        outcome = performed.result(10)
        stop.set()
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""


def refused() -> tuple[str, Callable[[], None]]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    return f"http://127.0.0.1:{port}", lambda: None


def unresolved() -> tuple[str, Callable[[], None]]:
    return "http://no-such-host.invalid", lambda: None


def unanswered() -> tuple[str, Callable[[], None]]:
    """A listener whose backlog is full does not complete a handshake."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())

    def close() -> None:
        for each in (listener, *waiting):
            each.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}", close


def no_tls() -> tuple[str, Callable[[], None]]:
    """A server that answers a TLS greeting with plain text."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def close() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)

    return f"https://127.0.0.1:{listener.getsockname()[1]}", close


@pytest.mark.parametrize("unreachable", [refused, unresolved, unanswered, no_tls])
def test_what_never_got_a_connection_was_surely_not_sent(
    quick: StripeVendor, unreachable: Callable[[], tuple[str, Callable[[], None]]]
) -> None:
    url, close = unreachable()
    outcome = quick.perform(call_of(account=at(url)))
    assert isinstance(outcome, NotSent)
    assert not outcome.pause
    assert not outcome.throttled
    assert isinstance(quick.look_up(call_of(account=at(url)), 0), Unreadable)
    close()


def test_a_silent_server_is_lost_at_the_read_timeout(quick: StripeVendor) -> None:
    with RawServer(lambda _, __: None) as server:
        assert isinstance(quick.perform(call_of(account=at(server.url))), Lost)


def test_a_second_request_under_one_exchange_is_impossible() -> None:
    with wire.exchange("post", "/v1/x", Unlimited(), ("Idempotency-Key", "k")) as one:
        for method, url, headers in [
            ("GET", "/v1/x", {"Idempotency-Key": "k"}),
            ("POST", "/v1/y", {"Idempotency-Key": "k"}),
            ("POST", "/v1/x", {"Idempotency-Key": "other"}),
            ("POST", "/v1/x", {}),
        ]:
            with pytest.raises(wire.WrongRequest):
                one.start(None, method, url, headers)
        assert not one.began
        one.start(None, "POST", "/v1/x?a=b", {"idempotency-key": b"k"})  # type: ignore[dict-item]
        with pytest.raises(wire.WrongRequest):
            one.start(None, "POST", "/v1/x", {"Idempotency-Key": "k"})

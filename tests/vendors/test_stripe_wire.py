"""What leaves this machine and what does not, against a server that does as it is told."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outbox.contract import Account, Call, TooLate
from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Unreadable
from tests.vendors.raw_server import RawServer, answer, replying
from tests.vendors.stripe_calls import CHARGE, call_of, payment_intent
from vendors import wire
from vendors.registry import build
from vendors.stripe import StripeVendor

SECRET = "sk_test_SECRETMARK"
ARGUMENT = "ARGUMENTMARK"


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


def at(url: str) -> Account:
    return Account("a", "test", credential=SECRET, base_url=url)


def ok(call: Call) -> bytes:
    return answer("200 OK", json.dumps(payment_intent(call)).encode())


def lines(request: bytes) -> list[str]:
    return request.partition(b"\r\n\r\n")[0].decode().split("\r\n")


def header(request: bytes, name: str) -> list[str]:
    return [line.partition(": ")[2] for line in lines(request) if line.lower().startswith(name)]


def test_the_first_byte_carries_the_intents_key_and_its_version(vendor: StripeVendor) -> None:
    """B15: the key in the row is the key on the wire, in its header and never in the body."""
    call = call_of(account=at(""))
    with RawServer(replying(ok(call))) as server:
        call = replace(call, account=at(server.url), api_version="2024-09-30.acacia")
        assert isinstance(vendor.perform(call), Receipt)
        (request,) = server.requests
    assert lines(request)[0] == "POST /v1/payment_intents HTTP/1.1"
    assert header(request, "idempotency-key:") == [call.key.hex()]
    assert header(request, "stripe-version:") == ["2024-09-30.acacia"]
    assert header(request, "authorization:") == [f"Bearer {SECRET}"]
    assert b"idempotency" not in request.partition(b"\r\n\r\n")[2]
    assert header(request, "x-stripe-client-telemetry:") == []


def test_a_call_without_its_key_or_its_credential_never_leaves(vendor: StripeVendor) -> None:
    """B15: a code path which forgets the key."""
    with RawServer(replying(b"")) as server:
        call = call_of(account=at(server.url))
        with pytest.raises(AssertionError):
            vendor.perform(replace(call, key=b""))
        with pytest.raises(AssertionError):
            vendor.perform(replace(call, account=replace(at(server.url), credential="")))
        assert server.connections == 0


@pytest.mark.parametrize("drops", ["close", "reset", "garbage", "half head"])
def test_a_dropped_connection_is_lost_after_exactly_one_request(
    vendor: StripeVendor, drops: str
) -> None:
    """B15: the server drops the first two connections, and no hidden retry meets the third."""

    def drop(connection: socket.socket, _: bytes) -> None:
        if drops == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif drops == "garbage":
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        elif drops == "half head":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Len")
        connection.close()

    with RawServer(drop) as server:
        outcome = vendor.perform(call_of(account=at(server.url)))
        assert len(server.requests) == 1
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""


def test_a_body_that_is_cut_half_way_is_lost_with_its_status(vendor: StripeVendor) -> None:
    def cut(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nRequest-Id: req_9\r\n\r\n{")
        connection.close()

    with RawServer(cut) as server:
        outcome = vendor.perform(call_of(account=at(server.url)))
    assert isinstance(outcome, Lost)
    assert (outcome.wire.http_status, outcome.wire.request_id) == (200, "req_9")


def test_headers_of_an_answer_that_is_no_json_are_kept(vendor: StripeVendor) -> None:
    raw = answer("502 Bad Gateway", b"<html>", "Request-Id: req_5", "Stripe-Should-Retry: false")
    with RawServer(replying(raw)) as server:
        outcome = vendor.perform(call_of(account=at(server.url)))
    assert isinstance(outcome, Lost)
    assert outcome.veto == "do_not_retry"
    assert (outcome.wire.http_status, outcome.wire.request_id) == (502, "req_5")


def test_no_redirect_is_followed(vendor: StripeVendor) -> None:
    with RawServer(replying(b"")) as elsewhere:
        raw = answer("302 Found", b"", f"Location: {elsewhere.url}/v1/payment_intents/pi_1")
        with RawServer(replying(raw)) as server:
            outcome = vendor.perform(call_of(account=at(server.url)))
            assert len(server.requests) == 1
        assert elsewhere.connections == 0
    assert isinstance(outcome, Lost)
    assert outcome.wire.http_status == 302


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


def test_a_credential_of_the_other_mode_never_leaves(vendor: StripeVendor) -> None:
    with RawServer(replying(b"")) as server:
        account = replace(at(server.url), credential="sk_live_x")
        outcome = vendor.perform(call_of(account=account))
        assert isinstance(outcome, NotSent)
        assert outcome.pause
        assert isinstance(vendor.look_up(call_of(account=account), 0), Unreadable)
        assert server.connections == 0


def test_a_second_request_under_one_exchange_is_impossible() -> None:
    class Nothing:
        def attach(self, sock: Any) -> None: ...

    with wire.exchange("post", "/v1/x", Nothing(), ("Idempotency-Key", "k")) as one:
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


def test_neither_proxies_nor_netrc_of_this_host_touch_a_configured_address(
    vendor: StripeVendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    call = call_of()
    with RawServer(replying(b"")) as proxy, RawServer(replying(ok(call))) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert isinstance(vendor.perform(replace(call, account=at(server.url))), Receipt)
        assert proxy.connections == 0
        assert header(server.requests[0], "authorization:") == [f"Bearer {SECRET}"]


def test_no_cookie_of_the_vendor_comes_back(vendor: StripeVendor) -> None:
    call = call_of()
    raw = answer("200 OK", json.dumps(payment_intent(call)).encode(), "Set-Cookie: a=b; Path=/")
    with RawServer(replying(raw)) as server:
        call = replace(call, account=at(server.url))
        vendor.perform(call)
        vendor.perform(call)
        assert header(server.requests[1], "cookie:") == []


def test_a_notice_of_the_vendor_does_not_break_a_strict_process(vendor: StripeVendor) -> None:
    call = call_of()
    raw = answer("200 OK", json.dumps(payment_intent(call)).encode(), "Stripe-Notice: old version")
    with RawServer(replying(raw)) as server:
        assert isinstance(vendor.perform(replace(call, account=at(server.url))), Receipt)


def test_neither_secret_nor_argument_is_in_an_outcome_a_log_or_on_stderr(
    vendor: StripeVendor,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stripe._util.STRIPE_LOG", "debug")
    monkeypatch.setattr("stripe.log", "debug")
    caplog.set_level(logging.DEBUG)
    params = {**CHARGE, "description": ARGUMENT, "receipt_email": f"{ARGUMENT}@example.com"}
    quoted = json.dumps(
        {"error": {"type": "card_error", "message": ARGUMENT, "code": ARGUMENT + " x"}}
    )
    outcomes: list[Any] = []
    for raw in (
        answer("402 Payment Required", quoted.encode()),
        answer("500 Oops", quoted.encode()),
        answer("400 Bad Request", f"<html>{ARGUMENT}{SECRET}".encode()),
        b"nonsense " + ARGUMENT.encode() + b"\r\n\r\n",
    ):
        with RawServer(replying(raw)) as server:
            call = call_of(params=params, account=at(server.url))
            outcomes += [vendor.perform(call), vendor.look_up(call, 0), call]
    call = call_of(params=params)
    with RawServer(replying(ok(call))) as server:
        outcomes.append(vendor.perform(replace(call, account=at(server.url))))
    outcomes.append(vendor.perform(replace(call, account=at("http://127.0.0.1:1"))))
    written = "".join(capfd.readouterr()) + caplog.text
    for word in (SECRET, ARGUMENT):
        assert word not in "".join(f"{each!r} {each!s}" for each in outcomes)
        assert word not in written


def test_a_home_folder_is_not_written_to(
    vendor: StripeVendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("stripe._telemetry_id._loaded", False)
    monkeypatch.setattr("stripe.enable_telemetry", True)
    call = call_of()
    with RawServer(replying(ok(call))) as server:
        assert isinstance(vendor.perform(replace(call, account=at(server.url))), Receipt)
    assert list(tmp_path.iterdir()) == []


def _perform_in_child(vendor: StripeVendor, call: Call, told: Any) -> None:
    told.put(type(vendor.perform(call)).__name__)


def test_a_forked_child_opens_connections_of_its_own(vendor: StripeVendor) -> None:
    call = call_of()
    with RawServer(replying(ok(call))) as server:
        call = replace(call, account=at(server.url))
        assert isinstance(vendor.perform(call), Receipt)
        forking = multiprocessing.get_context("fork")
        told = forking.Queue()
        child = forking.Process(target=_perform_in_child, args=(vendor, call, told))
        child.start()
        assert told.get(timeout=20) == "Receipt"
        child.join(20)
        assert isinstance(vendor.perform(call), Receipt)
        assert server.connections == 2


def test_threads_do_not_share_a_connection(vendor: StripeVendor) -> None:
    calls = [call_of() for _ in range(8)]
    by_key = {call.key.hex(): call for call in calls}
    together = threading.Barrier(8)

    def reply(connection: socket.socket, request: bytes) -> None:
        together.wait(10)
        (key,) = header(request, "idempotency-key:")
        connection.sendall(ok(by_key[key]))

    with RawServer(reply) as server, ThreadPoolExecutor(8) as pool:
        account = at(server.url)
        outcomes: list[Outcome] = list(
            pool.map(vendor.perform, [replace(call, account=account) for call in calls])
        )
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)


def test_a_soft_limit_that_falls_into_a_call_is_lost(vendor: StripeVendor) -> None:
    """The SDK wraps whatever is raised inside it, a worker's soft time limit too."""

    class SoftLimit(Exception): ...

    def interrupt(*_: Any) -> None:
        raise SoftLimit

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with RawServer(lambda _, __: os.kill(os.getpid(), signal.SIGUSR1)) as server:
            outcome = vendor.perform(call_of(account=at(server.url)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""

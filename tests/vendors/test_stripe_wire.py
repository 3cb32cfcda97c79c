"""What leaves this machine and what does not, against a server that does as it is told."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outbox.contract import Call, Unlimited
from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Unreadable
from tests.vendors.raw_server import RawServer, answer, replying
from tests.vendors.sandbox_shop import wait_until
from tests.vendors.stripe_calls import (
    CHARGE,
    SECRET,
    at,
    call_of,
    header,
    lines,
    ok,
    payment_intent,
)
from vendors import wire
from vendors.stripe import StripeVendor

ARGUMENT = "ARGUMENTMARK"


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


def test_a_credential_of_the_other_mode_never_leaves(vendor: StripeVendor) -> None:
    with RawServer(replying(b"")) as server:
        account = replace(at(server.url), credential="sk_live_x")
        outcome = vendor.perform(call_of(account=account))
        assert isinstance(outcome, NotSent)
        assert outcome.pause
        assert isinstance(vendor.look_up(call_of(account=account), 0), Unreadable)
        assert server.connections == 0


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


def test_a_netrc_of_this_host_does_not_replace_the_credential(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the vendor's own address the environment's proxies count, its passwords do not."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sessions = wire.Sessions()
    with RawServer(replying(answer("200 OK"))) as server:
        with wire.exchange("get", "/v1/x", Unlimited()):
            sessions.request("get", server.url + "/v1/x", headers={"Authorization": "Bearer k"})
        assert header(server.requests[0], "authorization:") == ["Bearer k"]
    sessions.close()


def test_a_thread_keeps_the_connections_of_the_eight_accounts_it_called_last() -> None:
    """A connection for each account and thread would pass what a process may open."""
    with RawServer(replying(answer("200 OK"))) as server, ThreadPoolExecutor(1) as thread:
        accounts = [wire.Sessions(direct=True) for _ in range(12)]

        def call(account: wire.Sessions) -> int:
            with wire.exchange("post", "/v1/x", Unlimited()):
                account.request("post", server.url + "/v1/x")
            return server.connections

        def called(number: int) -> int:
            return thread.submit(call, accounts[number]).result()

        assert [called(number) for number in range(12)] == list(range(1, 13))
        wait_until(lambda: server.open_connections == 8)
        assert [called(number) for number in range(4, 12)] == [12] * 8
        assert called(0) == 13
        assert called(11) == 13
        wait_until(lambda: server.open_connections == 8)
        for account in accounts:
            account.close()


def test_no_cookie_of_the_vendor_comes_back(vendor: StripeVendor) -> None:
    call = call_of()
    body = json.dumps(payment_intent(call)).encode()
    raw = answer("200 OK", body, "Set-Cookie: a=b; Path=/", "Stripe-Notice: an old version")
    with RawServer(replying(raw)) as server:
        call = replace(call, account=at(server.url))
        for _ in range(2):
            assert isinstance(vendor.perform(call), Receipt)
        assert header(server.requests[1], "cookie:") == []


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

    def perform(call: Call) -> list[Outcome]:
        return [vendor.perform(call) for _ in range(3)]

    with RawServer(reply) as server, ThreadPoolExecutor(8) as pool:
        account = at(server.url)
        outcomes = list(pool.map(perform, [replace(call, account=account) for call in calls]))
        assert server.connections == 8
    assert all(isinstance(each, Receipt) for own in outcomes for each in own)


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

"""Deliveries as the sandbox sends them, genuine and not."""

from __future__ import annotations

import http.server
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outbox.contract import Account
from outbox.outcomes import Receipt, WebhookRefused
from tests.vendors.stripe_calls import WEBHOOK_SECRET, call_of
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor


@pytest.fixture
def deliveries() -> Iterator[tuple[str, queue.Queue[tuple[dict[str, str], bytes]]]]:
    """A receiver on this machine: its address, and what came."""
    got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.put((dict(self.headers), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.mark.parametrize("fault", ["", "pretty", "two_signatures", "null_request", "no_metadata"])
def test_a_delivery_of_the_sandbox_joins_its_call(
    vendor: StripeVendor,
    sandbox: Sandbox,
    account: Account,
    deliveries: tuple[str, queue.Queue[tuple[dict[str, str], bytes]]],
    fault: str,
) -> None:
    url, got = deliveries
    sandbox.add_endpoint(account.vendor_account, url, WEBHOOK_SECRET)
    if fault:
        sandbox.webhook_fault(fault, account=account.vendor_account)
    call = call_of(account=account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Receipt)
    assert sandbox.wait_for_deliveries(account.vendor_account)
    now = int(sandbox.now(account.vendor_account))
    facts = []
    while not got.empty():
        headers, body = got.get()
        facts += vendor.read_webhook(account, headers, body, now)
    created = next(fact for fact in facts if fact.kind == "payment_intent.succeeded")
    assert created.object_id == outcome.reading.receipt_id
    assert (created.request_key == call.key.hex()) is (fault != "null_request")
    assert (created.owner == str(call.intent_id)) is (fault != "no_metadata")
    assert created.snapshot is not None
    reading = vendor.classify(call.operation, created.snapshot, call.params)
    assert reading is not None
    assert reading.receipt_id == outcome.reading.receipt_id
    assert reading.business is outcome.reading.business


@pytest.mark.parametrize("fault", ["wrong_secret", "old_timestamp", "future_timestamp"])
def test_a_delivery_that_is_not_genuine_or_not_timely_is_refused(
    vendor: StripeVendor,
    sandbox: Sandbox,
    account: Account,
    deliveries: tuple[str, queue.Queue[tuple[dict[str, str], bytes]]],
    fault: str,
) -> None:
    url, got = deliveries
    sandbox.add_endpoint(account.vendor_account, url, WEBHOOK_SECRET)
    sandbox.webhook_fault(fault, account=account.vendor_account)
    assert isinstance(vendor.perform(call_of(account=account)), Receipt)
    headers, body = got.get(timeout=20)
    with pytest.raises(WebhookRefused):
        vendor.read_webhook(account, headers, body, int(sandbox.now(account.vendor_account)))

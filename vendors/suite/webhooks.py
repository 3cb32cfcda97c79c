"""Webhooks: a genuine event joins its intent, and nothing else is taken for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from outbox.contract import Account, Call
from outbox.outcomes import Receipt, WebhookRefused
from vendors.suite.bench import AGO_S, Bench

_DELIVERY_S = 10.0


@contextmanager
def _listener() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]], threading.Event]]:
    taken: list[tuple[dict[str, str], bytes]] = []
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((dict(self.headers.items()), body))
            arrived.set()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", taken, arrived
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _delivery(b: Bench) -> tuple[Call, Receipt, dict[str, str], bytes, int]:
    with _listener() as (url, taken, arrived):
        b.sandbox.add_endpoint(b.account.name, url, [b.face.secret])
        call, landed = b.landed()
        assert arrived.wait(_DELIVERY_S), "no event was delivered"
        headers, body = taken[0]
    return call, landed, headers, body, int(b.sandbox.now(b.account.name))


def webhook_joins_its_intent(b: Bench) -> None:
    call, landed, headers, body, now = _delivery(b)
    for facts in (
        b.vendor.read_webhook(b.account, headers, body, now),
        b.vendor.reread_webhook(b.account, body),
    ):
        (fact,) = facts
        joined = {fact.owner, fact.owner_key, fact.request_key, *fact.receipt_ids}
        assert joined & {str(call.intent_id), call.key.hex(), landed.reading.receipt_id}, (
            "nothing of the event names the intent"
        )
        assert fact.event_id, "the event has no id"


def forged_webhook_is_refused(b: Bench) -> None:
    _, _, headers, body, now = _delivery(b)
    stranger = replace(b.account, webhook_secrets=(b.face.other_secret,))
    forged: Mapping[str, tuple[Account, Mapping[str, str], bytes, int]] = {
        "another secret": (stranger, headers, body, now),
        "a changed body": (b.account, headers, body.replace(b'"', b' "', 1), now),
        "no signature": (b.account, {"Content-Type": "application/json"}, body, now),
        "an empty body": (b.account, headers, b"", now),
        "no secret": (replace(b.account, webhook_secrets=()), headers, body, now),
    }
    for name, (account, given, raw, at) in forged.items():
        _refused(b, name, account, given, raw, at)


def old_and_future_webhooks_are_refused(b: Bench) -> None:
    _, _, headers, body, now = _delivery(b)
    _refused(b, "ten minutes old", b.account, headers, body, now + AGO_S)
    _refused(b, "of the future", b.account, headers, body, now - AGO_S)


def secrets_may_be_rotated(b: Bench) -> None:
    _, _, headers, body, now = _delivery(b)
    both = replace(b.account, webhook_secrets=(b.face.other_secret, b.face.secret))
    assert b.vendor.read_webhook(both, headers, body, now), "the older secret is not taken"


def _refused(
    b: Bench, name: str, account: Account, headers: Mapping[str, str], body: bytes, now: int
) -> None:
    try:
        b.vendor.read_webhook(account, headers, body, now)
    except WebhookRefused as refused:
        said = str(refused)
    else:
        raise AssertionError(f"{name}: taken as genuine")
    assert not [s for s in (b.face.secret, b.face.other_secret) if s in said], "a secret is told"

"""A customer of the sandbox: the real SDK, a raw socket, and a receiver of webhooks."""

from __future__ import annotations

import http.client
import http.server
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import stripe

from vendors.sandbox.client import Sandbox

SECRET = "whsec_of_the_test"
WAIT_S = 10.0
CHARGE: Mapping[str, Any] = {
    "amount": 1200,
    "currency": "usd",
    "confirm": "true",
    "payment_method": "pm_card_visa",
}
_numbers = itertools.count()


def wait_until(holds: Callable[[], bool]) -> None:
    """For what the sandbox does by itself: asks again every 10 ms, fails after WAIT_S."""
    limit = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < limit, "it never came true"
        threading.Event().wait(0.01)


@dataclass
class Reply:
    """What a client sees: a status, or in `lost` how the answer was lost.

    (reset, closed, cut or silence)
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    lost: str | None = None

    @property
    def view(self) -> int | str:
        return self.lost or self.status or "nothing"


def response_of(obj: stripe.StripeObject) -> Any:
    """Status, headers and ids of the answer that carried `obj`."""
    assert obj.last_response is not None
    return obj.last_response


@dataclass
class Shop:
    sandbox: Sandbox
    name: str
    client: stripe.StripeClient

    def post(
        self,
        path: str,
        form: Mapping[str, Any],
        key: str | None = None,
        *,
        method: str = "POST",
        timeout_s: float = WAIT_S,
        **headers: str,
    ) -> Reply:
        """One request on a fresh socket, exactly as given."""
        sent = {
            "Authorization": f"Bearer {self.sandbox.api_key(self.name)}",
            "Content-Type": "application/x-www-form-urlencoded",
            **({"Idempotency-Key": key} if key else {}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection(
            urlsplit(self.sandbox.url).netloc, timeout=timeout_s
        )
        try:
            connection.request(method, path, urlencode(form), sent)
            answer = connection.getresponse()
            status, names = answer.status, {k.lower(): v for k, v in answer.getheaders()}
            return Reply(status, names, answer.read())
        except http.client.IncompleteRead:
            return Reply(lost="cut")
        except TimeoutError:
            return Reply(lost="silence")
        except http.client.RemoteDisconnected:
            return Reply(lost="closed")
        except ConnectionError:
            return Reply(lost="reset")
        finally:
            connection.close()

    def charge(self, key: str | None, **options: Any) -> Reply:
        return self.post(
            "/v1/payment_intents", {**CHARGE, "metadata[outbox_id]": key}, key, **options
        )

    def pay(self, key: str | None = None, **params: Any) -> stripe.PaymentIntent:
        """A confirmed charge by the SDK; `params` add to it and replace."""
        merged: Any = {**CHARGE, "confirm": True, **params}
        options: Any = {"idempotency_key": key} if key else {}
        return self.client.v1.payment_intents.create(merged, options)

    def effects(self, key: str | None = None) -> list[dict[str, Any]]:
        return self.sandbox.effects(self.name, key)

    def violations(self) -> list[str]:
        return [found["check"] for found in self.sandbox.oracle(self.name)["violations"]]


@contextmanager
def open_shop(sandbox: Sandbox) -> Iterator[Shop]:
    name = f"s{os.getpid()}x{next(_numbers)}"
    http_client = stripe.RequestsClient(timeout=(WAIT_S, WAIT_S))
    client = stripe.StripeClient(
        sandbox.api_key(name),
        base_addresses={"api": sandbox.url},
        max_network_retries=0,
        http_client=http_client,
    )
    yield Shop(sandbox, name, client)
    http_client.close()  # type: ignore[no-untyped-call]


@dataclass
class Receiver:
    """Collects deliveries as (stripe-signature header, body); answers `status`."""

    url: str
    deliveries: queue.Queue[tuple[str, bytes]] = field(default_factory=queue.Queue)
    status: int = 200

    def next(self) -> tuple[str, bytes]:
        return self.deliveries.get(timeout=WAIT_S)

    def next_event(self) -> dict[str, Any]:
        """The next delivery, verified by the SDK."""
        header, body = self.next()
        found: dict[str, Any] = stripe.Webhook.construct_event(body, header, SECRET).to_dict()
        return found

    def nothing_more(self) -> bool:
        return self.deliveries.empty()


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.deliveries.put((self.headers["Stripe-Signature"], body))
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hooks")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()

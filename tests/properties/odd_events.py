"""Deliveries as somebody could send them: genuine ones, near misses, and genuine nonsense."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.contract import Account, Vendor, VendorContract
from tests.properties.picks import Picks
from tests.vendors.recipe_calls import contract_of
from vendors.http_json import HttpJsonVendor
from vendors.registry import build

SECRET = "a secret"
WEBHOOK_SECRET = "whsec_" + base64.b64encode(SECRET.encode()).decode()
Headers = dict[str, str]
_ODD_TEXTS = [
    "", "x", "\x00", "\ud800", "\udcff", "\xff", "\u202e", "a" * 300, "null", "1" * 13, "-5", "1e9",
    " ", ",", "t=,v1=", "v1,%%%", "sha256=", "\u0661\u0662\u0663", "\r\nX-Y: z", "\U0001f600",
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e308, 10**30, -(10**400), float("nan"), float("inf"), [], {},
    [[]], [None], {"id": {}}, {"id": "pi_x"}, {"": {"": []}}, 253_402_300_800, -62_135_596_801,
    "2026-11-29T12:00:00+99:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
    *_ODD_TEXTS,
]  # fmt: skip


@dataclass(frozen=True)
class Scheme:
    """One way in which a vendor signs; ``sign`` is written from the vendor's own words, and not
    by what reads it."""

    name: str
    vendor: Vendor
    sign: Callable[[int, bytes], Headers]
    secret: str

    @property
    def account(self) -> Account:
        return Account("default", "test", credential="x", webhook_secrets=(self.secret,))

    def macs(self, at: int, body: bytes) -> set[str]:
        """What a delivery of these bytes at that second must show somewhere."""
        shown = self.sign(at, body).values()
        return {
            part for value in shown for part in value.replace(",", "=").split("=") if len(part) > 40
        }


def _mac(signed: bytes) -> bytes:
    return hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()


def _stripe(at: int, body: bytes) -> Headers:
    return {"Stripe-Signature": f"t={at},v1={_mac(f'{at}.'.encode() + body).hex()}"}


def _standard(at: int, body: bytes) -> Headers:
    mac = base64.b64encode(_mac(f"msg_1.{at}.".encode() + body)).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": f"v1,{mac}"}


def _stamped(at: int, body: bytes) -> Headers:
    mac = _mac(f"v0:{at}:".encode() + body).hex()
    return {"X-Request-Timestamp": str(at), "X-Signature": f"v0={mac}"}


def _bare(_: int, body: bytes) -> Headers:
    return {"X-Hub-Signature-256": f"sha256={_mac(body).hex()}"}


def _recipe(contract: VendorContract) -> Vendor:
    return HttpJsonVendor(contract, connect_s=1, read_s=1)


LISTED = contract_of("contacts", {'object = "data.item"\n': 'object = "data"\nevents = "events"\n'})
SCHEMES = [
    Scheme("stripe", build("stripe"), _stripe, SECRET),
    Scheme("standard_webhooks", _recipe(contract_of("payments")), _standard, WEBHOOK_SECRET),
    Scheme("hmac_with_time", _recipe(contract_of("messages")), _stamped, SECRET),
    Scheme("bare_hmac", _recipe(contract_of("contacts")), _bare, SECRET),
    Scheme("several_events", _recipe(LISTED), _bare, SECRET),
]


# -- bodies --------------------------------------------------------------------------------------


def event(number: str, marks: Mapping[str, str], key: str | None = None) -> dict[str, Any]:
    """An event that every reader here finds something in: Stripe's, and the recipes' fields."""
    made = {
        "id": f"pi_{number}",
        "object": "payment_intent",
        "status": "succeeded",
        "amount": 1200,
        "amount_received": 1200,
        "currency": "usd",
        "created": 1_780_000_000,
        "livemode": False,
        "metadata": dict(marks),
        "latest_charge": {"id": f"ch_{number}", "refunded": False},
        "payments": {"data": [{"payment": {"payment_intent": f"pi_{number}"}}]},
        "parent": {"subscription_details": {"subscription": "sub_1", "metadata": {}}},
        "external_id": marks.get("outbox_id"),
        "idempotency_key": key,
        "ts": "1780000000.000100",
        "updated_at": "2026-11-29T12:00:00Z",
    }
    return {
        "id": f"evt_{number}",
        "event_id": f"evt_{number}",
        "object": "event",
        "type": "payment_intent.succeeded",
        "topic": "contact.created",
        "created": 1_780_000_000,
        "livemode": False,
        "account": "acct_here",
        "api_version": "2026-10-28.endive",
        "request": {"id": "req_1", "idempotency_key": key},
        "reason": {"request": {"idempotency_key": key}},
        "related_object": {"id": f"pi_{number}"},
        "context": None,
        "data": {**made, "object": made, "item": made},
        "event": {"type": "message", **made, "message": {"metadata": dict(marks)}},
        "events": [{"id": f"evt_{number}a", "data": made}, {"id": f"evt_{number}b", "data": made}],
    }


def _places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside: list[tuple[Any, ...]] = [at]
    if isinstance(document, dict):
        for name, part in document.items():
            inside += _places(part, (*at, name))
    if isinstance(document, list):
        for place, part in enumerate(document):
            inside += _places(part, (*at, place))
    return inside


def spoilt(picks: Picks, document: Any) -> Any:
    """The document with something else, or nothing, in a place or several."""
    document = copy.deepcopy(document)
    for _ in range(picks.of([1, 1, 2, 3, 0])):
        places = _places(document)[1:]
        if not places:
            return picks.of(ODD)
        *path, last = places[(picks.of(range(256)) * 256 + picks.of(range(256))) % len(places)]
        holder = document
        for name in path:
            holder = holder[name]
        if picks.of(["put", "put", "put", "drop"]) == "put":
            holder[last] = copy.deepcopy(picks.of(ODD))
        else:
            del holder[last]
    return document


def body_of(picks: Picks, document: Any) -> bytes:
    """The document as bytes: as JSON is written, or nearly so, or not at all."""
    how = picks.of(["json", "json", "json", "spoilt", "spoilt", "text", "deep", "raw", "empty"])
    if how == "json":
        return json.dumps(document).encode()
    if how == "spoilt":
        return json.dumps(spoilt(picks, document)).encode()
    if how == "text":
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")[:-1]
    if how == "deep":
        return b'{"a":' * 100_000
    if how == "raw":
        return bytes(picks.of(range(256)) for _ in range(8))
    return b""


# -- headers -------------------------------------------------------------------------------------


def headers_of(picks: Picks, good: Headers) -> Headers:
    """Genuine headers, or such with a name or a value that is not."""
    headers = dict(good)
    for _ in range(picks.of([0, 1, 1, 2])):
        name = picks.of(sorted(headers) or ["x"])
        value = headers.pop(name, "")
        match picks.of(["odd", "cut", "doubled", "case", "gone", "beside", "inside"]):
            case "odd":
                headers[name] = picks.of(_ODD_TEXTS)
            case "cut":
                headers[name] = value[: picks.of(range(100))]
            case "doubled":
                headers[name] = f"{picks.of(_ODD_TEXTS)},{value},{picks.of(_ODD_TEXTS)}"
            case "case":
                headers[name.swapcase()] = value
            case "beside":
                headers |= {name: value, picks.of(_ODD_TEXTS): picks.of(_ODD_TEXTS)}
            case "inside":
                at = picks.of(range(100))
                headers[name] = value[:at] + picks.of(_ODD_TEXTS) + value[at:]
    return headers

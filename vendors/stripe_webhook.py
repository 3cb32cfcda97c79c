"""Stripe's deliveries: the raw bytes are verified first and only then parsed; pure, no SDK.

The SDK's verifier reads its own clock, accepts stamps from the future, and loses its tolerance to
an empty setting, so the scheme (``v1``: HMAC-SHA256 over ``"{t}.{body}"``) is computed here with
the time as a parameter. Joining needs ids, type, mode, account, request key and metadata only, so
that a payload rendered in another API version never breaks it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from outbox.outcomes import WebhookFact, WebhookRefused
from vendors.stripe_answers import parsed
from vendors.stripe_reading import flag, mapping, text, whole

PAST_S = 300
FUTURE_S = 60
_MOST_SECRETS = 2
_MOST_SIGNATURES = 10
# Fields of an object that name the objects it belongs to or gave rise to.
_PARENTS = (
    "payment_intent",
    "charge",
    "latest_charge",
    "setup_intent",
    "invoice",
    "latest_invoice",
    "subscription",
)


def verify(
    secrets: tuple[str, ...], headers: Mapping[str, str], body: bytes, now_epoch_s: int
) -> None:
    """Raises ``WebhookRefused`` unless one of the secrets signed these bytes in time: at most
    300 s ago and 60 s ahead of ``now_epoch_s`` (so a receiver verifies at receipt, once)."""
    header = next((v for k, v in headers.items() if k.lower() == "stripe-signature"), "")
    if not header:
        raise WebhookRefused("no Stripe-Signature header")
    stamp, signatures = _signatures(header)
    usable = [secret for secret in secrets[:_MOST_SECRETS] if secret.strip()]
    if not usable:
        raise WebhookRefused("no webhook secret is configured for this account")
    signed = str(stamp).encode() + b"." + body
    expected = [hmac.new(s.encode(), signed, hashlib.sha256).hexdigest() for s in usable]
    # Every pair is compared: the time taken says nothing of which secret matched.
    matches = [hmac.compare_digest(e, s) for e in expected for s in signatures]
    if not any(matches):
        raise WebhookRefused("no signature matches the body")
    if stamp < now_epoch_s - PAST_S:
        raise WebhookRefused(f"signed more than {PAST_S} s ago: late delivery or a wrong clock")
    if stamp > now_epoch_s + FUTURE_S:
        raise WebhookRefused(f"signed more than {FUTURE_S} s in the future: a wrong clock")


def facts(body: bytes) -> list[WebhookFact]:
    """What a genuine delivery says. A body that is no event gives a fact of kind ``unreadable``,
    named by its hash: it is kept and acknowledged, since sending it again would not improve it."""
    event = parsed(body)
    if event is None or not text(event.get("id")) or not text(event.get("type")):
        return [WebhookFact(f"sha256:{hashlib.sha256(body).hexdigest()}", "unreadable", "")]
    if event.get("object") == "v2.core.event":
        return [_thin(event)]
    return [_snapshot(event)]


def _signatures(header: str) -> tuple[int, list[str]]:
    stamp, signatures = "", []
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "t" and not stamp:
            stamp = value
        elif name == "v1" and value.isascii():
            signatures.append(value)
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise WebhookRefused("the Stripe-Signature header has no timestamp")
    if not signatures:
        raise WebhookRefused("the Stripe-Signature header has no v1 signature")
    return int(stamp), signatures[:_MOST_SIGNATURES]


def _snapshot(event: Mapping[str, Any]) -> WebhookFact:
    document = mapping(mapping(event.get("data")).get("object"))
    marks = _marks(document)
    return WebhookFact(
        event_id=text(event.get("id")),
        kind=text(event.get("type")),
        object_id=text(document.get("id")),
        receipt_ids=_receipt_ids(document),
        # Null where no request caused it; older versions give a bare request id.
        request_key=text(mapping(event.get("request")).get("idempotency_key")),
        owner=text(marks.get("outbox_id")),
        owner_key=text(marks.get("outbox_key")),
        livemode=flag(event.get("livemode")),
        vendor_account=text(event.get("account")) or None,
        vendor_time=whole(event.get("created")) or 0,
        api_version=text(event.get("api_version")),
        snapshot=document or None,
    )


def _thin(event: Mapping[str, Any]) -> WebhookFact:
    """A v2 notification: it names its object and carries none, so the resolver retrieves."""
    related = mapping(event.get("related_object"))
    request = mapping(mapping(event.get("reason")).get("request"))
    object_id = text(related.get("id"))
    return WebhookFact(
        event_id=text(event.get("id")),
        kind=text(event.get("type")),
        object_id=object_id,
        receipt_ids=(object_id,) if object_id else (),
        request_key=text(request.get("idempotency_key")),
        livemode=flag(event.get("livemode")),
        vendor_account=text(event.get("context")) or None,
        vendor_time=_epoch(text(event.get("created"))),
    )


def _receipt_ids(document: Mapping[str, Any]) -> tuple[str, ...]:
    found = [_id(document), *(_id(document.get(name)) for name in _PARENTS)]
    # Newer invoices name their subscription and their payments one level down.
    for at in (mapping(document.get("parent")), document):
        found.append(_id(mapping(at.get("subscription_details")).get("subscription")))
    payments = mapping(document.get("payments")).get("data")
    for payment in payments if isinstance(payments, list) else []:
        paid = mapping(mapping(payment).get("payment"))
        found += [_id(paid.get("payment_intent")), _id(paid.get("charge"))]
    return tuple(dict.fromkeys(each for each in found if each))


def _id(value: Any) -> str:
    return text(mapping(value).get("id")) if isinstance(value, Mapping) else text(value)


def _marks(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our marks on the object, else those that an invoice repeats of its subscription."""
    holders = (
        document,
        mapping(mapping(document.get("parent")).get("subscription_details")),
        mapping(document.get("subscription_details")),
    )
    for holder in holders:
        marks = mapping(holder.get("metadata"))
        if text(marks.get("outbox_id")) or text(marks.get("outbox_key")):
            return marks
    return {}


def _epoch(written: str) -> int:
    try:
        return int(datetime.fromisoformat(written).timestamp())
    except (ValueError, OverflowError):
        return 0

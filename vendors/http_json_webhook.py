"""Deliveries of a recipe's vendor: the raw bytes are verified first and only then parsed; pure.

The time is a parameter: what a library would take from its own clock is compared here. A stamp
that lies ahead of it by more than a minute is refused in every scheme.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from outbox.contracts.keys import key_in, owner_in
from outbox.contracts.recipe import Recipe, Signature, WebhookSpec
from outbox.outcomes import WebhookFact, WebhookRefused
from vendors.http_json_reading import NOT_JSON, at, id_at, livemode_at, parsed, seconds_at, text_at

FUTURE_S = 60
_MOST_SECRETS = 2
_MOST_SIGNATURES = 10
_MOST_EVENTS = 1000
# Standard Webhooks' own, and as they were called before it was a standard.
_STANDARD_NAMES = ("webhook", "svix")

# (what was signed when, signatures as given, what one secret would have made of it)
_Claim = tuple[int | None, list[str], Callable[[str], str]]


def verify(
    signature: Signature,
    secrets: tuple[str, ...],
    headers: Mapping[str, str],
    body: bytes,
    now_epoch_s: int,
) -> None:
    """Raises ``WebhookRefused`` unless one of the secrets signed these bytes in time."""
    lower = {name.lower(): value for name, value in headers.items()}
    match signature.scheme:
        case "stripe_like":
            stamp, given, expect = _stripe_like(signature, lower, body)
        case "standard_webhooks":
            stamp, given, expect = _standard(lower, body)
        case "hmac_sha256":
            stamp, given, expect = _hmac(signature, lower, body)
    expected = []
    for secret in [one for one in secrets[:_MOST_SECRETS] if one.strip()]:
        try:
            expected.append(expect(secret))
        except (ValueError, EmptyWebhookSecretError):
            continue  # not encoded as the recipe says: it cannot have signed anything
    if not expected:
        raise WebhookRefused(
            "no webhook secret is configured for this account, or none is readable"
        )
    # A server may hand a header's stray bytes on as text that has no encoding.
    readable = [one for one in given[:_MOST_SIGNATURES] if one.isascii()]
    # Every pair is compared: the time taken says nothing of which secret matched.
    matches = [hmac.compare_digest(one, other) for one in expected for other in readable]
    if not any(matches):
        raise WebhookRefused("no signature matches the body")
    if stamp is not None and stamp < now_epoch_s - signature.tolerance_s:
        raise WebhookRefused(
            f"signed more than {signature.tolerance_s} s ago: late delivery or a wrong clock"
        )
    if stamp is not None and stamp > now_epoch_s + FUTURE_S:
        raise WebhookRefused(f"signed more than {FUTURE_S} s in the future: a wrong clock")


def facts(recipe: Recipe, body: bytes) -> list[WebhookFact]:
    """What a genuine delivery says. What is no event gives a fact of kind ``unreadable``, named by
    its hash: it is kept and acknowledged, since sending it again would not improve it."""
    assert recipe.webhook is not None
    document = parsed(body)
    listed = [document] if recipe.webhook.events is None else at(document, recipe.webhook.events)
    if document is NOT_JSON or not isinstance(listed, list):
        return [_unreadable(body)]
    found = []
    for event in listed[:_MOST_EVENTS]:
        raw = body if recipe.webhook.events is None else json.dumps(event).encode()
        readable = isinstance(event, Mapping)
        found.append(_fact(recipe, recipe.webhook, event, raw) if readable else _unreadable(raw))
    return found


def _unreadable(raw: bytes) -> WebhookFact:
    return WebhookFact(f"sha256:{hashlib.sha256(raw).hexdigest()}", "unreadable", "")


def _fact(recipe: Recipe, spec: WebhookSpec, event: Any, raw: bytes) -> WebhookFact:
    found = at(event, spec.object)
    document = found if isinstance(found, Mapping) else {}
    object_id, mark = _object(recipe, document)
    mark = text_at(event, spec.owner) or mark
    key = text_at(event, spec.key)
    receipts = [object_id, *(id_at(event, path) for path in spec.receipts)]
    return WebhookFact(
        # An id that only a header tells would be gone when the stored body is read again.
        event_id=id_at(event, spec.event_id) or f"sha256:{hashlib.sha256(raw).hexdigest()}",
        kind=text_at(event, spec.kind) or "event",
        object_id=object_id,
        receipt_ids=tuple(dict.fromkeys(one for one in receipts if one)),
        request_key=key_in(key),
        owner=owner_in(mark) or owner_in(key),
        owner_key=key_in(mark),
        livemode=livemode_at(event, spec.livemode),
        vendor_account=id_at(event, spec.vendor_account) or None,
        vendor_time=seconds_at(event, spec.time),
        snapshot=document or None,
    )


def _object(recipe: Recipe, document: Mapping[str, Any]) -> tuple[str, str]:
    """The object's id and the mark on it, as the first operation that finds a mark reads them, or
    else the first that finds an id."""
    first = ("", "")
    for operation in recipe.operations.values():
        spec = operation.receipt
        seen = id_at(document, spec.id), text_at(document, spec.owner)
        if seen[0] and owner_in(seen[1]):
            return seen
        first = first if first[0] else (seen[0], "")
    return first


def _stripe_like(signature: Signature, headers: Mapping[str, str], body: bytes) -> _Claim:
    stamps, given = [], []
    for part in _header(headers, signature.header).split(","):
        name, _, value = part.strip().partition("=")
        if name == "t":
            stamps.append(value)
        elif name == "v1":
            given.append(value)
    stamp = _stamp(next(iter(stamps), ""))
    signed = b"%d." % stamp + body
    return stamp, given, lambda secret: _digest(secret.encode(), signed).hex()


def _standard(headers: Mapping[str, str], body: bytes) -> _Claim:
    name = next((n for n in _STANDARD_NAMES if f"{n}-id" in headers), _STANDARD_NAMES[0])
    event_id = _header(headers, f"{name}-id")
    stamp = _stamp(_header(headers, f"{name}-timestamp"))
    given = [one for one in _header(headers, f"{name}-signature").split(" ") if one]
    try:
        text, moment = body.decode(), datetime.fromtimestamp(stamp, UTC)
    except (UnicodeDecodeError, ValueError, OverflowError):
        raise WebhookRefused("the delivery is not of Standard Webhooks") from None
    return stamp, given, lambda secret: Webhook(secret).sign(event_id, moment, text)


def _hmac(signature: Signature, headers: Mapping[str, str], body: bytes) -> _Claim:
    stamp = None
    before, _, after = signature.signed.partition("{body}")
    if signature.timestamp_header:
        written = _header(headers, signature.timestamp_header)
        stamp = _stamp(written)
        before, after = (part.replace("{timestamp}", written) for part in (before, after))
    signed = before.encode() + body + after.encode()
    given = list(_unprefixed(signature, _header(headers, signature.header)))

    def expect(secret: str) -> str:
        digest = _digest(_secret(signature, secret), signed)
        return digest.hex() if signature.encoding == "hex" else base64.b64encode(digest).decode()

    return stamp, given, expect


def _unprefixed(signature: Signature, header: str) -> Iterator[str]:
    for one in header.split(","):
        if one.strip().startswith(signature.prefix):
            yield one.strip().removeprefix(signature.prefix)


def _secret(signature: Signature, secret: str) -> bytes:
    if signature.key_encoding == "hex":
        return bytes.fromhex(secret)
    if signature.key_encoding == "base64":
        try:
            return base64.b64decode(secret, validate=True)
        except binascii.Error as error:
            raise ValueError("not base64") from error
    return secret.encode()


def _digest(secret: bytes, signed: bytes) -> bytes:
    return hmac.new(secret, signed, hashlib.sha256).digest()


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name.lower(), "")
    if not value:
        raise WebhookRefused(f"no {name} header")
    return value


def _stamp(written: str) -> int:
    if not (written.isascii() and written.isdigit() and len(written) <= 12):
        raise WebhookRefused("the delivery has no timestamp in whole seconds")
    return int(written)

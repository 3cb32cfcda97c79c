"""What in a recipe's webhook contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outbox.contracts.recipe_faults import Fault
from outbox.contracts.recipe_parts import PLACEHOLDER, parts_of

Document = Mapping[str, Any]
# What each scheme may be told; standard_webhooks and stripe_like fix the rest by themselves.
_ALLOWED = {
    "stripe_like": frozenset({"header", "tolerance_s"}),
    "standard_webhooks": frozenset({"tolerance_s"}),
    "hmac_sha256": frozenset(
        {
            "header",
            "prefix",
            "encoding",
            "signed",
            "timestamp_header",
            "key_encoding",
            "tolerance_s",
        }
    ),
}


def check_webhook(document: Document) -> Iterator[Fault]:
    """How it is signed, and by what it would find its intent."""
    webhook = document.get("webhook")
    if webhook is None:
        return
    scheme = webhook["scheme"]
    for name in sorted((_ALLOWED["hmac_sha256"] & set(webhook)) - _ALLOWED[scheme]):
        yield ("webhook", name), f"webhook.{name} does not go with the scheme {scheme}"
    if scheme != "standard_webhooks" and "header" not in webhook:
        yield ("webhook",), f"webhook.header is missing: {scheme} needs the signature's header"
    if scheme == "hmac_sha256":
        yield from _check_hmac(webhook)
    if not {"object", "owner", "key", "receipts"} & set(webhook):
        yield ("webhook",), "webhook names no object, owner, key or receipts: nothing could join it"
    if "object" in webhook:
        for name, _, receipt in parts_of(document, "receipt"):
            if "id" not in (receipt or {}):
                yield (
                    ("webhook", "object"),
                    f"webhook.object is read as a receipt, and {name} has no receipt.id",
                )


def _check_hmac(webhook: Mapping[str, Any]) -> Iterator[Fault]:
    signed = webhook.get("signed", "{body}")
    names = PLACEHOLDER.findall(signed)
    if names.count("body") != 1 or set(names) - {"body", "timestamp"}:
        yield (
            ("webhook", "signed"),
            "webhook.signed must hold {body} once, and may hold {timestamp}",
        )
    stamped = "timestamp" in names
    if stamped and "timestamp_header" not in webhook:
        yield (
            ("webhook", "signed"),
            "webhook.signed holds {timestamp}: name its timestamp_header",
        )
    if "timestamp_header" in webhook and not stamped:
        # A stamp that is not signed could be set to any time by whoever repeats a delivery.
        yield (
            ("webhook", "timestamp_header"),
            "webhook.timestamp_header, and webhook.signed does not hold {timestamp}",
        )
    if "tolerance_s" in webhook and not stamped:
        yield ("webhook", "tolerance_s"), "webhook.tolerance_s without a signed timestamp"

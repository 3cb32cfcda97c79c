"""Deliveries as Stripe makes them, signed by Stripe's own SDK."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from typing import Any

import stripe

from tests.resolvers.ledger import SECRET

_numbers = itertools.count()


@dataclass
class Delivery:
    headers: dict[str, str]
    body: bytes


def event(
    metadata: dict[str, str] | None = None,
    *,
    event_id: str = "",
    key: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A payment_intent.succeeded; ``changes`` are fields of the event."""
    number = f"{os.getpid()}x{next(_numbers)}"
    return {
        "id": event_id or f"evt_{number}",
        "object": "event",
        "type": "payment_intent.succeeded",
        "created": 1_780_000_000,
        "livemode": False,
        "api_version": "2026-10-28.endive",
        "request": {"id": f"req_{number}", "idempotency_key": key},
        "data": {
            "object": {
                "id": f"pi_{number}",
                "object": "payment_intent",
                "status": "succeeded",
                "amount": 1200,
                "amount_received": 1200,
                "currency": "usd",
                "created": 1_780_000_000,
                "livemode": False,
                "metadata": metadata or {},
            }
        },
        **changes,
    }


def signed(body: bytes | str | dict[str, Any], at: int, secret: str = SECRET) -> Delivery:
    """The delivery of these very bytes, signed at a second of the epoch."""
    text = json.dumps(body) if isinstance(body, dict) else body
    text = text.decode() if isinstance(text, bytes) else text
    header = stripe.WebhookSignature.generate_signature_header(text, secret, at)
    return Delivery({"Stripe-Signature": header}, text.encode())

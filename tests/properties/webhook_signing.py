"""Deliveries to the scene's own account, signed by Stripe's own words."""

from __future__ import annotations

import hashlib
import hmac

from tests.properties.scene import SECRET


def genuine(body: bytes, at: int) -> dict[str, str]:
    """The header of these very bytes, signed at a second of the epoch."""
    mac = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={at},v1={mac}"}

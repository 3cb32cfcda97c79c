"""How the JSON faces write and sign their events. `event` is the ledger's, in Stripe's shape."""

from __future__ import annotations

import base64
import hashlib
import hmac

from vendors.sandbox.json_face import iso
from vendors.sandbox.ledger import Json


def rendered(face: str, event: Json) -> Json:
    obj = event["data"]["object"]
    if face == "external_ids":
        return {
            "type": "notification_event", "id": event["id"], "topic": event["type"],
            "created_at": event["created"], "data": {"item": obj},
        }  # fmt: skip
    if face == "nothing":
        inner = {"type": event["type"], "ts": obj["ts"], "message": obj}
        return {"event_id": event["id"], "event_time": event["created"], "event": inner}
    request = event["request"] or {}
    return {
        "id": event["id"], "type": event["type"], "created_at": iso(event["created"]),
        "livemode": event["livemode"], "idempotency_key": request.get("idempotency_key"),
        "data": obj,
    }  # fmt: skip


def signed(face: str, secrets: list[str], event_id: str, body: bytes, now: int) -> dict[str, str]:
    """The headers of one delivery; several secrets where the scheme takes several signatures."""
    if face == "external_ids":
        return {"X-Hub-Signature-256": f"sha256={_mac(secrets[-1].encode(), body).hex()}"}
    if face == "nothing":
        stamped = b"v0:%d:" % now + body
        marks = [f"v0={_mac(secret.encode(), stamped).hex()}" for secret in secrets]
        return {"X-Request-Timestamp": str(now), "X-Signature": ",".join(marks)}
    stamped = f"{event_id}.{now}.".encode() + body
    marks = [_standard(secret, stamped) for secret in secrets]
    return {
        "webhook-id": event_id, "webhook-timestamp": str(now), "webhook-signature": " ".join(marks),
    }  # fmt: skip


def _standard(secret: str, stamped: bytes) -> str:
    # A fault spoils a secret by what it adds after a dash, which no base64 holds.
    encoded, _, spoiled = secret.removeprefix("whsec_").partition("-")
    key = base64.b64decode(encoded + "==") + spoiled.encode()
    return f"v1,{base64.b64encode(_mac(key, stamped)).decode()}"


def _mac(key: bytes, signed_bytes: bytes) -> bytes:
    return hmac.new(key, signed_bytes, hashlib.sha256).digest()

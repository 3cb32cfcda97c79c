"""What a request passes through at a JSON face: as at Stripe's, but for bodies and conflicts."""

from __future__ import annotations

from urllib.parse import parse_qsl

from vendors.sandbox.arrivals import Arrival
from vendors.sandbox.errors import Refusal
from vendors.sandbox.json_face import VENDOR_FAULTS, face_of, parsed
from vendors.sandbox.layers import Layers
from vendors.sandbox.ledger import Json
from vendors.sandbox.wire import Answer


class JsonLayers(Layers):
    def answer(self, a: Arrival) -> Answer | None:
        if a.fault is not None and a.fault.kind not in VENDOR_FAULTS:
            return a.error(Refusal(501, f"This face has no fault {a.fault.kind}.", code="no_fault"))
        return super().answer(a)

    def _honours(self, a: Arrival) -> bool:
        return face_of(a.request.path) == "keys" and a.settings.honours_keys

    def _mismatch(self, row: Json) -> Refusal:
        return Refusal(
            409, "This key was first used for another request.",
            code="idempotency_key_already_used", resource=row["request_id"],
        )  # fmt: skip

    def _parse(self, a: Arrival) -> Json:
        if a.request.method == "GET":
            return dict(parse_qsl(a.request.query))
        if not a.request.headers.get("content-type", "").startswith("application/json"):
            raise Refusal(415, "This API takes application/json.", code="unsupported_media_type")
        return parsed(a.request.body)

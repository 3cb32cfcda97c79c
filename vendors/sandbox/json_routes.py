"""Which endpoints the JSON faces have, and how each words an error."""

from __future__ import annotations

from vendors.sandbox import json_face as faces
from vendors.sandbox.errors import Refusal
from vendors.sandbox.ledger import Json
from vendors.sandbox.resources import Operation

_KEYS, _IDS, _REFERENCES, _NOTHING = (f"{faces.ROOT}{face}" for face in faces.FACES)

OPERATIONS = [
    Operation("payments.create", "POST", f"{_KEYS}/payments", None, faces.create_payment),
    Operation(
        "payments.cancel", "POST", f"{_KEYS}/payments/{{id}}/cancel", None, faces.cancel_payment
    ),
    Operation("payments.list", "GET", f"{_KEYS}/payments", None, faces.list_payments),
    Operation("payments.retrieve", "GET", f"{_KEYS}/payments/{{id}}", None, faces.retrieve_payment),
    Operation("payments.account", "GET", f"{_KEYS}/account", None, faces.own_payments_account),
    Operation("contacts.create", "POST", f"{_IDS}/contacts", None, faces.create_contact),
    Operation("contacts.retrieve", "GET", f"{_IDS}/contacts/{{id}}", None, faces.retrieve_contact),
    Operation(
        "contacts.find", "GET", f"{_IDS}/contacts/find_by_external_id/{{id}}", None,
        faces.find_contact,
    ),
    Operation("contacts.me", "GET", f"{_IDS}/me", None, faces.own_workspace),
    Operation("tickets.create", "POST", f"{_REFERENCES}/tickets", None, faces.create_ticket),
    Operation("tickets.list", "GET", f"{_REFERENCES}/tickets", None, faces.list_tickets),
    Operation("tickets.retrieve", "GET", f"{_REFERENCES}/tickets/{{id}}", None,
              faces.retrieve_ticket),
    Operation("messages.post", "POST", f"{_NOTHING}/messages.post", None, faces.post_message),
]  # fmt: skip
BY_NAME = {operation.name: operation for operation in OPERATIONS}
_BY_PATH = {(operation.method, operation.path): operation for operation in OPERATIONS}


def route(method: str, path: str) -> tuple[Operation | None, str]:
    """The operation and the object id in the path ("" where there is none)."""
    exact = _BY_PATH.get((method, path))
    if exact is not None:
        return exact, ""
    parts = path.split("/")
    for at in range(4, len(parts)):
        if parts[at]:
            pattern = "/".join([*parts[:at], "{id}", *parts[at + 1 :]])
            found = _BY_PATH.get((method, pattern))
            if found is not None:
                return found, parts[at]
    return None, ""


def error_of(face: str, refusal: Refusal) -> tuple[int, Json, dict[str, str]]:
    """(status, body, headers) of a refusal, in the face's words."""
    code = refusal.error.get("code") or {401: "invalid_auth", 403: "forbidden"}.get(
        refusal.status, "error"
    )
    message = refusal.error["message"]
    headers = {n: v for n, v in refusal.headers.items() if not n.startswith("Stripe-")}
    if face == "external_ids":
        return refusal.status, {"errors": [{"code": code, "message": message}]}, headers
    if face == "nothing":
        # It answers 200 and says in the body that it did not; only the edge uses statuses.
        status = 200 if refusal.status in (400, 401, 403, 404, 422) else refusal.status
        word = "ratelimited" if refusal.status == 429 else code
        return status, {"ok": False, "error": word}, headers
    return refusal.status, {"error": {"code": code, "message": message}}, headers

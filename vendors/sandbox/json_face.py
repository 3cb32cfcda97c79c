"""JSON APIs beside Stripe's, on the same port: `/json/<face>/...`, each with its own kind of key.

`keys`: POST payments and payments/ID/cancel; `Idempotency-Key` for 24 h, replays are marked; reads
one, lists by `idempotency_key` and `created_after` with a cursor; account; Standard Webhooks.

`external_ids`: POST contacts; no key, and `external_id` is unique: 409 `conflict` names the object;
reads one, and one by its external id; me; webhooks with a hex HMAC of the body.

`references`: POST tickets; each request makes one; reads one, lists by `reference` with pages by
number; no webhooks.

`nothing`: POST messages.post; each request makes one; no reads; webhooks with a hex HMAC of time
and body; errors are 200 with `ok` false.

Credentials are those of the Stripe face, as a Bearer token or in `X-Api-Key: Token ...`. An
account's `honours_keys` switches off the keys, and the uniqueness of external ids; `list_lag_s`
hides young objects from lists and from the read by external id. Faults of the transport work as
they are; of the vendor's own those in `VENDOR_FAULTS`, and `status:<word>` for payments.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime

from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json

ROOT = "/json/"
FACES = ("keys", "external_ids", "references", "nothing")
VENDOR_FAULTS = frozenset(
    {
        "stored_500_no_object",
        "stored_500_object_later",
        "stored_500_rolled_back",
        "in_use_409",
        "rate_limited_429",
        "unavailable_503",
        "unauthorized_401",
        "forbidden_403",
        "pruned_early",
    }
)
# Writes that are repeated at the client's own risk: nothing of them is kept under a key.
KEYLESS = frozenset({"contacts.create", "tickets.create", "messages.post"})
_CURRENCY = re.compile(r"[a-z]{3}\Z")
_PAGE_SIZE, _MOST = 20, 100


def face_of(path: str) -> str:
    """The face that a path belongs to; empty for Stripe's."""
    if not path.startswith(ROOT):
        return ""
    name = path.split("/")[2]
    return name if name in FACES else "keys"


def parsed(body: bytes) -> Json:
    """A JSON object; a Refusal otherwise."""
    try:
        document = json.loads(body)
    except ValueError:
        raise Refusal(400, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise Refusal(400, "The body is not an object.", code="invalid_json")
    return document


def key_of(path: str, headers: dict[str, str], body: bytes) -> str | None:
    """What names a write in the ledger: its key, or the external id that it asks for."""
    if face_of(path) == "external_ids":
        try:
            found = parsed(body).get("external_id")
        except Refusal:
            return None
        return found if isinstance(found, str) and found else None
    return headers.get("idempotency-key") or None


def credential_of(headers: dict[str, str]) -> str:
    """The credential of a request, however its face takes it."""
    token = headers.get("x-api-key", "").removeprefix("Token ")
    if token:
        return token
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme != "Basic":
        return given
    try:
        return base64.b64decode(given).decode("latin-1").partition(":")[0]
    except ValueError:
        return ""


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


# ---- writes


def create_payment(x: Execution, _: str) -> Json:
    p = _checked(x.params, {"amount": int, "currency": str, "recipient": str}, {"memo": str})
    if p["amount"] < 1 or not _CURRENCY.match(p["currency"]):
        raise _invalid("amount and currency")
    if p["recipient"] == "unknown":
        raise Refusal(422, "No such recipient.", code="recipient_unknown", executed=True)
    declined = p["recipient"] == "blocked"
    payment = {
        "id": x.ledger.new_id("pay_"),
        "object": "payment",
        "amount": p["amount"],
        "currency": p["currency"],
        "recipient": p["recipient"],
        "memo": p.get("memo"),
        "status": "rejected" if declined else x.forced_status or "succeeded",
        "failure": {"code": "recipient_blocked"} if declined else None,
        "idempotency_key": x.key,
        "livemode": x.livemode,
        "created_at": iso(x.at),
        "updated_at": iso(x.at),
    }
    _insert(x, "payments", payment)
    x.effect("create", payment, outcome="declined" if declined else "applied")
    x.emit("payment.created", payment)
    return payment


def cancel_payment(x: Execution, object_id: str) -> Json:
    payment = _one(x, "payments", object_id)
    if payment["status"] == "canceled":
        raise Refusal(409, "It is canceled already.", code="already_canceled", executed=True)
    x.update(payment, status="canceled", updated_at=iso(x.at))
    x.effect("cancel", payment)
    x.emit("payment.canceled", payment)
    return payment


def create_contact(x: Execution, _: str) -> Json:
    p = _checked(x.params, {"email": str, "external_id": str}, {"name": str})
    known = _by_field(x, "contacts", "external_id", p["external_id"])
    if known and x.ledger.account(x.account).honours_keys:
        message = f"A contact matching those details already exists with id={known[0]['id']}"
        raise Refusal(409, message, code="conflict", executed=True)
    contact = {
        "id": x.ledger.new_id("con_"),
        "object": "contact",
        "email": p["email"],
        "name": p.get("name"),
        "external_id": p["external_id"],
        "created_at": int(x.at),
        "updated_at": int(x.at),
    }
    _insert(x, "contacts", contact)
    x.effect("create", contact)
    x.emit("contact.created", contact)
    return {"contact": contact}


def create_ticket(x: Execution, _: str) -> Json:
    p = _checked(x.params, {"title": str}, {"reference": str, "body": str})
    ticket = {
        "id": x.ledger.new_id("tic_"),
        "object": "ticket",
        "title": p["title"],
        "body": p.get("body"),
        "reference": p.get("reference"),
        "state": "open",
        "created_at": iso(x.at),
    }
    _insert(x, "tickets", ticket)
    x.params = {"metadata": {"outbox_id": p.get("reference")}}
    x.effect("create", ticket)
    return ticket


def post_message(x: Execution, _: str) -> Json:
    p = _checked(x.params, {"channel": str, "text": str}, {"metadata": dict})
    if p["channel"] == "nowhere":
        raise Refusal(404, "No such channel.", code="channel_not_found")
    message = {
        "id": x.ledger.new_id("msg_"),
        "object": "message",
        "channel": p["channel"],
        "text": p["text"],
        "metadata": p.get("metadata", {}),
        "ts": f"{x.at:.6f}",
    }
    _insert(x, "posted", message)
    x.effect("post", message)
    x.emit("message.posted", message)
    return {"ok": True, "channel": p["channel"], "ts": message["ts"], "message": message}


# ---- reads


def own_payments_account(x: Execution, _: str) -> Json:
    return {"id": x.account.partition("/")[0], "livemode": x.livemode}


def own_workspace(x: Execution, _: str) -> Json:
    return {"workspace": {"id": x.account.partition("/")[0]}}


def retrieve_payment(x: Execution, object_id: str) -> Json:
    return _one(x, "payments", object_id)


def retrieve_contact(x: Execution, object_id: str) -> Json:
    return {"contact": _one(x, "contacts", object_id)}


def retrieve_ticket(x: Execution, object_id: str) -> Json:
    return _one(x, "tickets", object_id)


def find_contact(x: Execution, external_id: str) -> Json:
    found = _by_field(x, "contacts", "external_id", external_id, lag=True)
    if not found:
        raise Refusal(404, "No such contact.", code="not_found")
    return {"contact": found[0]}


def list_payments(x: Execution, _: str) -> Json:
    found = _by_field(x, "payments", "idempotency_key", x.params.get("idempotency_key"), lag=True)
    after = x.params.get("created_after")
    if after:
        since = datetime.fromisoformat(after)
        found = [one for one in found if datetime.fromisoformat(one["created_at"]) >= since]
    start = int(x.params.get("cursor", "0"))
    limit = min(int(x.params.get("limit", _PAGE_SIZE)), _MOST)
    more = start + limit < len(found)
    return {
        "data": found[start : start + limit],
        "next_cursor": str(start + limit) if more else None,
    }


def list_tickets(x: Execution, _: str) -> Json:
    found = _by_field(x, "tickets", "reference", x.params.get("reference"), lag=True)
    page = int(x.params.get("page", "1"))
    size = min(int(x.params.get("per_page", _PAGE_SIZE)), _MOST)
    return {"tickets": found[(page - 1) * size : page * size], "page": page}


# ---- parts


def _checked(params: Json, required: dict[str, type], optional: dict[str, type]) -> Json:
    known = required | optional
    for name in params:
        if name not in known:
            raise _invalid(name)
    for name in required:
        if params.get(name) in (None, ""):
            raise _invalid(name)
    for name, value in params.items():
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise _invalid(name)
    return params


def _invalid(name: str) -> Refusal:
    return Refusal(422, f"Invalid: {name}", code="invalid_parameters", param=name)


def _insert(x: Execution, kind: str, obj: Json) -> None:
    x.ledger.insert(x.account, kind, obj, x.at)


def _one(x: Execution, kind: str, object_id: str) -> Json:
    found = x.ledger.load(x.account, kind, object_id)
    if found is None:
        raise Refusal(404, f"No such object: {object_id}", code="not_found")
    return found


def _by_field(
    x: Execution, kind: str, name: str, value: str | None, *, lag: bool = False
) -> list[Json]:
    """Objects whose field has this value (all without one), oldest first, perhaps with a lag."""
    seen_until = x.at - (x.ledger.account(x.account).list_lag_s if lag else 0.0)
    rows = x.ledger.all(
        "select body from objects where account = ? and kind = ? and at <= ?"
        " and (? is null or json_extract(body, '$.' || ?) = ?) order by seq",
        x.account, kind, seen_until, value, name, value,
    )  # fmt: skip
    return [json.loads(row["body"]) for row in rows]

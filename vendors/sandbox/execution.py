"""One write being executed: objects, events and effects, all in the ledger's open transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vendors.sandbox.errors import missing
from vendors.sandbox.ledger import Json, Ledger, dumps

# kind (the path under /v1) -> id prefix, `object`, and the name the SDK gives its parameter types
KINDS: dict[str, tuple[str, str, str]] = {
    "customers": ("cus_", "customer", "customer"),
    "payment_intents": ("pi_", "payment_intent", "payment_intent"),
    "setup_intents": ("seti_", "setup_intent", "setup_intent"),
    "charges": ("ch_", "charge", "charge"),
    "refunds": ("re_", "refund", "refund"),
    "transfers": ("tr_", "transfer", "transfer"),
    "invoices": ("in_", "invoice", "invoice"),
    "invoiceitems": ("ii_", "invoiceitem", "invoice_item"),
    "subscriptions": ("sub_", "subscription", "subscription"),
    "checkout/sessions": ("cs_test_", "checkout.session", "checkout/session"),
    "products": ("prod_", "product", "product"),
    "prices": ("price_", "price", "price"),
    "events": ("evt_", "event", "event"),
    "webhook_endpoints": ("we_", "webhook_endpoint", "webhook_endpoint"),
}
LIVE_SUFFIX = "/live"
# Payment and setup intents reach a wished status by their own steps, with charges and events.
_STATUS_AS_WISHED = {"refunds", "subscriptions", "invoices", "checkout/sessions"}


@dataclass(slots=True)
class Execution:
    """`account` is the ledger's name (`acct_x`, `acct_x/live`); without `request_id` the vendor
    acts by itself.

    Snapshots in events are shallow: operations replace nested values, never change them in place.
    """

    ledger: Ledger
    account: str
    params: Json
    request_id: str | None = None
    key: str | None = None
    forced_status: str | None = None
    platform: str | None = None
    planted: bool = False
    face: str = ""
    events: list[Json] = field(default_factory=list)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.at = self.ledger.now(self.account)

    @property
    def livemode(self) -> bool:
        wished = self.ledger.account(self.account).livemode
        return self.account.endswith(LIVE_SUFFIX) if wished is None else wished

    def find(self, kind: str, object_id: str, param: str) -> Json:
        found = self.ledger.load(self.account, kind, object_id)
        if found is None:
            raise missing(KINDS[kind][1], object_id, param)
        return found

    def customer(self) -> str | None:
        """The `customer` parameter, which must exist unless the account takes any."""
        given: str | None = self.params.get("customer")
        any_customer = self.ledger.account(self.account).any_customer
        if given and not (any_customer and given.startswith("cus_")):
            self.find("customers", given, "customer")
        return given

    def create(self, kind: str, fields: Json) -> Json:
        prefix, name, _ = KINDS[kind]
        obj: Json = {
            "id": self.ledger.new_id(prefix),
            "object": name,
            "created": int(self.at),
            "livemode": self.livemode,
            "metadata": self.params.get("metadata", {}),
            **fields,
        }
        wanted = self.wanted_status(obj["metadata"])
        if wanted and kind in _STATUS_AS_WISHED:
            obj["status"] = wanted
        self.ledger.insert(self.account, kind, obj, self.at)
        return obj

    def wanted_status(self, metadata: dict[str, str]) -> str | None:
        """The result that a fault (`status:<word>`) or `metadata[sandbox_status]` asks for."""
        return self.forced_status or metadata.get("sandbox_status")

    def emit(self, type: str, obj: Json, previous: Json | None = None) -> None:
        data: Json = {"object": {**obj}}
        if previous is not None:
            data["previous_attributes"] = previous
        event: Json = {
            "id": self.ledger.new_id("evt_"),
            "object": "event",
            "api_version": self.ledger.account(self.account).api_version,
            "created": int(self.at),
            "data": data,
            "livemode": self.livemode,
            "pending_webhooks": 0,
            "request": {"id": self.request_id, "idempotency_key": None},
            "type": type,
        }
        if self.request_id is not None:
            event["request"]["idempotency_key"] = self.key
        if self.platform is not None:
            event["account"] = self.account.removesuffix(LIVE_SUFFIX)
        self.events.append(event)

    def effect(
        self, verb: str, obj: Json, amount: int | None = None, outcome: str = "applied"
    ) -> None:
        """Notes what this write did, for the outbox's intent named in the request's own metadata:
        a capture belongs to whoever asked for the capture, not to whoever created the object."""
        if self.planted:
            outcome = "planted"
        metadata: dict[str, Any] = self.params.get("metadata") or {}
        self.ledger.run(
            "insert into effects (account, kind, object_id, amount, currency, key, outbox_id,"
            " outbox_key, outcome, request_id, at, recorded_at)"
            " values (?,?,?,?,?,?,?,?,?,?,?,?)",
            self.account, f"{obj['object']}.{verb}", obj["id"],
            obj.get("amount") if amount is None else amount, obj.get("currency"), self.key,
            metadata.get("outbox_id"), metadata.get("outbox_key"), outcome, self.request_id,
            self.at, self.ledger.wall_s(),
        )  # fmt: skip

    def update(self, obj: Json, **fields: Any) -> Json:
        """Applies `fields` and returns what they replaced (for `previous_attributes`)."""
        previous = {name: obj.get(name) for name in fields if obj.get(name) != fields[name]}
        obj.update(fields)
        self.ledger.save(obj)
        return previous


def digestible(params: Json) -> str:
    """Parameters in one canonical order: reordering them is not a change, another value is."""
    return dumps(_ordered(params))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return value

"""Which endpoints exist: method and path to operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vendors.sandbox import billing, customers, endpoints, payments, reads, refunds
from vendors.sandbox.execution import KINDS, Execution
from vendors.sandbox.ledger import Json

Run = Callable[[Execution, str], Json]


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` is the SDK's (`payment_intents.create`); `schema` names its parameter type."""

    name: str
    method: str
    path: str
    schema: str | None
    run: Run


_CREATE: dict[str, Run] = {
    "customers": customers.create_customer,
    "payment_intents": payments.create_payment_intent,
    "setup_intents": customers.create_setup_intent,
    "refunds": refunds.create_refund,
    "transfers": refunds.create_transfer,
    "invoices": billing.create_invoice,
    "invoiceitems": billing.create_invoice_item,
    "subscriptions": billing.create_subscription,
    "checkout/sessions": billing.create_session,
    "products": billing.create_product,
    "prices": billing.create_price,
    "webhook_endpoints": endpoints.create_endpoint,
}
# kind, the SDK's verb, last path segment, the verb in the SDK's parameter type, function
_STEPS: list[tuple[str, str, str, str, Run]] = [
    ("payment_intents", "confirm", "confirm", "confirm", payments.confirm_payment_intent),
    ("payment_intents", "capture", "capture", "capture", payments.capture_payment_intent),
    ("payment_intents", "cancel", "cancel", "cancel", payments.cancel_payment_intent),
    ("setup_intents", "confirm", "confirm", "confirm", customers.confirm_setup_intent),
    ("setup_intents", "cancel", "cancel", "cancel", customers.cancel_setup_intent),
    ("invoices", "finalize_invoice", "finalize", "finalize_invoice", billing.finalize_invoice),
    ("invoices", "pay", "pay", "pay", billing.pay_invoice),
    ("invoices", "void_invoice", "void", "void_invoice", billing.void_invoice),
    ("checkout/sessions", "expire", "expire", "expire", billing.expire_session),
]
_SEARCHED = (
    "charges", "customers", "invoices", "payment_intents", "prices", "products", "subscriptions",
)  # fmt: skip
_UPDATED = {
    "customers": "customer.updated",
    "payment_intents": None,
    "setup_intents": None,
    "charges": "charge.updated",
    "refunds": "refund.updated",
    "transfers": "transfer.updated",
    "invoices": "invoice.updated",
    "invoiceitems": None,
    "subscriptions": "customer.subscription.updated",
    "checkout/sessions": None,
    "products": "product.updated",
    "prices": "price.updated",
}


def _update(x: Execution, object_id: str, *, kind: str) -> Json:
    """Merges metadata ("" removes a name) and replaces every other parameter given."""
    obj = x.find(kind, object_id, "id")
    changes = {name: value for name, value in x.params.items() if name != "expand"}
    if "metadata" in changes:
        merged = {**obj["metadata"], **changes["metadata"]} if changes["metadata"] else {}
        changes["metadata"] = {name: value for name, value in merged.items() if value != ""}
    previous = x.update(obj, **changes)
    x.effect("update", obj)
    event = _UPDATED[kind]
    if event is not None and previous:
        x.emit(event, obj, previous)
    return obj


def _operations() -> list[Operation]:
    found = [
        Operation("account.retrieve", "GET", "/v1/account", None, reads.own_account),
        Operation("balance.retrieve", "GET", "/v1/balance", None, reads.balance),
        Operation(
            "subscriptions.cancel", "DELETE", "/v1/subscriptions/{id}",
            "subscription_cancel", billing.cancel_subscription,
        ),
        Operation(
            "webhook_endpoints.delete", "DELETE", "/v1/webhook_endpoints/{id}",
            None, endpoints.delete_endpoint,
        ),
    ]  # fmt: skip
    for kind, (_, _, sdk) in KINDS.items():
        group, base = kind.replace("/", "."), f"/v1/{kind}"

        def add(
            verb: str, method: str, path: str, schema: str, run: Run, group: str = group
        ) -> None:
            found.append(Operation(f"{group}.{verb}", method, path, schema, run))

        add("list", "GET", base, f"{sdk}_list", lambda x, _, k=kind: reads.list_objects(x, k))  # type: ignore[misc]
        add(
            "retrieve", "GET", f"{base}/{{id}}", f"{sdk}_retrieve",
            lambda x, object_id, k=kind: reads.retrieve(x, k, object_id),  # type: ignore[misc]
        )  # fmt: skip
        if kind in _CREATE:
            add("create", "POST", base, f"{sdk}_create", _CREATE[kind])
        if kind in _UPDATED:
            update = partial(_update, kind=kind)
            add("update", "POST", f"{base}/{{id}}", f"{sdk}_update", update)
        if kind in _SEARCHED:
            add(
                "search", "GET", f"{base}/search", f"{sdk}_search",
                lambda x, _, k=kind: reads.search(x, k),  # type: ignore[misc]
            )  # fmt: skip
    for kind, verb, segment, schema_verb, run in _STEPS:
        sdk = KINDS[kind][2]
        found.append(
            Operation(
                f"{kind.replace('/', '.')}.{verb}",
                "POST",
                f"/v1/{kind}/{{id}}/{segment}",
                f"{sdk}_{schema_verb}",
                run,
            )
        )
    return found


OPERATIONS = _operations()
BY_NAME = {operation.name: operation for operation in OPERATIONS}
_BY_PATH = {(operation.method, operation.path): operation for operation in OPERATIONS}


def route(method: str, path: str) -> tuple[Operation | None, str]:
    """The operation and the object id in the path ("" where there is none)."""
    exact = _BY_PATH.get((method, path))
    if exact is not None:
        return exact, ""
    parts = path.split("/")
    for at in (3, 4):
        if at < len(parts) and parts[at]:
            pattern = "/".join([*parts[:at], "{id}", *parts[at + 1 :]])
            found = _BY_PATH.get((method, pattern))
            if found is not None:
                return found, parts[at]
    return None, ""

"""Where Stripe shows the objects of each operation: its list, and the events that the write causes;
data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """Where objects of one type are read. ``parents`` are request fields that the list can be
    narrowed by, so that a busy account is read by customer and not as a whole."""

    path: str
    parents: tuple[str, ...] = ()
    always: tuple[tuple[str, Any], ...] = ()
    expand: tuple[str, ...] = ()


SOURCES: Mapping[str, Source] = {
    "customer": Source("/v1/customers"),
    # Only the charge tells that a payment was refunded later.
    "payment_intent": Source("/v1/payment_intents", ("customer",), expand=("latest_charge",)),
    "setup_intent": Source("/v1/setup_intents", ("customer",)),
    "invoice": Source("/v1/invoices", ("customer",)),
    "invoiceitem": Source("/v1/invoiceitems", ("customer",)),
    # Without it the list leaves out cancelled ones.
    "subscription": Source("/v1/subscriptions", ("customer",), (("status", "all"),)),
    "checkout.session": Source("/v1/checkout/sessions", ("customer",)),
    "refund": Source("/v1/refunds", ("payment_intent", "charge")),
    "transfer": Source("/v1/transfers", ("destination",)),
}

# Events whose cause is the write itself; Stripe takes up to twenty types in one list.
EVENTS: Mapping[str, tuple[str, ...]] = {
    "customers.create": ("customer.created",),
    "payment_intents.create": ("payment_intent.created",),
    "payment_intents.confirm": (
        "payment_intent.amount_capturable_updated",
        "payment_intent.payment_failed",
        "payment_intent.processing",
        "payment_intent.requires_action",
        "payment_intent.succeeded",
    ),
    "payment_intents.capture": ("payment_intent.succeeded",),
    "payment_intents.cancel": ("payment_intent.canceled",),
    "setup_intents.create": ("setup_intent.created",),
    "setup_intents.confirm": (
        "setup_intent.requires_action",
        "setup_intent.setup_failed",
        "setup_intent.succeeded",
    ),
    "setup_intents.cancel": ("setup_intent.canceled",),
    "invoices.create": ("invoice.created",),
    "invoices.finalize": ("invoice.finalized",),
    "invoices.pay": ("invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded"),
    "invoice_items.create": ("invoiceitem.created",),
    "subscriptions.create": ("customer.subscription.created",),
    # Stripe tells nothing of a session that is merely open: its list does.
    "checkout.sessions.create": ("checkout.session.completed", "checkout.session.expired"),
    "refunds.create": ("refund.created",),
    "transfers.create": ("transfer.created",),
}

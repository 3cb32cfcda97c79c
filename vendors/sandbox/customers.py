"""Customers and setup intents."""

from __future__ import annotations

from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json
from vendors.sandbox.payments import DECLINED, NEEDS_ACTION, expect, payment_method


def create_customer(x: Execution, _: str) -> Json:
    names = ("email", "name", "phone", "description", "address", "shipping", "preferred_locales")
    customer = x.create(
        "customers",
        {
            "balance": x.params.get("balance", 0),
            "currency": None,
            "default_source": None,
            "delinquent": False,
            "invoice_prefix": None,
            **{name: x.params.get(name) for name in names},
        },
    )
    x.effect("create", customer)
    x.emit("customer.created", customer)
    return customer


def create_setup_intent(x: Execution, _: str) -> Json:
    method = payment_method(x.params.get("payment_method"))
    intent = x.create(
        "setup_intents",
        {
            "cancellation_reason": None,
            "client_secret": x.ledger.new_id("seti_secret_"),
            "customer": x.customer(),
            "description": x.params.get("description"),
            "last_setup_error": None,
            "next_action": None,
            "payment_method": method,
            "payment_method_types": ["card"],
            "status": "requires_confirmation" if method else "requires_payment_method",
            "usage": x.params.get("usage", "off_session"),
        },
    )
    x.emit("setup_intent.created", intent)
    if x.params.get("confirm") is True and method:
        _set_up(x, intent, "create")
    else:
        x.effect("create", intent)
    return intent


def confirm_setup_intent(x: Execution, object_id: str) -> Json:
    intent = x.find("setup_intents", object_id, "intent")
    expect(intent, "confirm", "requires_confirmation", "requires_payment_method", "requires_action")
    intent["payment_method"] = (
        payment_method(x.params.get("payment_method")) or intent["payment_method"]
    )
    _set_up(x, intent, "confirm")
    return intent


def _set_up(x: Execution, intent: Json, verb: str) -> None:
    method = intent["payment_method"]
    if method in DECLINED:
        failure = {"code": DECLINED[method][0], "type": "card_error", "message": "Card declined."}
        x.update(intent, status="requires_payment_method", last_setup_error=failure)
        x.emit("setup_intent.setup_failed", intent)
        x.effect(verb, intent, outcome="declined")
        raise Refusal(
            402, "Your card was declined.", type="card_error", code=DECLINED[method][0],
            executed=True, setup_intent=intent,
        )  # fmt: skip
    waiting = method in NEEDS_ACTION
    status = x.wanted_status(intent["metadata"]) or ("requires_action" if waiting else "succeeded")
    x.update(intent, status=status)
    x.effect(verb, intent)
    if status in ("requires_action", "succeeded"):
        x.emit(f"setup_intent.{status}", intent)


def cancel_setup_intent(x: Execution, object_id: str) -> Json:
    intent = x.find("setup_intents", object_id, "intent")
    expect(intent, "cancel", "requires_payment_method", "requires_confirmation", "requires_action")
    x.update(intent, status="canceled", cancellation_reason=x.params.get("cancellation_reason"))
    x.effect("cancel", intent)
    x.emit("setup_intent.canceled", intent)
    return intent

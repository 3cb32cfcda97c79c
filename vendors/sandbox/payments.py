"""Payment intents and their charges: what Stripe does with them."""

from __future__ import annotations

from vendors.sandbox.errors import Refusal, missing
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json

DECLINED = {
    "pm_card_chargeDeclined": ("card_declined", "generic_decline"),
    "pm_card_visa_chargeDeclined": ("card_declined", "generic_decline"),
    "pm_card_chargeDeclinedInsufficientFunds": ("card_declined", "insufficient_funds"),
    "pm_card_chargeDeclinedFraudulent": ("card_declined", "fraudulent"),
    "pm_card_radarBlock": ("card_declined", "fraudulent"),
    "pm_card_chargeDeclinedExpiredCard": ("expired_card", None),
    "pm_card_chargeDeclinedProcessingError": ("processing_error", None),
}
NEEDS_ACTION = {
    "pm_card_authenticationRequired",
    "pm_card_threeDSecureRequired",
    "pm_card_threeDSecure2Required",
}
_PLAIN_EVENT = {
    "processing": "payment_intent.processing",
    "requires_action": "payment_intent.requires_action",
    "canceled": "payment_intent.canceled",
}


def create_payment_intent(x: Execution, _: str) -> Json:
    p = x.params
    method = payment_method(p.get("payment_method"))
    intent = x.create(
        "payment_intents",
        {
            "amount": p["amount"],
            "amount_capturable": 0,
            "amount_received": 0,
            "automatic_payment_methods": p.get("automatic_payment_methods"),
            "canceled_at": None,
            "cancellation_reason": None,
            "capture_method": p.get("capture_method", "automatic_async"),
            "client_secret": x.ledger.new_id("pi_secret_"),
            "confirmation_method": p.get("confirmation_method", "automatic"),
            "currency": p["currency"].lower(),
            "customer": x.customer(),
            "description": p.get("description"),
            "last_payment_error": None,
            "latest_charge": None,
            "next_action": None,
            "on_behalf_of": p.get("on_behalf_of"),
            "payment_method": method,
            "payment_method_types": ["card"],
            "receipt_email": p.get("receipt_email"),
            "setup_future_usage": p.get("setup_future_usage"),
            "statement_descriptor": p.get("statement_descriptor"),
            "status": "requires_confirmation" if method else "requires_payment_method",
            "transfer_data": p.get("transfer_data"),
            "transfer_group": p.get("transfer_group"),
        },
    )
    x.emit("payment_intent.created", intent)
    if p.get("confirm") is True:
        if method is None:
            raise Refusal(
                400, "Confirming needs a payment method.",
                code="payment_intent_unexpected_state", param="payment_method",
            )  # fmt: skip
        charge(x, intent, "create")
    else:
        wanted = x.wanted_status(intent["metadata"])
        if wanted:
            move_payment_intent(x, intent, wanted)
        x.effect("create", intent)
    return intent


def confirm_payment_intent(x: Execution, object_id: str) -> Json:
    intent = x.find("payment_intents", object_id, "intent")
    expect(intent, "confirm", "requires_confirmation", "requires_payment_method", "requires_action")
    method = payment_method(x.params.get("payment_method")) or intent["payment_method"]
    if method is None:
        raise Refusal(
            400, "You cannot confirm this PaymentIntent because it's missing a payment method.",
            code="payment_intent_unexpected_state", executed=True, payment_intent=intent,
        )  # fmt: skip
    intent["payment_method"] = method
    charge(x, intent, "confirm")
    return intent


def charge(x: Execution, intent: Json, verb: str) -> None:
    """Tries to take the money; a decline raises an executed Refusal, and its objects stay."""
    method = intent["payment_method"]
    wanted = x.wanted_status(x.params.get("metadata") or intent["metadata"])
    if wanted and wanted not in ("succeeded", "requires_capture"):
        move_payment_intent(x, intent, wanted)
        x.effect(verb, intent)
    elif method in DECLINED:
        _decline(x, intent, verb)
    elif method in NEEDS_ACTION:
        if x.params.get("error_on_requires_action") is True:
            _decline(x, intent, verb, ("authentication_required", "authentication_required"))
        move_payment_intent(x, intent, "requires_action")
        x.effect(verb, intent)
    else:
        manual = intent["capture_method"] == "manual" or wanted == "requires_capture"
        move_payment_intent(x, intent, "requires_capture" if manual else "succeeded")
        x.effect(verb, intent)


def move_payment_intent(x: Execution, intent: Json, status: str) -> None:
    """Brings the intent to `status`, with the charge and the events that go with it."""
    if status == "requires_capture":
        taken = _new_charge(x, intent, captured=False)
        amount = intent["amount"]
        x.update(intent, status=status, amount_capturable=amount, latest_charge=taken["id"])
        x.emit("charge.succeeded", taken)
        x.emit("payment_intent.amount_capturable_updated", intent)
    elif status == "succeeded":
        taken = _new_charge(x, intent, captured=True)
        x.update(
            intent, status=status, amount_received=intent["amount"],
            latest_charge=taken["id"], next_action=None,
        )  # fmt: skip
        x.emit("charge.succeeded", taken)
        x.emit("payment_intent.succeeded", intent)
    else:
        action = {"type": "use_stripe_sdk"} if status == "requires_action" else None
        canceled_at = int(x.at) if status == "canceled" else None
        x.update(intent, status=status, next_action=action, canceled_at=canceled_at)
        if status in _PLAIN_EVENT:
            x.emit(_PLAIN_EVENT[status], intent)
        elif status == "requires_payment_method":
            x.emit("payment_intent.payment_failed", intent)


def _new_charge(x: Execution, intent: Json, captured: bool, failure: Json | None = None) -> Json:
    return x.create(
        "charges",
        {
            "amount": intent["amount"],
            "amount_captured": intent["amount"] if captured else 0,
            "amount_refunded": 0,
            "captured": captured,
            "currency": intent["currency"],
            "customer": intent["customer"],
            "description": intent["description"],
            "disputed": False,
            "failure_code": failure and failure["code"],
            "failure_message": failure and failure["message"],
            "metadata": intent["metadata"],
            "paid": failure is None,
            "payment_intent": intent["id"],
            "payment_method": intent["payment_method"],
            "refunded": False,
            "status": "succeeded" if failure is None else "failed",
        },
    )


def _decline(
    x: Execution, intent: Json, verb: str, why: tuple[str, str | None] | None = None
) -> None:
    code, decline_code = why or DECLINED[intent["payment_method"]]
    failure: Json = {"code": code, "message": "Your card was declined.", "type": "card_error"}
    if decline_code:
        failure["decline_code"] = decline_code
    tried = _new_charge(x, intent, captured=False, failure=failure)
    x.update(
        intent, status="requires_payment_method", latest_charge=tried["id"],
        last_payment_error={**failure, "charge": tried["id"]}, payment_method=None,
    )  # fmt: skip
    x.emit("charge.failed", tried)
    x.emit("payment_intent.payment_failed", intent)
    x.effect(verb, intent, outcome="declined")
    raise Refusal(
        402, failure["message"], type="card_error", code=code, executed=True,
        decline_code=decline_code, charge=tried["id"], payment_intent=intent,
    )  # fmt: skip


def capture_payment_intent(x: Execution, object_id: str) -> Json:
    intent = x.find("payment_intents", object_id, "intent")
    expect(intent, "capture", "requires_capture")
    amount = x.params.get("amount_to_capture", intent["amount_capturable"])
    if amount > intent["amount_capturable"]:
        raise Refusal(
            400, "You cannot capture more than the amount that is capturable.",
            code="amount_too_large", param="amount_to_capture", executed=True,
        )  # fmt: skip
    taken = x.find("charges", intent["latest_charge"], "latest_charge")
    x.update(taken, captured=True, amount_captured=amount)
    x.update(intent, status="succeeded", amount_received=amount, amount_capturable=0)
    x.effect("capture", intent, amount)
    x.emit("charge.captured", taken)
    x.emit("payment_intent.succeeded", intent)
    return intent


def cancel_payment_intent(x: Execution, object_id: str) -> Json:
    intent = x.find("payment_intents", object_id, "intent")
    expect(
        intent, "cancel", "requires_payment_method", "requires_confirmation", "requires_action",
        "requires_capture", "processing",
    )  # fmt: skip
    intent["cancellation_reason"] = x.params.get("cancellation_reason")
    intent["amount_capturable"] = 0
    move_payment_intent(x, intent, "canceled")
    x.effect("cancel", intent)
    return intent


def expect(obj: Json, verb: str, *statuses: str) -> None:
    if obj["status"] not in statuses:
        name = obj["object"]
        refusal = Refusal(
            400, f"You cannot {verb} this {name} because it has a status of {obj['status']}.",
            code=f"{name}_unexpected_state", executed=True,
        )  # fmt: skip
        refusal.error[name] = obj
        raise refusal


def payment_method(given: str | None) -> str | None:
    if given and not given.startswith("pm_"):
        raise missing("PaymentMethod", given, "payment_method")
    return given or None

"""Refunds and transfers."""

from __future__ import annotations

from vendors.sandbox.errors import Refusal, missing
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json


def create_refund(x: Execution, _: str) -> Json:
    charge = _refunded_charge(x)
    left = charge["amount_captured"] - charge["amount_refunded"]
    amount = x.params.get("amount", left)
    if left == 0:
        raise Refusal(
            400, f"Charge {charge['id']} has already been refunded.",
            code="charge_already_refunded", executed=True,
        )  # fmt: skip
    if amount > left:
        raise Refusal(
            400, f"The refund of {amount} is greater than the unrefunded amount, {left}.",
            code="amount_too_large", param="amount", executed=True,
        )  # fmt: skip
    refund = x.create(
        "refunds",
        {
            "amount": amount,
            "charge": charge["id"],
            "currency": charge["currency"],
            "payment_intent": charge["payment_intent"],
            "reason": x.params.get("reason"),
            "status": "succeeded",
        },
    )
    refunded = charge["amount_refunded"] + amount
    x.effect("create", refund)
    x.emit("refund.created", refund)
    if refund["status"] not in ("failed", "canceled"):
        previous = x.update(charge, amount_refunded=refunded, refunded=refunded == charge["amount"])
        x.emit("charge.refunded", charge, previous)
    return refund


def _refunded_charge(x: Execution) -> Json:
    if "charge" in x.params:
        charge = x.find("charges", x.params["charge"], "charge")
    elif "payment_intent" in x.params:
        intent = x.find("payment_intents", x.params["payment_intent"], "payment_intent")
        if intent["latest_charge"] is None:
            raise missing("charge", f"of {intent['id']}", "payment_intent")
        charge = x.find("charges", intent["latest_charge"], "payment_intent")
    else:
        raise Refusal(
            400, "One of charge and payment_intent is needed.",
            code="parameter_missing", param="charge",
        )  # fmt: skip
    if charge["status"] != "succeeded" or not charge["captured"]:
        raise Refusal(
            400, "This charge has no captured money to refund.",
            code="charge_not_refundable", executed=True,
        )  # fmt: skip
    return charge


def create_transfer(x: Execution, _: str) -> Json:
    destination = x.params["destination"]
    if not destination.startswith("acct_"):
        raise missing("destination", destination, "destination")
    transfer = x.create(
        "transfers",
        {
            "amount": x.params["amount"],
            "amount_reversed": 0,
            "currency": x.params["currency"].lower(),
            "description": x.params.get("description"),
            "destination": destination,
            "reversed": False,
            "source_transaction": x.params.get("source_transaction"),
            "source_type": x.params.get("source_type", "card"),
            "transfer_group": x.params.get("transfer_group"),
        },
    )
    x.effect("create", transfer)
    x.emit("transfer.created", transfer)
    return transfer

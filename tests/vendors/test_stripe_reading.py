"""One reading of one object, wherever it was seen, and what became of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outbox.outcomes import Business, Standing
from tests.vendors.stripe_calls import call_of, payment_intent
from vendors.stripe_reading import KINDS, classify

L, D, N = Standing.LANDED, Standing.DECLINED, Standing.OPEN
ERROR = {"code": "card_declined", "decline_code": "lost_card"}

PAYMENT = "payment_intent"
SETUP = "setup_intent"
TABLE: list[tuple[str, dict[str, Any], Standing, Business]] = [
    ("payment_intents.create", {"status": "succeeded"}, L, Business.PAID),
    ("payment_intents.create", {"status": "processing"}, L, Business.PENDING),
    ("payment_intents.create", {"status": "requires_action"}, L, Business.ACTION_REQUIRED),
    ("payment_intents.create", {"status": "requires_capture"}, L, Business.PENDING),
    ("payment_intents.create", {"status": "requires_payment_method"}, L, Business.PENDING),
    ("payment_intents.create", {"status": "canceled"}, L, Business.FAILED),
    ("payment_intents.create", {"status": "on_hold"}, L, Business.OTHER),
    (
        "payment_intents.create",
        {"status": "requires_payment_method", "last_payment_error": ERROR},
        D,
        Business.FAILED,
    ),
    (
        "payment_intents.create",
        {"status": "canceled", "last_payment_error": ERROR},
        D,
        Business.FAILED,
    ),
    (
        "payment_intents.create",
        {"status": "succeeded", "last_payment_error": ERROR},
        L,
        Business.PAID,
    ),
    (
        "payment_intents.create",
        {"status": "succeeded", "latest_charge": {"refunded": True, "amount_refunded": 9}},
        L,
        Business.REVERSED,
    ),
    (
        "payment_intents.create",
        {"status": "succeeded", "latest_charge": {"refunded": False, "amount_refunded": 1}},
        L,
        Business.PAID,
    ),
    ("payment_intents.confirm", {"status": "requires_confirmation"}, N, Business.PENDING),
    ("payment_intents.confirm", {"status": "requires_payment_method"}, N, Business.PENDING),
    ("payment_intents.confirm", {"status": "requires_action"}, L, Business.ACTION_REQUIRED),
    ("payment_intents.confirm", {"status": "on_hold"}, N, Business.OTHER),
    (
        "payment_intents.confirm",
        {"status": "requires_payment_method", "last_payment_error": ERROR},
        D,
        Business.FAILED,
    ),
    ("payment_intents.capture", {"status": "requires_capture"}, N, Business.PENDING),
    (
        "payment_intents.capture",
        {"status": "requires_capture", "amount_received": 5},
        L,
        Business.PENDING,
    ),
    ("payment_intents.capture", {"status": "succeeded"}, L, Business.PAID),
    ("payment_intents.capture", {"status": "canceled"}, N, Business.FAILED),
    ("payment_intents.cancel", {"status": "canceled"}, L, Business.OTHER),
    ("payment_intents.cancel", {"status": "succeeded"}, N, Business.PAID),
    ("setup_intents.create", {"status": "succeeded"}, L, Business.OTHER),
    (
        "setup_intents.create",
        {"status": "requires_payment_method", "last_setup_error": ERROR},
        D,
        Business.FAILED,
    ),
    ("setup_intents.confirm", {"status": "succeeded"}, L, Business.OTHER),
    ("setup_intents.confirm", {"status": "requires_confirmation"}, N, Business.PENDING),
    ("setup_intents.cancel", {"status": "canceled"}, L, Business.OTHER),
    ("setup_intents.cancel", {"status": "processing"}, N, Business.PENDING),
    ("invoices.create", {"status": "draft"}, L, Business.PENDING),
    ("invoices.create", {"status": "uncollectible"}, L, Business.FAILED),
    ("invoices.create", {"status": "void"}, L, Business.REVERSED),
    ("invoices.create", {"status": None}, L, Business.OTHER),
    ("invoices.finalize", {"status": "draft"}, N, Business.PENDING),
    ("invoices.finalize", {"status": "open"}, L, Business.PENDING),
    ("invoices.pay", {"status": "open"}, N, Business.PENDING),
    ("invoices.pay", {"status": "paid"}, L, Business.PAID),
    ("subscriptions.create", {"status": "active"}, L, Business.PAID),
    ("subscriptions.create", {"status": "trialing"}, L, Business.OTHER),
    ("subscriptions.create", {"status": "incomplete"}, L, Business.ACTION_REQUIRED),
    ("subscriptions.create", {"status": "incomplete_expired"}, L, Business.FAILED),
    ("subscriptions.create", {"status": "canceled"}, L, Business.REVERSED),
    ("checkout.sessions.create", {"status": "open"}, L, Business.PENDING),
    ("checkout.sessions.create", {"status": "expired"}, L, Business.FAILED),
    (
        "checkout.sessions.create",
        {"status": "complete", "payment_status": "paid"},
        L,
        Business.PAID,
    ),
    (
        "checkout.sessions.create",
        {"status": "complete", "payment_status": "unpaid"},
        L,
        Business.PENDING,
    ),
    ("refunds.create", {"status": "succeeded"}, L, Business.PAID),
    ("refunds.create", {"status": "pending"}, L, Business.PENDING),
    ("refunds.create", {"status": "failed"}, L, Business.FAILED),
    ("refunds.create", {"status": None}, L, Business.OTHER),
    ("transfers.create", {}, L, Business.PAID),
    ("transfers.create", {"amount_reversed": 1}, L, Business.PAID),
    ("transfers.create", {"reversed": True}, L, Business.REVERSED),
    ("customers.create", {}, L, Business.OTHER),
    ("customers.create", {"deleted": True}, L, Business.OTHER),
    ("invoice_items.create", {}, L, Business.OTHER),
]


@pytest.mark.parametrize(("operation", "fields", "standing", "business"), TABLE)
def test_an_object_has_one_reading(
    operation: str, fields: dict[str, Any], standing: Standing, business: Business
) -> None:
    """B38: the transport's success is not the money's."""
    reading = classify(operation, {"id": "x_1", "object": KINDS[operation].object, **fields}, {})
    assert reading is not None
    assert (reading.standing, reading.business) == (standing, business)
    assert (reading.failure_code == "lost_card") is (standing is D)


def test_every_operation_is_in_the_table_above() -> None:
    assert {row[0] for row in TABLE} == set(KINDS)


@pytest.mark.parametrize("operation", sorted(KINDS))
@pytest.mark.parametrize(
    "document", [{}, {"object": None}, {"id": "x", "object": "charge", "status": "succeeded"}]
)
def test_what_is_no_object_of_the_operation_has_no_reading(
    operation: str, document: dict[str, Any]
) -> None:
    assert classify(operation, document, {}) is None
    assert (
        classify(operation, {"object": KINDS[operation].object, "status": "succeeded"}, {}) is None
    )


@pytest.mark.parametrize("operation", ["payment_intents.create", "payment_intents.capture",
                                       "setup_intents.confirm", "refunds.create"])  # fmt: skip
@pytest.mark.parametrize("status", ["absent", 5, ["succeeded"], ""])
def test_an_object_without_a_status_has_no_reading(operation: str, status: Any) -> None:
    """B33: a field that moved away reads as nothing, never as success."""
    document = {"id": "x_1", "object": KINDS[operation].object}
    if status != "absent":
        document["status"] = status
    assert classify(operation, document, {}) is None


def test_fields_of_another_type_are_left_out_and_never_raise() -> None:
    call = call_of()
    odd = payment_intent(call, amount="1999", currency=5, livemode="no", created="x", metadata=[1])
    reading = classify("payment_intents.create", odd, {})
    assert reading is not None
    assert (reading.amount_minor, reading.currency, reading.livemode) == (None, None, None)
    assert (reading.vendor_time, reading.owner) == (0, "")


def test_an_operation_on_a_target_never_claims_the_mark_of_its_maker() -> None:
    maker = call_of()
    reading = classify("payment_intents.capture", payment_intent(maker, amount_received=7), {})
    assert reading is not None
    assert reading.owner == ""
    assert reading.amount_minor == 7


def test_the_document_is_kept_whole_and_out_of_sight() -> None:
    document = payment_intent(call_of(), description="MARK é")
    reading = classify("payment_intents.create", document, {})
    assert reading is not None
    assert json.loads(reading.document) == document
    assert "MARK" not in repr(reading)


def test_a_charge_seen_between_its_creation_and_its_confirmation_shows_nothing_yet() -> None:
    """Its webhook of creation comes before a declined answer, and must not settle it as landed."""
    seen = {"id": "pi_1", "object": "payment_intent", "status": "requires_payment_method"}
    asked = {"amount": 100, "confirm": True}

    between = classify("payment_intents.create", seen, asked)
    declined = classify(
        "payment_intents.create", {**seen, "last_payment_error": {"code": "card_declined"}}, asked
    )
    unconfirmed = classify("payment_intents.create", seen, {"amount": 100})

    assert between is not None
    assert between.standing is Standing.OPEN
    assert declined is not None
    assert declined.standing is Standing.DECLINED
    assert unconfirmed is not None
    assert unconfirmed.standing is Standing.LANDED

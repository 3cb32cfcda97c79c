"""Stripe's API v1 as data: operations, marks, and what it promises about repeats and reads.

The parameter names are those of the pinned API version's reference, top level only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.contract import Operation, VendorContract
from outbox.contracts.stripe_checks import (
    METADATA_KEY_CHARS,
    METADATA_MAX_KEYS,
    METADATA_VALUE_CHARS,
    RESERVED_METADATA,
    Check,
    check_refund,
    check_session,
    checked,
)

API_VERSION = "2026-10-28.endive"

_METADATA = (("metadata",),)
# Metadata of a session stays on the session: the object born of it carries a mark of its own.
_BORN_OF_SESSION = {
    "payment": ("payment_intent_data", "metadata"),
    "setup": ("setup_intent_data", "metadata"),
    "subscription": ("subscription_data", "metadata"),
}

_CUSTOMERS_CREATE = """
address balance business_name cash_balance description email expand individual_name
invoice_prefix invoice_settings metadata name next_invoice_sequence payment_method phone
preferred_locales shipping source tax tax_exempt tax_id_data test_clock validate
"""
_PAYMENT_INTENTS_CREATE = """
allowed_payment_method_types amount amount_details application_fee_amount
automatic_payment_methods capture_method confirm confirmation_method confirmation_token currency
customer customer_account description error_on_requires_action excluded_payment_method_types
expand hooks mandate mandate_data metadata off_session on_behalf_of payment_details
payment_method payment_method_configuration payment_method_data payment_method_options
radar_options receipt_email return_url setup_future_usage shipping statement_descriptor
statement_descriptor_suffix transfer_data transfer_group use_stripe_sdk
"""
_PAYMENT_INTENTS_CONFIRM = """
allowed_payment_method_types amount_details amount_to_confirm capture_method confirmation_token
error_on_requires_action excluded_payment_method_types expand hooks mandate mandate_data
off_session payment_details payment_method payment_method_data payment_method_options
radar_options receipt_email return_url setup_future_usage shipping use_stripe_sdk
"""
_PAYMENT_INTENTS_CAPTURE = """
amount_details amount_to_capture application_fee_amount expand final_capture hooks metadata
payment_details statement_descriptor statement_descriptor_suffix transfer_data
"""
_PAYMENT_INTENTS_CANCEL = """
cancellation_reason expand
"""
_SETUP_INTENTS_CREATE = """
allowed_payment_method_types attach_to_self automatic_payment_methods confirm confirmation_token
customer customer_account description excluded_payment_method_types expand flow_directions
mandate_data metadata on_behalf_of payment_method payment_method_configuration
payment_method_data payment_method_options return_url single_use usage use_stripe_sdk
"""
_SETUP_INTENTS_CONFIRM = """
allowed_payment_method_types confirmation_token expand mandate_data payment_method
payment_method_data payment_method_options return_url use_stripe_sdk
"""
_SETUP_INTENTS_CANCEL = """
cancellation_reason expand
"""
_INVOICES_CREATE = """
account_tax_ids application_fee_amount auto_advance automatic_tax automatically_finalizes_at
collection_method currency custom_fields customer customer_account days_until_due
default_payment_method default_source default_tax_rates description discounts due_date
effective_at expand footer from_invoice issuer metadata number on_behalf_of payment_settings
pending_invoice_items_behavior rendering shipping_cost shipping_details statement_descriptor
subscription transfer_data
"""
_INVOICES_FINALIZE = """
auto_advance expand
"""
_INVOICES_PAY = """
expand forgive mandate off_session paid_out_of_band payment_method source
"""
_INVOICE_ITEMS_CREATE = """
amount currency customer customer_account description discountable discounts expand invoice
metadata period price_data pricing quantity quantity_decimal subscription tax_behavior tax_code
tax_rates unit_amount_decimal
"""
_SUBSCRIPTIONS_CREATE = """
add_invoice_items application_fee_percent automatic_tax backdate_start_date billing_cycle_anchor
billing_cycle_anchor_config billing_mode billing_schedules billing_thresholds cancel_at
cancel_at_period_end collection_method currency customer customer_account days_until_due
default_payment_method default_source default_tax_rates description discounts expand
invoice_settings items metadata off_session on_behalf_of payment_behavior payment_settings
pending_invoice_item_interval proration_behavior transfer_data trial_end trial_from_plan
trial_period_days trial_settings
"""
_CHECKOUT_SESSIONS_CREATE = """
adaptive_pricing after_expiration allow_promotion_codes allowed_payment_method_types
automatic_tax billing_address_collection branding_settings cancel_url client_reference_id
consent_collection currency custom_fields custom_text customer customer_account
customer_creation customer_email customer_update discounts excluded_payment_method_types expand
expires_at integration_identifier invoice_creation line_items locale managed_payments metadata
mode name_collection optional_items origin_context payment_intent_data payment_method_collection
payment_method_configuration payment_method_data payment_method_options permissions
phone_number_collection redirect_on_completion return_url saved_payment_method_options
setup_intent_data shipping_address_collection shipping_options submit_type subscription_data
success_url tax_id_collection ui_mode wallet_options
"""
_REFUNDS_CREATE = """
amount charge currency customer expand instructions_email metadata origin payment_intent reason
refund_application_fee reverse_transfer
"""
_TRANSFERS_CREATE = """
amount currency description destination expand metadata source_transaction source_type
transfer_group
"""


def _session_marks(params: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    born = _BORN_OF_SESSION.get(params.get("mode", ""))
    return (*_METADATA, born) if born else _METADATA


def _create(
    name: str,
    path: str,
    passes: str,
    check: Check,
    side_effect: str = "write",
    money: tuple[str, str] | None = None,
) -> Operation:
    return Operation(
        name=name,
        method="post",
        path=path,
        marks=_METADATA,
        money=money,
        side_effect=side_effect,
        check=check,
        passes=frozenset(passes.split()),
    )


def _on_target(
    name: str,
    path: str,
    target: str,
    passes: str,
    side_effect: str = "write",
    amounts: tuple[str, ...] = (),
) -> Operation:
    """An operation on an object that exists. It leaves no mark, even where Stripe would take
    metadata (capture): that would overwrite the mark of whichever intent made the object."""
    return Operation(
        name=name,
        method="post",
        path=path,
        side_effect=side_effect,
        check=checked(amounts=amounts),
        money=(amounts[0], "currency") if amounts else None,
        passes=frozenset((target, *passes.split())),
    )


_AMOUNT = ("amount", "currency")
_PI, _SI, _IN = "/v1/payment_intents", "/v1/setup_intents", "/v1/invoices"

_OPERATIONS = (
    _create("customers.create", "/v1/customers", _CUSTOMERS_CREATE, checked()),
    _create(
        "payment_intents.create",
        _PI,
        _PAYMENT_INTENTS_CREATE,
        checked(required=_AMOUNT, amounts=("amount",)),
        "charge",
        _AMOUNT,
    ),
    _on_target(
        "payment_intents.confirm",
        _PI + "/{payment_intent}/confirm",
        "payment_intent",
        _PAYMENT_INTENTS_CONFIRM,
        "charge",
        ("amount_to_confirm",),
    ),
    _on_target(
        "payment_intents.capture",
        _PI + "/{payment_intent}/capture",
        "payment_intent",
        _PAYMENT_INTENTS_CAPTURE,
        "charge",
        ("amount_to_capture",),
    ),
    _on_target(
        "payment_intents.cancel",
        _PI + "/{payment_intent}/cancel",
        "payment_intent",
        _PAYMENT_INTENTS_CANCEL,
    ),
    _create("setup_intents.create", _SI, _SETUP_INTENTS_CREATE, checked()),
    _on_target(
        "setup_intents.confirm",
        _SI + "/{setup_intent}/confirm",
        "setup_intent",
        _SETUP_INTENTS_CONFIRM,
    ),
    _on_target(
        "setup_intents.cancel",
        _SI + "/{setup_intent}/cancel",
        "setup_intent",
        _SETUP_INTENTS_CANCEL,
    ),
    _create("invoices.create", _IN, _INVOICES_CREATE, checked()),
    _on_target("invoices.finalize", _IN + "/{invoice}/finalize", "invoice", _INVOICES_FINALIZE),
    _on_target("invoices.pay", _IN + "/{invoice}/pay", "invoice", _INVOICES_PAY, "charge"),
    _create(
        "invoice_items.create",
        "/v1/invoiceitems",
        _INVOICE_ITEMS_CREATE,
        checked(amounts=("amount",), negative=True),
        money=_AMOUNT,
    ),
    _create(
        "subscriptions.create", "/v1/subscriptions", _SUBSCRIPTIONS_CREATE, checked(), "charge"
    ),
    Operation(
        name="checkout.sessions.create",
        method="post",
        path="/v1/checkout/sessions",
        marks=_METADATA,
        marks_for=_session_marks,
        check=check_session,
        passes=frozenset(_CHECKOUT_SESSIONS_CREATE.split()),
    ),
    _create("refunds.create", "/v1/refunds", _REFUNDS_CREATE, check_refund, "refund", _AMOUNT),
    _create(
        "transfers.create",
        "/v1/transfers",
        _TRANSFERS_CREATE,
        checked(required=(*_AMOUNT, "destination"), amounts=("amount",)),
        "payout",
        _AMOUNT,
    ),
)

STRIPE = VendorContract(
    vendor="stripe",
    adapter="stripe",
    api_version=API_VERSION,
    operations={operation.name: operation for operation in _OPERATIONS},
    honours_keys=True,
    # Keys are "removed after at least 24 hours"; a pruned key makes a new write.
    window_s=24 * 3600.0,
    margin_s=2 * 3600.0,
    in_flight_bound_s=120.0,
    # Top-level v1 lists are consistent; events (60 s behind) are read beside them, never alone.
    read_lag_s=0.0,
    can_look_up=True,
    has_webhooks=True,
    metadata_max_keys=METADATA_MAX_KEYS,
    metadata_key_chars=METADATA_KEY_CHARS,
    metadata_value_chars=METADATA_VALUE_CHARS,
    reserved_metadata=RESERVED_METADATA,
)

"""What Stripe could not carry, refused at ``enqueue``: pure functions over the parameters.

Limits are those of Stripe's reference for API version 2026-10-28. Parameters that only Stripe can
judge (does the customer exist?) are left to Stripe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from outbox.errors import Invalid

Check = Callable[[Mapping[str, Any]], None]

RESERVED_METADATA = frozenset({"outbox_id", "outbox_key"})
METADATA_MAX_KEYS = 50
METADATA_KEY_CHARS = 40
METADATA_VALUE_CHARS = 500
# "The amount value supports up to eight digits": a ninth is refused after it was sent.
AMOUNT_LIMIT = 10**8

_CURRENCY = re.compile(r"[a-z]{3}")
_TEXT_LIMITS = {
    "business_name": 150,
    "client_reference_id": 200,
    "email": 512,
    "individual_name": 150,
    "statement_descriptor": 22,
    "statement_descriptor_suffix": 22,
}
# Where metadata may lie: the object's own map and those that Checkout hands on.
_METADATA_PATHS = (
    ("metadata",),
    ("payment_intent_data", "metadata"),
    ("subscription_data", "metadata"),
    ("setup_intent_data", "metadata"),
)


def checked(
    *, required: tuple[str, ...] = (), amounts: tuple[str, ...] = (), negative: bool = False
) -> Check:
    """A check of one operation: parameters that must be there, integer amounts, and what is common
    to all (text limits, currency, metadata). ``negative``: an amount may be below zero (a credit).
    """

    def check(params: Mapping[str, Any]) -> None:
        for name in required:
            if params.get(name) in (None, ""):
                raise Invalid(f"request.{name}", "is required by Stripe")
        for name in amounts:
            if name in params:
                _check_amount(name, params[name], negative=negative)
        currency = params.get("currency")
        if currency is not None and not (
            isinstance(currency, str) and _CURRENCY.fullmatch(currency)
        ):
            raise Invalid("request.currency", "must be three lower-case letters, as usd")
        for name, limit in _TEXT_LIMITS.items():
            if name in params:
                _check_text(name, params[name], limit)
        for path in _METADATA_PATHS:
            if path[0] in params:
                _check_metadata(path, params)

    return check


def check_session(params: Mapping[str, Any]) -> None:
    """Checkout: the mode decides which object is born later, and so where our marks must go."""
    _check_session_common(params)
    if params["mode"] not in ("payment", "setup", "subscription"):
        raise Invalid("request.mode", "must be payment, setup or subscription")


_check_session_common = checked(required=("mode",))


def check_refund(params: Mapping[str, Any]) -> None:
    """A refund names what it gives back: one of charge, payment_intent and (a customer's balance)
    origin. Of none or several Stripe would choose or refuse."""
    _check_refund_common(params)
    named = [name for name in ("charge", "payment_intent", "origin") if params.get(name)]
    if len(named) != 1:
        raise Invalid("request.payment_intent", "give one of payment_intent, charge and origin")


_check_refund_common = checked(amounts=("amount",))


def _check_amount(name: str, value: Any, *, negative: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(
            f"request.{name}",
            "must be an integer in the currency's smallest unit (1999 for 19.99 usd)",
        )
    if value <= 0 and not negative:
        raise Invalid(f"request.{name}", "must be positive")
    if abs(value) >= AMOUNT_LIMIT:
        raise Invalid(f"request.{name}", "must have at most 8 digits")


def _check_text(name: str, value: Any, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise Invalid(f"request.{name}", f"must be text, not {type(value).__name__}")
    if len(value) > limit:
        raise Invalid(f"request.{name}", f"is longer than {limit} characters")


def _check_metadata(path: tuple[str, ...], params: Mapping[str, Any]) -> None:
    found: Any = params
    for name in path:
        if not isinstance(found, Mapping):
            raise Invalid(f"request.{'.'.join(path[:-1])}", "must be an object")
        found = found.get(name)
        if found is None:
            return
    where = f"request.{'.'.join(path)}"
    if not isinstance(found, Mapping):
        raise Invalid(where, "must be an object")
    if len(found) + len(RESERVED_METADATA - found.keys()) > METADATA_MAX_KEYS:
        most = METADATA_MAX_KEYS - len(RESERVED_METADATA)
        raise Invalid(where, f"has more than {most} keys beside the outbox's own two")
    for name, value in found.items():
        _check_pair(where, name, value)


def _check_pair(where: str, name: str, value: Any) -> None:
    if name in RESERVED_METADATA:
        raise Invalid(f"{where}.{name}", "is reserved for the outbox's own marks")
    if not 0 < len(name) <= METADATA_KEY_CHARS or "[" in name or "]" in name:
        raise Invalid(
            f"{where}.{name[:METADATA_KEY_CHARS]}",
            f"must be a name of 1 to {METADATA_KEY_CHARS} characters without square brackets",
        )
    if not isinstance(value, str | int | float):
        raise Invalid(f"{where}.{name}", "must be text, a number or a boolean")
    if len(str(value)) > METADATA_VALUE_CHARS:
        raise Invalid(f"{where}.{name}", f"is longer than {METADATA_VALUE_CHARS} characters")

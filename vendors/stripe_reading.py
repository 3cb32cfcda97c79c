"""What Stripe's objects say of the write that made or moved them: pure functions over plain dicts.

One reading per operation, for a reply, a replay, a look-up and a webhook alike, so that one world
never gets two words. Rendered shapes follow an account's API version, so nothing is taken for
granted: an object without its id, type or status has no reading (None), never a good one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.outcomes import Business, Reading, Standing, is_amount, is_plain

Document = Mapping[str, Any]
_Word = tuple[Standing, Business, str]

_INTENT_BUSINESS = {
    "succeeded": Business.PAID,
    "processing": Business.PENDING,
    "requires_action": Business.ACTION_REQUIRED,
    "requires_capture": Business.PENDING,
    "requires_confirmation": Business.PENDING,
    "requires_payment_method": Business.PENDING,
    "canceled": Business.FAILED,
}
_INVOICE_BUSINESS = {
    "draft": Business.PENDING,
    "open": Business.PENDING,
    "paid": Business.PAID,
    "uncollectible": Business.FAILED,
    "void": Business.REVERSED,
}
_SUBSCRIPTION_BUSINESS = {
    "active": Business.PAID,
    "incomplete": Business.ACTION_REQUIRED,
    "incomplete_expired": Business.FAILED,
    "past_due": Business.PENDING,
    "unpaid": Business.FAILED,
    "canceled": Business.REVERSED,
}
_REFUND_BUSINESS = {
    "succeeded": Business.PAID,
    "pending": Business.PENDING,
    "requires_action": Business.ACTION_REQUIRED,
    "failed": Business.FAILED,
    "canceled": Business.FAILED,
}
_CONFIRMS = frozenset({"payment_intents.create", "setup_intents.create"})
_UNCONFIRMED = frozenset({"requires_payment_method", "requires_confirmation"})
_CONFIRMED = frozenset({"processing", "requires_action", "requires_capture", "succeeded"})


@dataclass(frozen=True, slots=True)
class Kind:
    """How one operation's object is read. ``target`` names the path field of an operation on an
    object that exists already: such an operation leaves no mark of ours."""

    object: str
    word: Callable[[Document], _Word | None]
    amount: str = ""
    target: str = ""


def classify(
    operation: str, document: Document, params: Document | None, *, seen_at: int = 0
) -> Reading | None:
    """The reading of ``document`` for ``operation``; None where it is no object of that operation.

    ``params`` are what was asked (None: not known): an object that was, or may have been, to be
    confirmed at once and is seen between its creation and its confirmation shows nothing yet.
    ``seen_at`` is the vendor's time of this
    sight of the object (seconds since the epoch); without it the object's creation is taken.
    """
    kind = KINDS[operation]
    if document.get("object") != kind.object:
        return None
    receipt_id = text(document.get("id"))
    word = kind.word(document) if receipt_id else None
    if word is None or not (is_plain(receipt_id) and is_plain(word[2])):
        return None  # a NUL or a lone surrogate is no id and no word, and no column takes it
    amount = whole(document.get(kind.amount)) if kind.amount else None
    if amount is not None and not is_amount(amount):
        return None  # it must not pass as the right one
    standing, business, said = word
    may_confirm = params is None or params.get("confirm")
    if operation in _CONFIRMS and may_confirm and said in _UNCONFIRMED:
        standing = Standing.DECLINED if standing is Standing.DECLINED else Standing.OPEN
    return Reading(
        receipt_id=receipt_id,
        standing=standing,
        business=business,
        word=said,
        owner="" if kind.target else owner_of(document),
        amount_minor=amount,
        currency=(text(document.get("currency")).lower() or None) if kind.amount else None,
        livemode=flag(document.get("livemode")),
        vendor_time=seen_at or whole(document.get("created")) or 0,
        failure_code=_failure_code(document) if standing is Standing.DECLINED else "",
        document=json.dumps(document, separators=(",", ":"), default=str),
    )


def owner_of(document: Document) -> str:
    """Our intent id on an object, or empty."""
    return text(mapping(document.get("metadata")).get("outbox_id"))


def text(value: Any) -> str:
    """The value if it is text, else empty: null, absent and another type are one."""
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    """The value if it is an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(value: Any) -> bool | None:
    """The value if it is a boolean."""
    return value if isinstance(value, bool) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _failure(document: Document) -> Mapping[str, Any]:
    return mapping(document.get("last_payment_error") or document.get("last_setup_error"))


def _failure_code(document: Document) -> str:
    failure = _failure(document)
    return text(failure.get("decline_code")) or text(failure.get("code")) or "declined"


def _intent_business(document: Document, status: str) -> tuple[Business, str]:
    charge = mapping(document.get("latest_charge"))
    if status == "succeeded" and charge.get("refunded") is True:
        return Business.REVERSED, "refunded"
    if status == "succeeded" and (whole(charge.get("amount_refunded")) or 0) > 0:
        return Business.PAID, "partially_refunded"
    return _INTENT_BUSINESS.get(status, Business.OTHER), status


def _intent_created(document: Document) -> _Word | None:
    status = text(document.get("status"))
    if not status:
        return None
    # A decline leaves its error on the object; so does a decline that was cancelled afterwards.
    if status in ("requires_payment_method", "canceled") and _failure(document):
        return Standing.DECLINED, Business.FAILED, status
    return Standing.LANDED, *_intent_business(document, status)


def _intent_confirmed(document: Document) -> _Word | None:
    status = text(document.get("status"))
    if not status:
        return None
    if status in _CONFIRMED:
        return Standing.LANDED, *_intent_business(document, status)
    if status in ("requires_payment_method", "canceled") and _failure(document):
        return Standing.DECLINED, Business.FAILED, status
    return Standing.OPEN, *_intent_business(document, status)


def _intent_captured(document: Document) -> _Word | None:
    status = text(document.get("status"))
    if not status:
        return None
    took = status == "succeeded" or (whole(document.get("amount_received")) or 0) > 0
    standing = Standing.LANDED if took else Standing.OPEN
    return standing, *_intent_business(document, status)


def _intent_canceled(document: Document) -> _Word | None:
    status = text(document.get("status"))
    if not status:
        return None
    if status == "canceled":
        return Standing.LANDED, Business.OTHER, status
    return Standing.OPEN, *_intent_business(document, status)


def _setup(read: Callable[[Document], _Word | None]) -> Callable[[Document], _Word | None]:
    def word(document: Document) -> _Word | None:
        found = read(document)
        if found is None or found[1] is not Business.PAID:
            return found
        return found[0], Business.OTHER, found[2]  # nothing is paid by a set-up

    return word


def _nullable_status(document: Document) -> str:
    """Invoices, refunds and sessions may say null for "no status"; an absent one is unreadable."""
    if "status" in document and document["status"] is None:
        return "none"
    return text(document.get("status"))


def _invoice(settled_at: frozenset[str]) -> Callable[[Document], _Word | None]:
    def word(document: Document) -> _Word | None:
        status = _nullable_status(document)
        if not status:
            return None
        standing = Standing.LANDED if not settled_at or status in settled_at else Standing.OPEN
        return standing, _INVOICE_BUSINESS.get(status, Business.OTHER), status

    return word


def _by_status(business: Mapping[str, Business]) -> Callable[[Document], _Word | None]:
    def word(document: Document) -> _Word | None:
        status = _nullable_status(document)
        return (Standing.LANDED, business.get(status, Business.OTHER), status) if status else None

    return word


def _session(document: Document) -> _Word | None:
    status = _nullable_status(document)
    payment = text(document.get("payment_status"))
    if not status:
        return None
    if status == "complete":
        done = payment in ("paid", "no_payment_required")
        return Standing.LANDED, Business.PAID if done else Business.PENDING, payment or status
    business = {"open": Business.PENDING, "expired": Business.FAILED}.get(status, Business.OTHER)
    return Standing.LANDED, business, status


def _transfer(document: Document) -> _Word:
    if document.get("reversed") is True:
        return Standing.LANDED, Business.REVERSED, "reversed"
    partly = (whole(document.get("amount_reversed")) or 0) > 0
    return Standing.LANDED, Business.PAID, "partially_reversed" if partly else "created"


def _exists(document: Document) -> _Word:
    gone = document.get("deleted") is True
    return Standing.LANDED, Business.OTHER, "deleted" if gone else "created"


_FINALIZED = frozenset({"open", "paid", "uncollectible", "void"})
_PI, _SI, _IN = "payment_intent", "setup_intent", "invoice"

KINDS: Mapping[str, Kind] = {
    "customers.create": Kind("customer", _exists),
    "payment_intents.create": Kind(_PI, _intent_created, "amount"),
    "payment_intents.confirm": Kind(_PI, _intent_confirmed, "amount", target=_PI),
    "payment_intents.capture": Kind(_PI, _intent_captured, "amount_received", target=_PI),
    "payment_intents.cancel": Kind(_PI, _intent_canceled, "amount", target=_PI),
    "setup_intents.create": Kind(_SI, _setup(_intent_created)),
    "setup_intents.confirm": Kind(_SI, _setup(_intent_confirmed), target=_SI),
    "setup_intents.cancel": Kind(_SI, _setup(_intent_canceled), target=_SI),
    "invoices.create": Kind(_IN, _invoice(frozenset()), "total"),
    "invoices.finalize": Kind(_IN, _invoice(_FINALIZED), "total", target=_IN),
    "invoices.pay": Kind(_IN, _invoice(frozenset({"paid"})), "total", target=_IN),
    "invoice_items.create": Kind("invoiceitem", _exists, "amount"),
    "subscriptions.create": Kind("subscription", _by_status(_SUBSCRIPTION_BUSINESS)),
    "checkout.sessions.create": Kind("checkout.session", _session, "amount_total"),
    "refunds.create": Kind("refund", _by_status(_REFUND_BUSINESS), "amount"),
    "transfers.create": Kind("transfer", _transfer, "amount"),
}

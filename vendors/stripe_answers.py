"""From one HTTP answer of Stripe to an outcome: by status, headers and body alone; pure.

The SDK's exceptions are not consulted: they drop the headers of an answer that is not JSON and
tell a conflict, a stored error and a lost answer apart only in part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outbox.contract import Call
from outbox.outcomes import Lost, NotSent, Outcome, Reading, Receipt, Refused, Standing, Wire
from vendors.reads import date_of, retry_after_s, wrong_mode
from vendors.stripe_reading import KINDS, classify, mapping, text

# Errors that only execution can find: such a 400 is stored under the key like any other result.
# A parameter that fails validation is refused before, and its key stays unused.
EXECUTED_CODES = frozenset(
    {
        "balance_insufficient",
        "charge_already_captured",
        "charge_already_refunded",
        "charge_disputed",
        "charge_expired_for_capture",
        "insufficient_funds",
        "intent_invalid_state",
        "invoice_not_editable",
        "invoice_payment_intent_requires_action",
        "payment_intent_action_required",
        "payment_intent_authentication_failure",
        "payment_intent_incompatible_payment_method",
        "payment_intent_payment_attempt_failed",
        "payment_intent_unexpected_state",
        "refund_disputed_payment",
        "setup_attempt_failed",
        "setup_intent_authentication_failure",
        "setup_intent_unexpected_state",
    }
)
# At a create this is a limit of validation; here it is measured against what is left.
_MEASURED_AMOUNT = frozenset({"refunds.create", "payment_intents.capture", "transfers.create"})
_REFUSING_TYPES = frozenset({"invalid_request_error", "card_error"})
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def outcome_of(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> Outcome:
    """The outcome of one complete answer. Whatever is not clearly told apart is ``Lost``. "Do not
    retry" on any status is a veto."""
    wire = wire_of(status, headers)
    outcome = _outcome_of(call, status, headers, body, wire)
    if isinstance(outcome, Receipt) or wire.should_retry is not False or outcome.veto:
        return outcome
    return replace(outcome, veto="do_not_retry")


def _outcome_of(
    call: Call, status: int, headers: Mapping[str, str], body: bytes, wire: Wire
) -> Outcome:
    document = parsed(body)
    if 200 <= status < 300:
        return _accepted(call, document, headers, wire)
    error = mapping(mapping(document).get("error"))
    kind, code = text(error.get("type")), word_of(error)
    if kind == "idempotency_error" and status != 409:
        # Our body drifted, or the key was used for something else: whatever that did stands.
        return Lost("key_mismatch", veto="key_mismatch", wire=wire)
    throttled = status == 429 or (status == 400 and code == "rate_limit")
    if throttled and wire.should_retry is not False:
        return NotSent(code, throttled=True, retry_after_s=retry_after_s(headers), wire=wire)
    if status in (401, 403) and not wire.replayed:
        return NotSent(code, pause=True, wire=wire)
    if status in (400, 402, 403, 404) and kind in _REFUSING_TYPES:
        return _refused(call, status, error, headers, wire)
    return _undecided(status, code, wire)


def wire_of(status: int, headers: Mapping[str, str]) -> Wire:
    """What the attempt log keeps of an answer."""
    should_retry = (headers.get("Stripe-Should-Retry") or "").strip().lower()
    request_id = headers.get("Request-Id") or ""
    return Wire(
        http_status=status,
        request_id=request_id if _WORD.fullmatch(request_id) else "",
        replayed=(headers.get("Idempotent-Replayed") or "").strip().lower() == "true",
        should_retry={"true": True, "false": False}.get(should_retry),
    )


def parsed(body: bytes) -> Mapping[str, Any] | None:
    """The body if it is a JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def word_of(error: Mapping[str, Any]) -> str:
    """Stripe's own word for an error; a decline code says more than ``card_declined``. Only what
    looks like a word is taken: messages quote arguments."""
    for name in ("decline_code", "code", "type"):
        word = text(error.get(name))
        if _WORD.fullmatch(word):
            return word
    return "unnamed"


def target_of(call: Call) -> str:
    """The id of the object a call operates on, from its recorded path; empty for a create."""
    if not KINDS[call.operation].target:
        return ""
    return call.path.rsplit("/", 2)[-2]


def is_ours(call: Call, reading: Reading) -> bool:
    """Whether a reading is of this intent: by our mark, or being the object it was to change."""
    target = target_of(call)
    return reading.receipt_id == target if target else reading.owner == str(call.intent_id)


def _accepted(
    call: Call, document: Mapping[str, Any] | None, headers: Mapping[str, str], wire: Wire
) -> Outcome:
    reading = (
        classify(call.operation, document, call.params, seen_at=_seen_at(headers, wire))
        if document
        else None
    )
    if reading is None:
        return Lost("unreadable_answer", wire=wire)
    if not is_ours(call, reading):
        return Lost("foreign_object", wire=wire)
    if wrong_mode(call.account, reading.livemode):
        return Lost("other_mode", wire=wire)
    if reading.standing is Standing.DECLINED:
        return Refused(reading.failure_code, covers_key=True, reading=reading, wire=wire)
    # Stripe answered this very request with success: the effect may show later (an invoice that
    # is paid by bank transfer stays open), but the write was taken.
    return Receipt(replace(reading, standing=Standing.LANDED), wire)


def _refused(
    call: Call, status: int, error: Mapping[str, Any], headers: Mapping[str, str], wire: Wire
) -> Outcome:
    code = text(error.get("code"))
    executed = (
        status == 402
        or error.get("type") == "card_error"
        or code in EXECUTED_CODES
        or (code == "amount_too_large" and call.operation in _MEASURED_AMOUNT)
    )
    document = mapping(error.get(KINDS[call.operation].object))
    reading = classify(call.operation, document, call.params, seen_at=_seen_at(headers, wire))
    if reading is not None:
        if not is_ours(call, reading):
            return Lost("foreign_object", wire=wire)
        if wrong_mode(call.account, reading.livemode):
            return Lost("other_mode", wire=wire)
        reading = replace(reading, standing=Standing.DECLINED, failure_code=word_of(error))
    return Refused(word_of(error), executed or wire.replayed, reading, wire)


def _undecided(status: int, code: str, wire: Wire) -> Lost:
    # Replayed for the whole window: a re-send cannot heal it.
    veto = "stored_500" if status == 500 or (status > 500 and wire.replayed) else ""
    return Lost(f"http_{status}" if code == "unnamed" else f"http_{status}:{code}", veto, wire)


def _seen_at(headers: Mapping[str, str], wire: Wire) -> int:
    """A replay shows the object as it was at first: the time of the answer would make it newer."""
    return 0 if wire.replayed else date_of(headers)

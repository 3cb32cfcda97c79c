"""The outcome table: from one complete answer of Stripe to what the ledger is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import Call
from outbox.outcomes import (
    Business,
    Lost,
    NotSent,
    Outcome,
    Receipt,
    Refused,
    Standing,
    veto_of,
)
from tests.vendors.stripe_calls import NOWHERE, call_of, payment_intent
from vendors.stripe_answers import outcome_of

REPLAYED = {"Idempotent-Replayed": "true"}
NEVER_AGAIN = {"Stripe-Should-Retry": "false"}


def answered(
    call: Call, status: int, document: Any, headers: Mapping[str, str] | None = None
) -> Outcome:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return outcome_of(call, status, headers or {}, body)


def error(kind: str, code: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "error": {"type": kind, "message": "words", **({"code": code} if code else {}), **fields}
    }


def test_a_200_with_our_object_is_a_receipt() -> None:
    call = call_of()
    outcome = answered(call, 200, payment_intent(call), {"Request-Id": "req_1", **REPLAYED})
    assert isinstance(outcome, Receipt)
    assert outcome.reading.receipt_id == "pi_1"
    assert outcome.reading.owner == str(call.intent_id)
    assert (outcome.reading.amount_minor, outcome.reading.currency) == (1999, "usd")
    assert (outcome.wire.http_status, outcome.wire.request_id) == (200, "req_1")
    assert outcome.wire.replayed


@pytest.mark.parametrize("status", ["processing", "requires_action", "requires_capture", "on_hold"])
def test_a_200_that_is_not_paid_yet_still_landed(status: str) -> None:
    """B38: the write is done once and for all; what became of the money is a second question."""
    call = call_of()
    outcome = answered(call, 200, payment_intent(call, status=status))
    assert isinstance(outcome, Receipt)
    assert outcome.reading.standing is Standing.LANDED
    assert outcome.reading.business is not Business.PAID
    assert outcome.reading.word == status


def test_a_cancelled_payment_landed_and_its_business_failed() -> None:
    """B38."""
    call = call_of()
    outcome = answered(call, 200, payment_intent(call, status="canceled"))
    assert isinstance(outcome, Receipt)
    assert outcome.reading.business is Business.FAILED


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "unreadable_answer"),
        (b"<html>", "unreadable_answer"),
        (b'{"id": "pi_1", "object": "payment', "unreadable_answer"),
        (b"[]", "unreadable_answer"),
        (b"\xff\xfe", "unreadable_answer"),
        (b"[" * 100_000, "unreadable_answer"),
        (b'{"object": "payment_intent", "status": "succeeded"}', "unreadable_answer"),
        (b'{"id": "pi_1", "object": "payment_intent"}', "unreadable_answer"),
        (b'{"id": "ch_1", "object": "charge", "status": "succeeded"}', "unreadable_answer"),
        (b'{"id": "pi_1", "object": "payment_intent", "status": "succeeded"}', "foreign_object"),
    ],
)
def test_a_200_that_is_not_clearly_ours_is_lost(body: bytes, reason: str) -> None:
    outcome = answered(call_of(), 200, body)
    assert isinstance(outcome, Lost)
    assert (outcome.reason, outcome.veto) == (reason, "")


def test_a_200_with_another_intents_object_is_lost() -> None:
    assert isinstance(answered(call_of(), 200, payment_intent(call_of())), Lost)


def test_a_200_of_the_other_mode_is_lost() -> None:
    call = call_of()
    outcome = answered(call, 200, payment_intent(call, livemode=True))
    assert outcome == Lost("other_mode", wire=outcome.wire)
    live = replace(call, account=replace(NOWHERE, mode="live"))
    assert isinstance(answered(live, 200, payment_intent(call, livemode=True)), Receipt)


def test_a_200_for_a_capture_is_ours_if_it_is_the_object_that_was_named() -> None:
    call = call_of("payment_intents.capture", {"payment_intent": "pi_7"})
    document = {"id": "pi_7", "object": "payment_intent", "status": "succeeded", "livemode": False}
    assert isinstance(answered(call, 200, document), Receipt)
    assert isinstance(answered(call, 200, {**document, "id": "pi_8"}), Lost)


def test_a_200_whose_effect_comes_later_is_a_receipt() -> None:
    call = call_of("invoices.pay", {"invoice": "in_1"})
    outcome = answered(call, 200, {"id": "in_1", "object": "invoice", "status": "open"})
    assert isinstance(outcome, Receipt)
    assert outcome.reading.standing is Standing.LANDED
    assert outcome.reading.business is Business.PENDING


def test_a_402_is_refused_under_the_key_with_the_declined_object() -> None:
    call = call_of()
    declined = payment_intent(call, status="requires_payment_method")
    body = error("card_error", "card_declined", decline_code="lost_card", payment_intent=declined)
    outcome = answered(call, 402, body)
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.covers_key) == ("lost_card", True)
    assert outcome.reading is not None
    assert outcome.reading.receipt_id == "pi_1"
    assert outcome.reading.standing is Standing.DECLINED
    assert outcome.reading.failure_code == "lost_card"


def test_a_402_without_an_object_of_the_operation_is_refused_without_a_reading() -> None:
    call = call_of("invoices.pay", {"invoice": "in_1"})
    outcome = answered(call, 402, error("card_error", "card_declined"))
    assert isinstance(outcome, Refused)
    assert outcome.covers_key
    assert outcome.reading is None


def test_a_402_with_another_intents_object_is_lost() -> None:
    body = error("card_error", "card_declined", payment_intent=payment_intent(call_of()))
    assert isinstance(answered(call_of(), 402, body), Lost)


@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("code", ["parameter_missing", "resource_missing", "amount_too_small", ""])
def test_a_refusal_by_validation_does_not_cover_the_key(status: int, code: str) -> None:
    outcome = answered(call_of(), status, error("invalid_request_error", code))
    assert isinstance(outcome, Refused)
    assert not outcome.covers_key


@pytest.mark.parametrize("code", ["charge_already_refunded", "payment_intent_unexpected_state"])
def test_a_400_that_only_execution_can_find_covers_the_key(code: str) -> None:
    outcome = answered(call_of(), 400, error("invalid_request_error", code))
    assert isinstance(outcome, Refused)
    assert outcome.covers_key


def test_a_refund_that_is_larger_than_what_is_left_was_executed() -> None:
    body = error("invalid_request_error", "amount_too_large")
    refund = call_of("refunds.create", {"payment_intent": "pi_1"})
    assert getattr(answered(refund, 400, body), "covers_key", None) is True
    assert getattr(answered(call_of(), 400, body), "covers_key", None) is False


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_replayed_refusal_covers_the_key(status: int) -> None:
    outcome = answered(call_of(), status, error("invalid_request_error", "anything"), REPLAYED)
    assert isinstance(outcome, Refused)
    assert outcome.covers_key


@pytest.mark.parametrize("headers", [{}, REPLAYED])
@pytest.mark.parametrize("status", [400, 404])
def test_a_key_used_for_something_else_is_never_a_refusal(
    status: int, headers: dict[str, str]
) -> None:
    outcome = answered(call_of(), status, error("idempotency_error"), headers)
    assert isinstance(outcome, Lost)
    assert outcome.veto == "key_mismatch"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_pause_the_account_and_nothing_was_sent(status: int) -> None:
    outcome = answered(call_of(), status, error("invalid_request_error"))
    assert isinstance(outcome, NotSent)
    assert outcome.pause
    assert not outcome.throttled


@pytest.mark.parametrize("kind", ["idempotency_error", "invalid_request_error"])
def test_a_409_means_that_the_first_request_still_runs(kind: str) -> None:
    outcome = answered(call_of(), 409, error(kind, "idempotency_key_in_use"))
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""


@pytest.mark.parametrize("code", ["rate_limit", "lock_timeout", ""])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_a_429_was_not_processed(code: str, header: str, seconds: float | None) -> None:
    outcome = answered(
        call_of(), 429, error("invalid_request_error", code), {"Retry-After": header}
    )
    assert isinstance(outcome, NotSent)
    assert outcome.throttled
    assert not outcome.pause
    assert outcome.retry_after_s == seconds


def test_an_absurd_retry_after_is_cut() -> None:
    outcome = answered(call_of(), 429, b"", {"Retry-After": "99999999"})
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after_s == 3600


@pytest.mark.parametrize("body", [error("api_error"), b"", b"<html>"])
def test_a_500_is_taken_as_stored_whatever_its_body(body: Any) -> None:
    outcome = answered(call_of(), 500, body)
    assert isinstance(outcome, Lost)
    assert outcome.veto == "stored_500"


@pytest.mark.parametrize("status", [502, 503, 504, 520, 302, 307, 204, 418, 405, 413])
def test_other_answers_leave_the_doubt_open_and_forbid_nothing(status: int) -> None:
    outcome = answered(call_of(), status, b"<html>")
    assert isinstance(outcome, Lost)
    assert outcome.veto == ""


@pytest.mark.parametrize("status", [409, 429, 502, 503, 504, 418])
def test_do_not_retry_is_a_veto_on_any_undecided_status(status: int) -> None:
    outcome = answered(call_of(), status, error("api_error"), NEVER_AGAIN)
    assert isinstance(outcome, Lost)
    assert outcome.veto == "do_not_retry"
    assert outcome.wire.should_retry is False


@pytest.mark.parametrize("status", [200, 400, 401, 402, 403, 404, 409, 429, 500, 503])
@pytest.mark.parametrize("kind", ["invalid_request_error", "card_error", "api_error"])
def test_do_not_retry_is_a_veto_whatever_else_the_answer_says(status: int, kind: str) -> None:
    outcome = answered(call_of(), status, error(kind), NEVER_AGAIN)
    assert veto_of(outcome) in ("do_not_retry", "stored_500")
    assert veto_of(answered(call_of(), status, error(kind))) == ("stored_500" * (status == 500))


def test_do_not_retry_does_not_undo_a_decision() -> None:
    call = call_of()
    assert isinstance(answered(call, 200, payment_intent(call), NEVER_AGAIN), Receipt)
    assert isinstance(answered(call, 402, error("card_error"), NEVER_AGAIN), Refused)


@pytest.mark.parametrize("status", [400, 402, 404])
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", error("api_error"), {"error": "text"}])
def test_a_refusal_that_is_not_stripes_is_lost(status: int, body: Any) -> None:
    assert isinstance(answered(call_of(), status, body), Lost)


def test_words_of_an_answer_are_kept_only_if_they_look_like_words() -> None:
    body = error("card_error", "Bad card 4242 4242 4242 4242", decline_code="a b")
    outcome = answered(call_of(), 402, body, {"Request-Id": "req_1\r\nX: 4242"})
    assert isinstance(outcome, Refused)
    assert outcome.code == "card_error"
    assert outcome.wire.request_id == ""


def test_a_replay_shows_the_object_as_of_its_first_answer() -> None:
    call = call_of()
    date = {"Date": "Sun, 29 Nov 2026 12:00:00 GMT"}
    fresh = answered(call, 200, payment_intent(call), date)
    replay = answered(call, 200, payment_intent(call), {**date, **REPLAYED})
    assert isinstance(fresh, Receipt)
    assert isinstance(replay, Receipt)
    assert fresh.reading.vendor_time == 1795953600
    assert replay.reading.vendor_time == 1_790_000_000

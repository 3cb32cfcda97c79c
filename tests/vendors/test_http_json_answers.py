"""One answer, one outcome: what no rule names, or what cannot be read, is Lost and never failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outbox.outcomes import Business, Lost, NotSent, Outcome, Receipt, Refused, Standing
from tests.vendors.recipe_calls import call_of, contract_of, payment
from vendors.http_json_answers import outcome_of
from vendors.wire import Answer

PAYMENTS = contract_of("payments")
CALL = call_of(PAYMENTS)
DATE = "Sun, 29 Nov 2026 12:30:00 GMT"


def _told(status: int, document: Any, call: Any = CALL, **headers: str) -> Outcome:
    body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return outcome_of(PAYMENTS, call, Answer(status, named, body))


def test_a_landed_answer_is_a_receipt_with_all_that_the_recipe_names() -> None:
    outcome = _told(200, payment(CALL), Request_Id="req_1", Date=DATE)
    assert isinstance(outcome, Receipt)
    reading = outcome.reading
    assert (reading.receipt_id, reading.owner) == ("pay_1", str(CALL.intent_id))
    assert (reading.standing, reading.business) == (Standing.LANDED, Business.PAID)
    assert (reading.amount_minor, reading.currency) == (100, "eur")
    assert (reading.livemode, reading.vendor_time) == (False, 1795953600)
    assert (outcome.wire.http_status, outcome.wire.request_id) == (200, "req_1")
    assert not outcome.wire.replayed


def test_an_id_is_text_or_a_whole_number() -> None:
    outcome = _told(200, payment(CALL, id=2**60))
    assert isinstance(outcome, Receipt)
    assert outcome.reading.receipt_id == str(2**60)


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (200, b"", "no_receipt"),
        (200, b"<html>", "no_receipt"),
        (200, {}, "no_receipt"),
        (200, [], "no_receipt"),
        (200, {"id": ""}, "no_receipt"),
        (200, {"id": {"deep": 1}}, "no_receipt"),
        (200, payment(CALL, id=True), "no_receipt"),
        (200, payment(CALL, id=False), "no_receipt"),
        (200, payment(CALL, id=1.5), "no_receipt"),
        (200, {"id": "pay_1"}, "no_receipt"),
        (200, {"id": "x\ny", "status": "succeeded"}, "no_receipt"),
        (200, payment(CALL, idempotency_key="f" * 64), "foreign_object"),
        (200, payment(CALL, idempotency_key=None), "foreign_object"),
        (200, payment(CALL, livemode=True), "other_mode"),
        (202, payment(CALL), "http_202"),
        (204, b"", "http_204"),
        (301, b"", "http_301"),
        (302, payment(CALL), "http_302"),
        (409, {"error": {"code": "in_use"}}, "in_use"),
        (409, b"not json", "http_409"),
        (418, {"error": {"code": "a message with SECRET words"}}, "http_418"),
        (400, b"<html>a gateway</html>", "unreadable_answer"),
        (400, None, "cut_answer"),
        (429, None, "cut_answer"),
        (502, b"<html>", "http_502"),
        (503, {"error": {"code": "down"}}, "down"),
    ],
)
def test_what_is_not_clearly_told_is_lost(status: int, document: Any, reason: str) -> None:
    outcome = _told(status, document)
    # A yes of the vendor's own, of what nobody can tell: no later absence makes a send safe.
    veto = reason if status == 200 and not isinstance(document, bytes) else ""
    assert isinstance(outcome, Lost)
    assert (outcome.reason, outcome.veto, outcome.wire.http_status) == (reason, veto, status)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "http_500"), (409, "idempotency_key_already_used")]
)
def test_what_no_send_can_change_is_lost_with_a_veto(status: int, code: str) -> None:
    document = {} if status == 500 else {"error": {"code": code}}
    outcome = _told(status, document)
    assert isinstance(outcome, Lost)
    assert (outcome.reason, outcome.veto) == (code, "never_again")


def test_a_refusal_covers_the_key_only_where_it_was_stored() -> None:
    document = {"error": {"code": "recipient_unknown", "message": "SECRET"}}
    plain = _told(422, document)
    assert isinstance(plain, Refused)
    assert (plain.code, plain.covers_key) == ("recipient_unknown", False)
    replayed = _told(422, document, Idempotent_Replayed="TRUE")
    assert isinstance(replayed, Refused)
    assert replayed.covers_key
    assert "SECRET" not in repr(plain)


def test_a_declined_object_is_a_refusal_that_covers_the_key() -> None:
    failure = {"code": "limit"}
    outcome = _told(201, payment(CALL, status="rejected", failure=failure))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.covers_key) == ("limit", True)
    assert outcome.reading is not None
    assert (outcome.reading.standing, outcome.reading.business) == (
        Standing.DECLINED,
        Business.FAILED,
    )


@pytest.mark.parametrize(("status", "pause"), [(401, True), (403, True), (429, False)])
def test_what_was_not_processed_is_not_sent_unless_it_is_a_replay(status: int, pause: bool) -> None:
    outcome = _told(status, b"", Retry_After="7")
    assert isinstance(outcome, NotSent)
    assert (outcome.pause, outcome.throttled) == (pause, not pause)
    assert outcome.retry_after_s == 7
    assert isinstance(_told(status, b"", Idempotent_Replayed="true"), Lost)


@pytest.mark.parametrize("said", ["soon", "-1", "nan", "inf", ""])
def test_a_wait_that_is_no_number_is_none(said: str) -> None:
    outcome = _told(429, b"", Retry_After=said)
    assert isinstance(outcome, NotSent)
    assert outcome.retry_after_s is None


def test_a_replay_is_dated_by_the_object_and_never_by_the_answer() -> None:
    undated = payment(CALL, updated_at=None)
    for mark, time in (({}, 1795955400), ({"Idempotent_Replayed": "true"}, 0)):
        outcome = _told(200, undated, Date=DATE, **mark)
        assert isinstance(outcome, Receipt)
        assert outcome.reading.vendor_time == time


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (1795953600, 1795953600), (1795953600.9, 1795953600), ("1795953600.25", 1795953600),
        (1795953600500, 1795953600), ("2026-11-29T12:00:00Z", 1795953600),
        ("2026-11-29T13:00:00+01:00", 1795953600), ("2026-11-29T12:00:00", 1795953600),
        ("soon", 0), (-5, 0), (True, 0), ("inf", 0), ("nan", 0), (None, 0), ([], 0),
    ],
)  # fmt: skip
def test_a_time_is_read_however_a_vendor_writes_it(written: Any, seconds: int) -> None:
    outcome = _told(200, payment(CALL, updated_at=written))
    assert isinstance(outcome, Receipt)
    assert outcome.reading.vendor_time == seconds


def test_the_first_rule_that_matches_decides_and_true_is_not_one() -> None:
    messages = contract_of("messages")
    call = call_of(messages, {"channel": "a", "text": "b"})
    metadata = {"outbox_id": str(call.intent_id)}
    ok = {"ok": True, "ts": "1795955400.25", "message": {"metadata": metadata}}

    def told(document: Any) -> Outcome:
        return outcome_of(messages, call, Answer(200, {}, json.dumps(document).encode()))

    landed = told(ok)
    assert isinstance(landed, Receipt)
    assert (landed.reading.receipt_id, landed.reading.vendor_time) == ("1795955400.25", 1795955400)
    assert isinstance(told({"ok": False, "error": "channel_not_found"}), Refused)
    assert isinstance(told({"ok": False, "error": "fatal_error"}), Lost)
    assert isinstance(told({**ok, "ok": 1}), Lost)
    assert isinstance(outcome_of(messages, call, Answer(200, {}, b"ok")), Lost)


def test_an_answer_that_a_rule_with_a_condition_cannot_read_is_not_left_to_the_next_rule() -> None:
    both = (
        '[[answers]]\nstatus = 503\nwhere = { stage = "executing" }\nmeans = "in_doubt"\n\n'
        '[[answers]]\nstatus = 503\nmeans = "not_processed"\n\n[receipt]'
    )
    contract = contract_of("payments", {"[receipt]": both})
    call = call_of(contract)
    for body, kind in (
        (b'{"stage": "queued"}', NotSent), (b'{"stage": "executing"}', Lost), (b"<html>", Lost),
    ):  # fmt: skip
        assert isinstance(outcome_of(contract, call, Answer(503, {}, body)), kind)


def test_an_id_may_come_in_a_header_and_a_mark_may_be_left_out_of_the_answer() -> None:
    told = 'id_header = "X-Message-Id"\nid = "id"\nowner_in_answer = false\nowner'
    contract = contract_of("payments", {'id = "id"\nowner': told})
    call = call_of(contract)
    answer = Answer(200, {"X-Message-Id": "m-1"}, b'{"status": "succeeded"}')
    outcome = outcome_of(contract, call, answer)
    assert isinstance(outcome, Receipt)
    assert (outcome.reading.receipt_id, outcome.reading.owner) == ("m-1", str(call.intent_id))
    other = json.dumps(payment(call, idempotency_key="f" * 64)).encode()
    assert isinstance(outcome_of(contract, call, Answer(200, {}, other)), Lost)


def test_an_operation_on_an_object_takes_no_other_object() -> None:
    call = call_of(PAYMENTS, {"payment_id": "pay_1"}, operation="payments.cancel")
    landed = _told(200, {"id": "pay_1", "status": "pending"}, call)
    assert isinstance(landed, Receipt)
    assert landed.reading.standing is Standing.LANDED, "the vendor took it; it may show later"
    assert isinstance(_told(200, {"id": "pay_2", "status": "canceled"}, call), Lost)

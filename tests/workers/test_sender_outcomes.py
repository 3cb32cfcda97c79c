"""Every outcome through the sender, end to end: row, attempts, settlement, and the wire."""

from __future__ import annotations

import pytest

from tests.workers.floor import Floor

LOST = {
    "lost_request": 0,
    "lost_ack": 1,
    "refuse": 0,
    "half_body": 1,
    "empty_200": 1,
    "bad_gateway_before": 0,
    "bad_gateway_after": 1,
    "redirect_302": 0,
    "unavailable_503": 0,
    "in_use_409": 1,
}


def test_an_answer_settles_the_row_with_one_request(floor: Floor) -> None:
    ids = floor.enqueue(20)
    assert floor.drain() == 20
    for intent_id in ids:
        row = floor.row(intent_id)
        assert (row["status"], row["business_status"]) == ("succeeded", "paid")
        assert (row["settled_by"], row["doubt"]) == ("reply", 0)
        assert row["receipt_id"].startswith("pi_")
        assert floor.outcomes(intent_id) == ["receipt"]
        assert floor.effects(intent_id) == 1
    assert len(floor.posts()) == 20
    settled = floor.sql("SELECT told, count(*) AS n FROM outbox.settlements GROUP BY told")
    assert settled == [{"told": "settled", "n": 20}]


@pytest.mark.parametrize("fault", LOST)
def test_a_lost_answer_is_doubt_and_ends_as_one_effect(floor: Floor, fault: str) -> None:
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["settled_at"]) == ("unknown", 1, None)
    assert floor.outcomes(intent_id) == ["lost"]
    floor.sandbox.release(floor.account)
    floor.settle()
    row = floor.row(intent_id)
    assert (row["status"], row["business_status"], row["doubt"]) == ("succeeded", "paid", 0)
    assert floor.effects(intent_id) == 1
    # What took effect is found by reading; only what did not is sent again, under the same key.
    assert len(floor.posts(intent_id)) == (1 if LOST[fault] else 2)


def test_a_declined_card_is_refused_and_keeps_the_declined_object(floor: Floor) -> None:
    intent_id = floor.one(payment_method="pm_card_chargeDeclined")
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"]) == ("failed_poison", 0)
    assert row["failure_code"] == "generic_decline"
    assert row["receipt_id"].startswith("pi_")
    assert floor.outcomes(intent_id) == ["refused"]
    assert len(floor.posts()) == 1
    (settled,) = floor.sql("SELECT * FROM outbox.settlements")
    assert (settled["told"], settled["failure_code"]) == ("failed", "generic_decline")


def test_a_refused_parameter_fails_at_once_and_leaves_no_object(floor: Floor) -> None:
    intent_id = floor.one(payment_method="nobody_knows")
    floor.drain()
    row = floor.row(intent_id)
    assert (row["status"], row["receipt_id"]) == ("failed_poison", None)
    assert floor.outcomes(intent_id) == ["refused"]
    assert floor.effects(intent_id) == 0


@pytest.mark.parametrize("fault", ["stored_500_no_object", "do_not_retry"])
def test_a_veto_is_kept_and_nothing_is_sent_again(floor: Floor, fault: str) -> None:
    """B10: a stored 500 is replayed for a day; a re-send cannot heal it, a new key pays twice."""
    floor.sandbox.fault(fault, account=floor.account)
    intent_id = floor.one()
    floor.drain()
    assert floor.row(intent_id)["veto"] in ("stored_500", "do_not_retry")
    for _ in range(3):
        floor.advance(5)
        floor.round()
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"]) == ("unknown", 1)
    assert len(floor.posts()) == 1
    (question,) = floor.escalations()
    assert question["reasons"] == ["ttl"]


@pytest.mark.parametrize(
    ("word", "business"),
    [
        ("processing", "pending"),
        ("requires_capture", "pending"),
        ("requires_action", "action_required"),
        ("canceled", "failed"),
        ("on_hold", "other"),
    ],
)
def test_a_200_that_is_not_paid_is_landed_and_says_what_became_of_it(
    floor: Floor, word: str, business: str
) -> None:
    """B38: transport success is not business success, and an unknown word breaks nothing."""
    floor.sandbox.fault(f"status:{word}", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    floor.settle()
    row = floor.row(intent_id)
    assert row["business_status"] == business or row["status"] == "failed_poison"
    assert row["business_word"] in (word, None)
    assert len(floor.posts()) == 1


def test_a_refused_connection_is_not_sent_and_is_tried_again(floor: Floor) -> None:
    ids = floor.enqueue(3)
    floor.sandbox.accept_connections(False)
    try:
        floor.drain()
        for intent_id in ids:
            row = floor.row(intent_id)
            assert (row["status"], row["doubt"]) == ("pending", 0)
            assert (row["first_sent_at"], row["window_ends_at"]) == (None, None)
            assert set(floor.outcomes(intent_id)) == {"not_sent"}
    finally:
        floor.sandbox.accept_connections(True)
    floor.settle()
    assert all(floor.effects(intent_id) == 1 for intent_id in ids)


def test_an_account_of_another_mode_is_never_sent_to(floor: Floor) -> None:
    """B13: the row is frozen to the account it was first claimed for."""
    intent_id = floor.one()
    floor.sql("UPDATE outbox.intents SET mode = 'live' WHERE id = %(id)s", {"id": intent_id})
    assert floor.drain() == 0
    assert floor.posts() == []
    assert floor.status(intent_id) == "pending"

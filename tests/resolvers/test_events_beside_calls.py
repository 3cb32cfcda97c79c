"""Events that come while their write is still on the wire, long after it, or in no order at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from resolvers.joining import join_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.test_joining import about, arrive, claimed, row_of
from tests.workers.floor import READS, Floor, wait_until

HOUR = 3600.0


def _join(floor: Floor) -> None:
    floor.box.deliver_webhooks()
    join_once(floor.store, floor.directory)


def _is_there(floor: Floor) -> bool:
    return bool(floor.sandbox.objects(floor.account, "payment_intents"))


def test_an_event_that_arrives_while_the_answer_is_held_back_settles_its_write(
    floor: Floor,
) -> None:
    """B03: the vendor tells it by webhook before the reply; then the reply comes and changes
    nothing."""
    floor.sandbox.fault("slow", account=floor.account, after_s=1.5)
    intent_id = floor.one()
    drain = floor.drain_beside()
    wait_until(lambda: _is_there(floor))
    _join(floor)
    early = floor.row(intent_id)
    assert drain.is_alive(), "the answer is still held back"
    assert (early["status"], early["settled_by"]) == ("succeeded", "webhook")
    drain.join()
    row = floor.row(intent_id)
    assert (row["status"], row["receipt_id"], row["doubt"]) == (
        "succeeded", early["receipt_id"], 0)  # fmt: skip
    assert floor.outcomes(intent_id) == ["receipt (late)"]
    assert len(floor.sql("SELECT 1 FROM outbox.settlements")) == 1
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)
    assert floor.pages() == []


def test_an_event_settles_what_a_lost_worker_sent_without_a_read_or_a_page(floor: Floor) -> None:
    """B03: the worker was killed before it stored the object's id."""
    floor.sandbox.fault("lost_ack", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    _join(floor)
    assert floor.row(intent_id)["settled_by"] == "webhook"
    assert (len(floor.posts()), floor.reads(), floor.pages()) == (1, [], [])


def _stored_500(floor: Floor) -> UUID:
    floor.sandbox.fault("stored_500_object_later", account=floor.account, after_s=10**6)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    assert floor.row(intent_id)["veto"] == "stored_500"
    return intent_id


def test_an_event_hours_after_a_stored_500_closes_the_doubt_and_its_question(floor: Floor) -> None:
    """B10: the vendor made the object by itself, so its event names no request; the reads fail."""
    intent_id = _stored_500(floor)
    floor.until(5 * HOUR, intent_id)
    floor.round()
    (question,) = floor.escalations()
    assert (question["reasons"], question["closed_at"]) == (["ttl"], None)
    floor.sandbox.release(floor.account)
    floor.advance(3 * HOUR)
    _join(floor)
    row = floor.row(intent_id)
    assert (row["status"], row["settled_by"]) == ("succeeded", "webhook")
    (question,) = floor.escalations()
    assert question["closed_at"] is not None
    assert [p["action"] for p in floor.pages()] == ["trigger", "resolve"]
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)


def test_an_event_before_the_ttl_leaves_no_question_about_a_stored_500(floor: Floor) -> None:
    """B10."""
    intent_id = _stored_500(floor)
    floor.sandbox.release(floor.account)
    _join(floor)
    floor.until(30 * HOUR, intent_id)
    floor.round()
    assert (floor.status(intent_id), floor.escalations(), floor.pages()) == ("succeeded", [], [])
    assert len(floor.posts()) == 1


@pytest.mark.parametrize("order", [("processing", "succeeded"), ("succeeded", "processing")])
def test_of_two_events_of_one_second_neither_is_taken_for_the_later_one_in_silence(
    ledger: Ledger, order: tuple[str, str]
) -> None:
    """B19: their stamps are equal, so the vendor is asked how the object is now."""
    row = claimed(ledger)
    for status in order:
        body = about(row, kind=f"payment_intent.{status}", status=status)
        arrive(ledger, {**body, "created": 100})
    after = row_of(ledger, row.id)
    assert (after.status, after.contradicted_at) == ("succeeded", None)
    assert after.verify_at is not None
    assert ledger.pages() == []


def test_an_older_event_days_later_takes_nothing_back(ledger: Ledger) -> None:
    """B19: everything is delivered once more three days later."""
    row = claimed(ledger)
    bodies = [
        {**about(row, kind=f"payment_intent.{word}", status=word), "created": created}
        for word, created in (("succeeded", 100), ("processing", 99))
    ]
    for body in bodies:
        arrive(ledger, body)
    settled = row_of(ledger, row.id)
    told = ledger.sql("SELECT id FROM outbox.settlements")
    ledger.forward(3 * 86_400)
    for body in reversed(bodies):
        arrive(ledger, body)
    after = row_of(ledger, row.id)
    assert (after.status, after.business_word) == ("succeeded", "succeeded")
    assert after.settled_at == settled.settled_at
    assert ledger.sql("SELECT id FROM outbox.settlements") == told
    assert ledger.pages() == []

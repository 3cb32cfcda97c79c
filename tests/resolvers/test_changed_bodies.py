"""A vendor that says our body has changed: doubt that reads settle, or a person does."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.workers.floor import READS, Floor

HOUR = 3600.0


def _refused_as_changed(floor: Floor) -> UUID:
    """A charge whose answer was lost, and whose re-send carried another body; reads fail."""
    floor.provoked.add("body_changed")
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one()
    floor.drain()
    floor.sql(
        "UPDATE outbox.intents SET request = replace(request, '\"params\":{', "
        '\'"params":{"description":"from a newer build",\') WHERE id = %(id)s',
        {"id": intent_id},
    )
    floor.until(15, intent_id)
    floor.round()
    assert [p["status"] for p in floor.posts()] == [None, 400]
    return intent_id


def test_a_changed_body_that_nothing_explains_ends_in_one_question(floor: Floor) -> None:
    """B09: no failure, no new key, no further send; a person hears of it once."""
    intent_id = _refused_as_changed(floor)
    passed = 0.0
    while passed < 5 * HOUR:
        passed += floor.jump(intent_id)
        floor.round()
    row = floor.row(intent_id)
    assert (row["status"], row["veto"], row["failure_code"]) == ("unknown", "key_mismatch", None)
    assert (len(floor.posts()), len({p["key"] for p in floor.posts()})) == (2, 1)
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (intent_id, ["ttl"])
    assert question["detail"]["why"] == "key_mismatch"
    assert [p["action"] for p in floor.pages()] == ["trigger"]
    assert floor.effects(intent_id) == 1


def test_a_changed_body_is_settled_by_the_event_of_the_first_one(floor: Floor) -> None:
    """B09."""
    intent_id = _refused_as_changed(floor)
    assert floor.box.deliver_webhooks() > 0
    floor.round()
    row = floor.row(intent_id)
    assert (row["status"], row["settled_by"]) == ("succeeded", "webhook")
    assert floor.escalations() == []


@pytest.mark.parametrize("fault", ["lost_ack", "lost_request"])
def test_a_re_send_is_the_first_body_byte_for_byte_whatever_a_newer_build_asks_for(
    floor: Floor, fault: str
) -> None:
    """B09: the agent asks again with other words; the wire carries what was frozen."""
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = floor.one(run="run-frozen", invoice_id="in_frozen", description="as first said")
    floor.drain()
    again = floor.one(run="run-frozen", invoice_id="in_frozen", description="as a newer build says")
    assert again == intent_id
    floor.until(15, intent_id)
    floor.round()
    first, second = floor.posts()
    assert first["body_sha256"] == second["body_sha256"]
    assert floor.status(intent_id) == "succeeded"
    (charge,) = floor.sandbox.objects(floor.account, "payment_intents")
    assert charge["description"] == "as first said"
    assert floor.effects(intent_id) == 1

"""What a person has ruled on stays ruled: the same thing seen again asks and tells nobody."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from outbox import Outbox
from resolvers import triage
from tests.resolvers.hooks import Hooks
from tests.workers.floor import CARD, Floor


def _plant(floor: Floor, intent_id: UUID, **fields: Any) -> str:
    """An object of ours that somebody else made."""
    marks = {
        "outbox_id": str(intent_id),
        "outbox_key": bytes(floor.row(intent_id)["key"]).hex(),
    }
    params = {**CARD, "metadata": marks, **fields}
    return str(floor.sandbox.plant(floor.account, "payment_intents.create", params)["id"])


def _rule(floor: Floor, intent_id: UUID, object_id: str) -> None:
    ruling = triage.landed(
        floor.store, floor.directory, str(intent_id), object_id, by="jane", reason="that one"
    )
    assert ruling.changed


def _open(floor: Floor) -> list[list[str]]:
    return [e["reasons"] for e in floor.escalations() if e["closed_at"] is None]


def _told(floor: Floor, intent_id: UUID) -> tuple[str, str | None]:
    outbox = Outbox(floor.settings)
    answer = outbox.wait(intent_id, 0.1)
    outbox.close()
    return answer.told, answer.business_status


def _ruled(floor: Floor, hooks: Hooks) -> tuple[UUID, str]:
    """Ours never arrived; one of another amount was found, and ruled to be it."""
    floor.sandbox.fault("lost_request", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    object_id = _plant(floor, intent_id, amount=4901)
    hooks()
    assert _open(floor) == [["another_amount"]]
    _rule(floor, intent_id, object_id)
    assert _told(floor, intent_id) == ("settled", "paid")
    return intent_id, object_id


def test_an_ordinary_event_does_not_overturn_the_ruling_on_another_amount(floor: Floor) -> None:
    hooks = Hooks(floor)
    intent_id, object_id = _ruled(floor, hooks)
    floor.advance(60)
    floor.sandbox.move(object_id, "canceled")
    hooks()
    floor.look()
    assert (_open(floor), _told(floor, intent_id)) == ([], ("settled", "failed"))


def test_another_object_after_the_ruling_is_a_new_question(floor: Floor) -> None:
    hooks = Hooks(floor)
    intent_id, _ = _ruled(floor, hooks)
    _plant(floor, intent_id, amount=4901)
    hooks()
    assert (_open(floor), _told(floor, intent_id)[0]) == ([["another_amount"]], "unknown")


def test_another_kind_of_mismatch_after_the_ruling_is_a_new_question(floor: Floor) -> None:
    hooks = Hooks(floor)
    _, object_id = _ruled(floor, hooks)
    floor.sql("UPDATE outbox.intents SET amount_minor = 4901, currency = 'eur'")
    floor.advance(60)
    floor.sandbox.move(object_id, "canceled")
    hooks()
    floor.look()
    assert _open(floor) == [["another_currency"]]


def test_the_refund_of_a_second_object_does_not_overturn_the_ruling_on_the_first(
    floor: Floor,
) -> None:
    hooks = Hooks(floor)
    intent_id = floor.one()
    floor.drain()
    hooks()
    first = floor.row(intent_id)["receipt_id"]
    second = _plant(floor, intent_id)
    hooks()
    assert _open(floor) == [["contradiction"]]
    _rule(floor, intent_id, first)
    floor.advance(60)
    floor.sandbox.move(second, "canceled")
    hooks()
    floor.look()
    assert (_open(floor), _told(floor, intent_id)) == ([], ("settled", "paid"))

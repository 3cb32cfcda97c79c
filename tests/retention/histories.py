"""The usual lives of an intent up to its end, each by the ledger's own writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from outbox import WriteTool
from outbox.outcomes import Business, Lost, NotSent, Receipt
from outbox.states import Event
from outbox.store import business, escalations, intents, rulings, settlements
from outbox.store.moves import Change, apply
from resolvers import redacting, triage
from tests.retention.attic import Attic

History = Callable[[Attic, WriteTool, str], UUID]


def landed(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    return attic.landed(tool, invoice=invoice)


def refused(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    return attic.refused(tool, invoice=invoice)


def landed_and_known_by_its_event_alone(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.enqueue(tool, invoice).intent_id
    attic.desk.record(attic.desk.leased(intent_id), Lost("no reply"))
    attic.event(intent_id)
    return intent_id


def landed_at_the_second_try(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.enqueue(tool, invoice).intent_id
    attic.desk.record(attic.desk.leased(intent_id), NotSent("connection refused"))
    attic.desk.forward(120)
    row = attic.desk.leased(intent_id)
    attic.desk.record(row, Receipt(attic.reading(row)))
    return intent_id


def refused_though_a_try_was_lost(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.enqueue(tool, invoice).intent_id
    row = attic.desk.leased(intent_id)
    attic.desk.record(row, Lost("no reply"))
    with attic.desk.store.transaction() as tx:
        held = intents.lock(tx, intent_id)
        assert held is not None
        change = Change(actor="sender", covers_key=True, answers_doubt=True, failure_code="no")
        apply(tx, held, Event.REFUSED, change)
    return intent_id


def cancelled(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.enqueue(tool, invoice).intent_id
    triage.cancel(attic.desk.store, str(intent_id), by="alice", reason="withdrawn")
    return intent_id


def landed_and_reversed(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.landed(tool, invoice=invoice)
    attic.event(intent_id)
    row = attic.desk.row(intent_id)
    seen = attic.reading(row, business=Business.REVERSED, word="refunded")
    with attic.desk.store.transaction() as tx:
        assert business.move_business(tx, row, seen, actor="sweep", source="look_up")
    return intent_id


def refused_and_ruled_to_have_landed(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.refused(tool, invoice=invoice)
    row = attic.desk.row(intent_id)
    with attic.desk.store.transaction() as tx:
        change = Change(actor="alice", reading=attic.reading(row), settled_by="operator")
        apply(tx, row, Event.RULED_LANDED, change)
    return intent_id


def contradicted_and_ruled_on(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.landed(tool, invoice=invoice)
    attic.event(intent_id, id=f"pi_second_{intent_id.hex[:8]}")
    with attic.desk.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        question = rulings.lock_open_escalation(tx, intent_id)
        assert row is not None
        assert question is not None
        row = rulings.clear_contradiction(tx, row)
        escalations.close(tx, question["id"], by="alice", verdict="landed")
        settlements.lock_consumers(tx)
        settlements.write(tx, row, "ruled")
    return intent_id


def refused_and_asked_for_again(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.refused(tool, invoice=invoice)
    repeat = attic.enqueue(tool, invoice, supersedes=intent_id).intent_id
    row = attic.desk.leased(repeat)
    attic.desk.record(row, Receipt(attic.reading(row)))
    return intent_id


def landed_and_redacted(attic: Attic, tool: WriteTool, invoice: str) -> UUID:
    intent_id = attic.landed(tool, invoice=invoice)
    redacting.redact(attic.desk.store, str(intent_id), by="alice", reason="erasure")
    return intent_id


HISTORIES: Mapping[str, History] = {
    history.__name__: history
    for history in (
        landed,
        refused,
        landed_and_known_by_its_event_alone,
        landed_at_the_second_try,
        refused_though_a_try_was_lost,
        cancelled,
        landed_and_reversed,
        refused_and_ruled_to_have_landed,
        contradicted_and_ruled_on,
        refused_and_asked_for_again,
        landed_and_redacted,
    )
}

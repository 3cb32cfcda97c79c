"""A question about an intent that its run's next turn cancelled is closed by the next tick."""

from __future__ import annotations

import psycopg

from outbox import Outbox, Scope, WriteTool
from resolvers.escalating import escalate_once
from tests.resolvers.ledger import ARGS, CHARGE, open_ledger

TURN = WriteTool(
    "charge_turn",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=CHARGE.identity,
    guard=CHARGE.guard,
    money=CHARGE.money,
    once_per="epoch",
)


def test_a_cancelled_turn_closes_its_questions_and_resolves_their_pages(database: str) -> None:
    with open_ledger(database) as ledger:
        outbox = Outbox(ledger.settings)
        url = database.replace("+psycopg", "")
        scope = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
        with psycopg.connect(url) as connection:
            gone = outbox.enqueue(connection, TURN, scope, {**ARGS, "invoice_id": "in_gone"})
        kept = ledger.intent()
        ledger.forward(5 * 3600)
        escalate_once(ledger.store, ledger.directory)
        with psycopg.connect(url) as connection:
            assert outbox.advance_epoch(connection, "acme", "run-1", "turn-2") == 1
        escalate_once(ledger.store, ledger.directory)
        questions = ledger.sql("SELECT intent_id, closed_at FROM outbox.escalations")
        still_open = {q["intent_id"]: q["closed_at"] is None for q in questions}
        assert still_open == {gone.intent_id: False, kept: True}
        assert [p["action"] for p in ledger.pages()] == ["trigger", "trigger", "resolve"]

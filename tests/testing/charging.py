"""A user's test file, as it is run in a folder of its own (`test_plugin.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import stripe
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox import Answer, Scope, WriteTool
from workers.testing import OutboxBox

CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)
CARD: Mapping[str, Any] = {
    "amount": 4900,
    "currency": "usd",
    "customer": "cus_1",
    "confirm": True,
    "payment_method": "pm_card_visa",
    "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
}


@pytest.fixture(scope="session")
def outbox_template(outbox_template: str) -> str:
    """The application's own table, in the database that each test gets a copy of."""
    engine = create_engine(outbox_template)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (id text PRIMARY KEY, status text)"))
    engine.dispose()
    return outbox_template


def collect(box: OutboxBox, invoice_id: str = "in_1") -> Answer:
    """The code under test: a row of the application's and the intent in one transaction."""
    engine = create_engine(box.database_url, poolclass=NullPool)
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO invoices VALUES (:id, 'collecting')"), {"id": invoice_id})
        scope = Scope(tenant="acme", run_id="run-1")
        return box.outbox.enqueue(session, CHARGE, scope, {**CARD, "invoice_id": invoice_id})


def test_a_lost_answer_charges_once(outbox_box: OutboxBox) -> None:
    outbox_box.fault("lost_ack", attempts=[1])
    intent = collect(outbox_box)
    assert outbox_box.drain() == 1
    assert outbox_box.outbox.wait(intent, 0).told == "unknown"
    assert outbox_box.resolve() == 0
    outbox_box.travel(5)
    assert outbox_box.resolve() == 1
    outbox_box.assert_one_effect(intent)
    outbox_box.assert_one_effect(str(intent.intent_id))
    assert outbox_box.outbox.wait(intent, 0).told == "settled"
    assert (outbox_box.escalations(), outbox_box.pages()) == ([], [])


def test_the_webhook_settles_what_the_lost_answer_left(outbox_box: OutboxBox) -> None:
    outbox_box.fault("lost_ack")
    intent = collect(outbox_box)
    outbox_box.drain()
    assert outbox_box.deliver_webhooks() > 0
    assert outbox_box.deliver_webhooks() == 0
    outbox_box.resolve()
    outbox_box.assert_one_effect(intent)


def test_nothing_is_charged_before_the_drain(outbox_box: OutboxBox) -> None:
    intent = collect(outbox_box)
    outbox_box.assert_no_effect(intent)


def test_time_passes_until_a_lost_request_has_been_sent_again(outbox_box: OutboxBox) -> None:
    outbox_box.fault("lost_request", attempts=[1, 2])
    intent = collect(outbox_box)
    assert outbox_box.settle()
    outbox_box.assert_one_effect(intent)


class TestOfLittlePatience:
    @pytest.fixture
    def outbox_env(self) -> Mapping[str, str]:
        return {"OUTBOX_TTL_MAX_S": "60"}

    def test_a_vendor_that_stays_away_pages_a_person(self, outbox_box: OutboxBox) -> None:
        outbox_box.fault("unavailable_503")
        intent = collect(outbox_box)
        assert not outbox_box.settle(within_s=90)
        (escalation,) = outbox_box.escalations()
        assert escalation["intent_id"] == intent.intent_id
        (page,) = outbox_box.pages()
        assert (page["action"], page["details"]["intent"]) == ("trigger", str(intent.intent_id))
        outbox_box.assert_no_effect(intent)


def test_a_client_of_its_own_charges_twice(outbox_box: OutboxBox) -> None:
    """Fails: beside the outbox, somebody sends the same charge under another key."""
    intent = collect(outbox_box)
    outbox_box.drain()
    client = stripe.StripeClient(
        outbox_box.sandbox.api_key(outbox_box.account),
        base_addresses={"api": outbox_box.sandbox.url},
    )
    again: Any = {**CARD, "metadata": {"outbox_id": str(intent.intent_id)}}
    client.v1.payment_intents.create(again, {"idempotency_key": "another-key"})
    outbox_box.assert_one_effect(intent)


def test_a_charge_that_was_never_sent(outbox_box: OutboxBox) -> None:
    """Fails: nobody drained."""
    outbox_box.assert_one_effect(collect(outbox_box))

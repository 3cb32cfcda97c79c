"""Events of a vendor that only a file describes: what they may settle, and what they may not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from outbox import WriteTool
from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.vendors.recipe_floor import SECRET, RecipeFloor, delivered, hooks, open_recipe_floor
from vendors.sandbox.client import Sandbox

PAY = {"amount": 100, "currency": "eur", "recipient": "ann"}
CAUSE = {'object = "data"\n': 'object = "data"\nkey = "cause"\n'}


def _event(floor: RecipeFloor, body: dict[str, Any]) -> None:
    """One delivery, signed now by the database's clock, received and joined."""
    (row,) = floor.sql("SELECT outbox.clock() AS now")
    now = row["now"].astimezone(UTC)
    text = json.dumps(body)
    stamp = datetime.fromtimestamp(int(now.timestamp()), UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("msg_1", stamp, text),
    }
    answer = receive(
        floor.store,
        floor.directory,
        vendor="payments",
        account="default",
        headers=headers,
        body=text.encode(),
    )
    assert answer == (200, "stored")
    join_once(floor.store, floor.directory)


def _lost(floor: RecipeFloor) -> tuple[Any, str]:
    floor.sandbox.fault("lost_request", account=floor.account, times=1)
    tool = WriteTool(
        "pay", vendor="payments", operation="payments.create", money=("amount", "currency")
    )
    intent_id = floor.ask(tool, **PAY)
    floor.drain()
    return intent_id, bytes(floor.row(intent_id)["key"]).hex()


def test_an_event_that_our_key_caused_settles_nothing_by_an_object_that_is_not_ours(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The object's id is a part of our path, as that of a parent is, and no mark is on it."""
    with open_recipe_floor(database, sandbox, "payments", tmp_path, changes=CAUSE) as floor:
        intent_id, key = _lost(floor)
        parent = {"id": "payments", "status": "succeeded", "livemode": False}
        _event(floor, {"id": "evt_1", "type": "updated", "cause": key, "data": parent})
        assert floor.status(intent_id) == "unknown"
        assert floor.row(intent_id)["receipt_id"] is None


def test_an_event_that_our_key_caused_settles_the_change_of_the_object_that_our_path_names(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    changes = {'object = "data"\n': 'object = "data"\nkey = "idempotency_key"\n'}
    with open_recipe_floor(database, sandbox, "payments", tmp_path, changes=changes) as floor:
        made = sandbox.plant(floor.account, "payments.create", PAY, key="somebody")
        cancel = WriteTool("cancel", vendor="payments", operation="payments.cancel")
        sandbox.fault("lost_ack", account=floor.account, times=1)
        with hooks(floor):
            intent_id = floor.ask(cancel, payment_id=made["id"])
            floor.drain()
            delivered(floor)
        row = floor.row(intent_id)
        assert (row["status"], row["settled_by"]) == ("succeeded", "webhook")
        assert (row["receipt_id"], row["business_status"]) == (made["id"], "reversed")
        assert floor.reads() == []


def test_an_event_of_another_amount_is_a_contradiction(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as floor:
        intent_id, key = _lost(floor)
        payment = {"id": "pay_9", "status": "succeeded", "amount": 999, "currency": "eur"}
        data = {**payment, "idempotency_key": key, "livemode": False}
        _event(floor, {"id": "evt_1", "type": "payment.created", "data": data})
        assert floor.status(intent_id) == "unknown"
        assert floor.escalations()[0]["reasons"] == ["another_amount"]


def test_an_event_of_the_other_mode_touches_nothing_and_is_asked_about(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as floor:
        intent_id, key = _lost(floor)
        data = {"id": "pay_9", "status": "succeeded", "idempotency_key": key}
        _event(floor, {"id": "evt_1", "type": "x", "livemode": True, "data": data})
        assert floor.status(intent_id) == "unknown"
        assert floor.escalations()[0]["reasons"] == ["webhook_mismatch"]


def test_an_event_of_nobody_here_is_dropped_without_a_page(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as floor:
        _event(floor, {"id": "evt_1", "type": "x", "data": {"id": "pay_9", "status": "succeeded"}})
        floor.advance(3600)
        join_once(floor.store, floor.directory)
        (kept,) = floor.sql("SELECT state, body FROM outbox.webhook_inbox")
        assert (kept["state"], kept["body"]) == ("foreign", None)
        assert floor.escalations() == []

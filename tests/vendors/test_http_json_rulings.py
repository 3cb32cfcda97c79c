"""A person's verdict on a write at a vendor that only a file describes: the vendor is asked there
too, as far as its file says how."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox import Denied, WriteTool
from resolvers import triage
from tests.vendors.recipe_floor import RecipeFloor, open_recipe_floor
from vendors.sandbox.client import Sandbox

WHO: dict[str, Any] = {"by": "alice", "reason": "seen in the dashboard"}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "payments": ("payments.create", {"amount": 1, "currency": "eur", "recipient": "ann"}),
    "contacts": ("contacts.create", {"email": "ann@example.com"}),
    "tickets": ("tickets.create", {"title": "a leak"}),
    "messages": ("messages.post", {"channel": "ops", "text": "hello"}),
}


def _lost(floor: RecipeFloor, fault: str) -> UUID:
    operation, args = TOOLS[floor.vendor]
    floor.sandbox.fault(fault, account=floor.account, times=1)
    intent_id = floor.ask(WriteTool("a_tool", vendor=floor.vendor, operation=operation), **args)
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


def _objects(floor: RecipeFloor) -> list[str]:
    return [one["id"] for one in floor.sandbox.objects(floor.account, floor.vendor)]


@pytest.mark.parametrize("vendor", ["payments", "contacts", "tickets"])
def test_only_an_object_that_bears_our_mark_proves_that_it_landed(
    database: str, sandbox: Sandbox, tmp_path: Path, vendor: str
) -> None:
    with open_recipe_floor(database, sandbox, vendor, tmp_path) as floor:
        intent_id = _lost(floor, "lost_ack")
        (ours,) = _objects(floor)
        operation, args = TOOLS[vendor]
        foreign = {**args, "external_id": "theirs"} if vendor == "contacts" else args
        sandbox.plant(floor.account, operation, foreign, key="theirs")
        (theirs,) = set(_objects(floor)) - {ours}
        with pytest.raises(Denied):
            triage.landed(floor.store, floor.directory, str(intent_id), theirs, **WHO)
        assert floor.status(intent_id) == "unknown"
        triage.landed(floor.store, floor.directory, str(intent_id), ours, **WHO)
        assert floor.row(intent_id)["receipt_id"] == ours


@pytest.mark.parametrize("vendor", ["contacts", "tickets"])
def test_it_is_ruled_not_landed_only_once_nothing_can_land_and_nothing_is_there(
    database: str, sandbox: Sandbox, tmp_path: Path, vendor: str
) -> None:
    with open_recipe_floor(database, sandbox, vendor, tmp_path) as floor:
        for fault, landed in (("lost_request", False), ("lost_ack", True)):
            intent_id = _lost(floor, fault)
            with pytest.raises(Denied, match="may still land"):
                triage.not_landed(floor.store, floor.directory, str(intent_id), **WHO)
            floor.until(245, intent_id)
            if landed:
                with pytest.raises(Denied, match="it landed"):
                    triage.not_landed(floor.store, floor.directory, str(intent_id), **WHO)
            else:
                triage.not_landed(floor.store, floor.directory, str(intent_id), **WHO)
                assert floor.status(intent_id) == "failed_poison"


def test_where_nothing_can_be_read_the_verdict_itself_is_the_receipt(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    with open_recipe_floor(database, sandbox, "messages", tmp_path) as floor:
        intent_id = _lost(floor, "lost_ack")
        floor.until(1000, intent_id)
        floor.escalate()
        triage.landed(floor.store, floor.directory, str(intent_id), "", **WHO)
        row = floor.row(intent_id)
        assert row["status"] == "succeeded"
        assert row["receipt_id"] == f"verdict:{floor.escalations()[0]['id']}"


def test_a_change_of_an_object_is_ruled_landed_by_that_object_only(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as floor:
        operation, args = TOOLS["payments"]
        made = [
            sandbox.plant(floor.account, operation, args, key=f"key-{number}")["id"]
            for number in range(2)
        ]
        cancel = WriteTool("cancel", vendor="payments", operation="payments.cancel")
        floor.sandbox.fault("lost_ack", account=floor.account, times=1)
        intent_id = floor.ask(cancel, payment_id=made[0])
        floor.drain()
        with pytest.raises(Denied):
            triage.landed(floor.store, floor.directory, str(intent_id), made[1], **WHO)
        triage.landed(floor.store, floor.directory, str(intent_id), made[0], **WHO)
        assert floor.row(intent_id)["receipt_id"] == made[0]

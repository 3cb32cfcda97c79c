"""Vendors without keys that only a file describes: one send, and another only where it is proved
that nothing is there and the tool allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from outbox import WriteTool
from outbox.contracts.keys import rendered
from tests.vendors.recipe_floor import RecipeFloor, delivered, hooks, open_recipe_floor
from vendors.sandbox.client import Sandbox

ANN = {"email": "ann@example.com", "name": "Ann"}
LEAK = {"title": "a leak", "body": "in the cellar"}


def _contact() -> WriteTool:
    return WriteTool(
        "add_contact", vendor="contacts", operation="contacts.create", identity=("email",)
    )


def _ticket() -> WriteTool:
    return WriteTool(
        "open_ticket", vendor="tickets", operation="tickets.create", identity=("title",)
    )


def _again(tool: WriteTool) -> WriteTool:
    return replace(tool, name=f"{tool.name}_again", resend_when_absent=True)


@pytest.fixture
def contacts(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    with open_recipe_floor(database, sandbox, "contacts", tmp_path) as opened:
        yield opened


@pytest.fixture
def tickets(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    with open_recipe_floor(database, sandbox, "tickets", tmp_path) as opened:
        yield opened


def _lost(floor: RecipeFloor, fault: str, tool: WriteTool, **fields: object) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, times=1, **fields)
    intent_id = floor.ask(tool, **(ANN if tool.vendor == "contacts" else LEAK))
    floor.drain()
    assert floor.row(intent_id)["window_ends_at"] is None, "no key, no window"
    return intent_id


def _rounds(floor: RecipeFloor, intent_id: UUID, most: int = 12) -> None:
    for _ in range(most):
        if floor.status(intent_id) == "unknown":
            floor.until_due(intent_id)


def test_the_external_id_is_frozen_in_the_body_at_enqueue(contacts: RecipeFloor) -> None:
    intent_id = contacts.ask(_contact(), **ANN)
    external_id = rendered(bytes(contacts.row(intent_id)["key"]), "uuid")
    assert contacts.sent(intent_id)["params"] == {**ANN, "external_id": external_id}
    contacts.drain()
    assert contacts.status(intent_id) == "succeeded"
    (contact,) = contacts.sandbox.objects(contacts.account, "contacts")
    assert contact["external_id"] == external_id


def test_a_lost_ack_is_found_by_its_external_id(contacts: RecipeFloor) -> None:
    intent_id = _lost(contacts, "lost_ack", _contact())
    contacts.until_due(intent_id)
    assert contacts.status(intent_id) == "succeeded"
    assert (len(contacts.posts()), contacts.effects(intent_id)) == (1, 1)


def test_a_redelivered_create_leaves_one_contact(contacts: RecipeFloor) -> None:
    intent_id = _lost(contacts, "redelivery", _contact())
    assert contacts.status(intent_id) == "succeeded"
    assert contacts.effects(intent_id) == 1


def test_a_conflict_over_our_own_external_id_is_read_back_and_never_failed(
    contacts: RecipeFloor,
) -> None:
    """The first request lands after the second look and before the second send."""
    intent_id = _lost(contacts, "late_commit", _again(_contact()), after_s=10**6)
    for _ in range(12):
        contacts.jump(intent_id)
        contacts.look()
        if contacts.status(intent_id) == "retryable":
            break
    contacts.sandbox.release(contacts.account)
    contacts.drain()
    assert contacts.outcomes(intent_id) == ["lost", "lost"]
    assert (contacts.posts()[1]["status"], contacts.status(intent_id)) == (409, "unknown")
    contacts.until_due(intent_id)
    assert contacts.status(intent_id) == "succeeded"
    assert contacts.effects(intent_id) == 1


def test_a_webhook_joins_by_the_external_id(contacts: RecipeFloor) -> None:
    with hooks(contacts) as answered:
        intent_id = _lost(contacts, "lost_ack", _contact())
        delivered(contacts)
    row = contacts.row(intent_id)
    assert (answered, row["status"], row["settled_by"]) == ([200], "succeeded", "webhook")
    assert contacts.reads() == []


def test_a_delivery_by_another_secret_is_refused(contacts: RecipeFloor) -> None:
    contacts.sandbox.webhook_fault("wrong_secret", account=contacts.account)
    contacts.sandbox.set_account(contacts.account, webhook_retry_s=[])
    with hooks(contacts) as answered:
        intent_id = _lost(contacts, "lost_ack", _contact())
        delivered(contacts)
    assert (answered, contacts.status(intent_id)) == ([400], "unknown")


@pytest.mark.parametrize("fault", ["lost_request", "stored_500_no_object"])
@pytest.mark.parametrize("vendor", ["contacts", "tickets"])
def test_without_leave_a_lost_write_is_sent_once_and_asked_of_a_person(
    request: pytest.FixtureRequest, vendor: str, fault: str
) -> None:
    floor: RecipeFloor = request.getfixturevalue(vendor)
    intent_id = _lost(floor, fault, _contact() if vendor == "contacts" else _ticket())
    _rounds(floor, intent_id)
    assert floor.status(intent_id) == "unknown"
    assert (len(floor.posts()), floor.effects(intent_id)) == (1, 0)
    (escalation,) = floor.escalations()
    assert escalation["reasons"] == ["ttl"]


@pytest.mark.parametrize("vendor", ["contacts", "tickets"])
def test_with_leave_it_is_sent_again_only_after_two_quiet_looks(
    request: pytest.FixtureRequest, vendor: str
) -> None:
    """Quiescence here is the end of the lease (60 s), 120 s in flight and 60 s of lag."""
    floor: RecipeFloor = request.getfixturevalue(vendor)
    tool = _again(_contact() if vendor == "contacts" else _ticket())
    intent_id = _lost(floor, "lost_request", tool)
    floor.until(235, intent_id)
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'unknown'")
    floor.round()
    assert floor.row(intent_id)["absent_first_at"] is None
    _rounds(floor, intent_id)
    assert floor.status(intent_id) == "succeeded"
    assert (len(floor.posts()), floor.effects(intent_id)) == (2, 1)
    assert floor.escalations() == []


def test_what_landed_while_the_list_lagged_is_found_and_not_repeated(
    tickets: RecipeFloor,
) -> None:
    tickets.sandbox.set_account(tickets.account, list_lag_s=50)
    intent_id = _lost(tickets, "lost_ack", _again(_ticket()))
    tickets.until_due(intent_id)
    assert tickets.status(intent_id) == "unknown", "the list does not show it yet"
    _rounds(tickets, intent_id)
    assert tickets.status(intent_id) == "succeeded"
    assert (len(tickets.posts()), tickets.effects(intent_id)) == (1, 1)


def test_a_source_that_is_not_consistent_never_allows_another_send(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    changes = {"consistent = true": "consistent = false"}
    opened = open_recipe_floor(database, sandbox, "tickets", tmp_path, changes=changes)
    with opened as floor:
        intent_id = _lost(floor, "lost_request", _again(_ticket()))
        _rounds(floor, intent_id)
        assert (floor.status(intent_id), len(floor.posts())) == ("unknown", 1)
        assert floor.row(intent_id)["absent_first_at"] is None
        assert [e["reasons"] for e in floor.escalations()] == [["ttl"]]


def test_a_redelivery_that_made_two_is_found_by_the_verifying_look_and_names_both(
    tickets: RecipeFloor,
) -> None:
    tickets.provoked = {"more_than_one_effect"}
    intent_id = _lost(tickets, "redelivery", _ticket())
    assert tickets.status(intent_id) == "succeeded"
    tickets.until(245, intent_id)
    assert tickets.look() == 1
    objects = {one["id"] for one in tickets.sandbox.objects(tickets.account, "tickets")}
    assert len(objects) == 2
    row = tickets.row(intent_id)
    assert row["contradicted_at"] is not None
    (escalation,) = tickets.escalations()
    assert escalation["reasons"] == ["duplicate"]
    assert {*escalation["detail"]["objects"], row["receipt_id"]} == objects


def test_two_objects_behind_a_lost_ack_are_for_a_person_and_both_are_named(
    tickets: RecipeFloor,
) -> None:
    """The two lie on two pages of the list."""
    tickets.provoked = {"more_than_one_effect"}
    intent_id = _lost(tickets, "lost_ack", _ticket())
    reference = {"reference": str(intent_id)}
    for number in range(2):
        planted = {"title": f"a leak {number}", **reference}
        tickets.sandbox.plant(tickets.account, "tickets.create", planted)
    tickets.until_due(intent_id)
    assert tickets.status(intent_id) == "unknown"
    (escalation,) = tickets.escalations()
    assert escalation["reasons"] == ["duplicate"]
    assert len(escalation["detail"]["objects"]) == 3
    assert len(tickets.posts()) == 1

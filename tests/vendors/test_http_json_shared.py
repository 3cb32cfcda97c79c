"""A list that cannot be asked for our objects alone, at an account where others work too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from outbox import WriteTool
from resolvers.triage_case import read_case
from resolvers.triage_options import ask
from tests.vendors.recipe_floor import RecipeFloor, open_recipe_floor
from vendors.sandbox.client import Sandbox

LEAK = {"title": "a leak", "body": "in the cellar"}
NO_MARK = "an object holds something else where our mark must be"
HOUR = 3600.0


@pytest.fixture
def shared(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    """Every ticket of the account is listed, whoever opened it."""
    unfiltered = {'query = { reference = "{owner}", per_page = "2" }': 'query = { per_page = "2" }'}
    opened = open_recipe_floor(database, sandbox, "tickets", tmp_path, changes=unfiltered)
    with opened as floor:
        yield floor


def _tool(*, again: bool = False) -> WriteTool:
    """Known once the vendor's file has been read; with leave to send again what is absent."""
    tool = WriteTool(
        "open_ticket", vendor="tickets", operation="tickets.create", identity=("title",)
    )
    return replace(tool, name="open_ticket_again", resend_when_absent=True) if again else tool


def _of_others(floor: RecipeFloor, count: int = 3) -> None:
    """Tickets of a colleague's script, which has its own words in that field."""
    for number in range(count):
        ticket = {"title": f"a bulb {number}", "reference": f"INC-{number} by the other team"}
        floor.sandbox.plant(floor.account, "tickets.create", ticket)


def _lost(floor: RecipeFloor, fault: str, *, again: bool = True) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, times=1)
    intent_id = floor.ask(_tool(again=again), **LEAK)
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


def _until_asked(floor: RecipeFloor, intent_id: UUID) -> None:
    passed = 0.0
    while passed < 5 * HOUR and floor.status(intent_id) == "unknown":
        passed += floor.jump(intent_id)
        floor.round()


@pytest.mark.parametrize("again", [False, True])
def test_other_peoples_objects_are_never_proof_that_ours_is_not_there(
    shared: RecipeFloor, again: bool
) -> None:
    """One of them may be ours in a spelling that nobody knows: nothing is sent again for it."""
    _of_others(shared)
    intent_id = _lost(shared, "lost_request", again=again)
    _until_asked(shared, intent_id)
    row = shared.row(intent_id)
    assert (row["status"], row["absent_looks"], row["absent_first_at"]) == ("unknown", 0, None)
    assert row["looks"] > 3
    assert (len(shared.posts()), shared.effects(intent_id)) == (1, 0)


def test_such_a_doubt_ends_in_one_question_that_says_why(shared: RecipeFloor) -> None:
    _of_others(shared)
    intent_id = _lost(shared, "lost_request")
    _until_asked(shared, intent_id)
    (question,) = shared.escalations()
    assert (question["intent_id"], question["reasons"]) == (intent_id, ["ttl"])
    assert question["detail"]["why"] == (
        f"outcome not seen; what the vendor showed could not be read: {NO_MARK}"
    )
    assert [page["action"] for page in shared.pages()] == ["trigger"]
    shown = ask(shared.directory, read_case(shared.store, str(intent_id)))
    assert (shown.answer, shown.said) == ("unreadable", NO_MARK)
    noted = shared.sql("SELECT reason FROM outbox.events WHERE kind = 'look_unreadable'")
    assert noted == [{"reason": NO_MARK}], "the same reason of many looks is kept once"


def test_what_landed_among_them_is_found_by_its_mark_and_nobody_is_asked(
    shared: RecipeFloor,
) -> None:
    """Ours is on the last page, behind those that cannot be told."""
    found, lost = _lost(shared, "lost_ack"), _lost(shared, "lost_request")
    _of_others(shared)
    shared.until_due(found)
    assert (shared.status(found), shared.status(lost)) == ("succeeded", "unknown")
    assert shared.escalations() == shared.pages() == []
    _until_asked(shared, lost)
    assert [e["intent_id"] for e in shared.escalations()] == [lost]
    assert (len(shared.posts()), shared.effects(found), shared.effects(lost)) == (2, 1, 0)


def test_at_an_account_of_our_own_the_same_list_finds_and_proves(shared: RecipeFloor) -> None:
    found = _lost(shared, "lost_ack")
    shared.until_due(found)
    assert shared.status(found) == "succeeded"


def test_a_list_that_lags_for_longer_than_it_says_is_no_proof_and_is_read_again(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    """B17: twenty minutes behind in an outage, where it says one; the tool allows no second send
    on absence, so what nobody saw is asked about, and then it is seen."""
    with open_recipe_floor(database, sandbox, "tickets", tmp_path) as floor:
        sandbox.set_account(floor.account, list_lag_s=1200)
        intent_id = _lost(floor, "lost_ack", again=False)
        for age_s in (5, 30, 90, 600, 1100):
            floor.until(age_s, intent_id)
            floor.round()
            assert floor.status(intent_id) == "unknown"
        assert floor.row(intent_id)["absent_looks"] >= 2
        floor.until(1300, intent_id)
        while floor.status(intent_id) == "unknown":
            floor.until_due(intent_id)
        assert floor.status(intent_id) == "succeeded"
        assert (len(floor.posts()), floor.effects(intent_id)) == (1, 1)


def test_a_question_about_what_was_looked_for_in_vain_says_that_this_is_no_proof(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    """B17: the list shows nothing for days; before quiescence a look proves nothing anyway."""
    changes = {"consistent = true": "consistent = false"}
    with open_recipe_floor(database, sandbox, "tickets", tmp_path, changes=changes) as floor:
        intent_id = _lost(floor, "lost_request", again=False)
        _until_asked(floor, intent_id)
        (question,) = floor.escalations()
        assert question["reasons"] == ["ttl"]
        assert "finding nothing proves nothing" in question["detail"]["why"]
        assert len(floor.posts()) == 1

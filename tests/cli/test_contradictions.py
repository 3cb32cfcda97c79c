"""A contradiction is shown with what contradicts: in the page, and where a person looks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox.outcomes import Receipt
from outbox.store import intents, records
from resolvers.evidence import apply_reading
from tests.cli.desk import Desk


def by_a_look(desk: Desk, intent_id: UUID) -> None:
    desk.run("resolve", "--once")


def by_the_answer(desk: Desk, intent_id: UUID) -> None:
    row = desk.row(intent_id)
    outcome = desk.perform(row)
    assert isinstance(outcome, Receipt)
    ended = records.Ended(row, outcome, row.last_sent_at, contradicts="another_amount")
    with desk.store.transaction() as tx:
        records.record(tx, [ended])


def by_an_event(desk: Desk, intent_id: UUID) -> None:
    outcome = desk.perform(desk.row(intent_id))
    assert isinstance(outcome, Receipt)
    with desk.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        assert row is not None
        apply_reading(tx, row, outcome.reading, actor="webhook", source="webhook")


@pytest.fixture
def pages(desk: Desk, tmp_path: Path) -> Path:
    """Where this desk's pages go."""
    file = tmp_path / "pages.jsonl"
    desk.env["OUTBOX_PAGERS"] = f"file:{file}"
    return file


@pytest.mark.parametrize("way", [by_a_look, by_the_answer, by_an_event])
def test_another_amount_is_told_with_the_amount_that_was_found(
    desk: Desk, pages: Path, way: Callable[[Desk, UUID], None]
) -> None:
    if way is by_the_answer:
        intent_id = desk.enqueue()
        desk.claim()
    else:
        intent_id, _ = desk.lost(landed=True)
    desk.sql("UPDATE outbox.intents SET amount_minor = 9900")
    way(desk, intent_id)
    (effect,) = desk.sandbox.effects(desk.vendor_account)
    found = f"{effect['object_id']}: 1200 usd, succeeded, test"
    shown = desk.invoke("escalation", "show", str(intent_id)).out
    assert f"found\t{found}" in shown
    assert "amount\t9900 usd (minor units)" in shown
    told = desk.invoke("escalation", "show", str(intent_id), "--json").json
    assert told["found"] == found
    (seen,) = told["detail"]["found"]
    assert (seen["amount_minor"], seen["currency"], seen["mode"]) == (1200, "usd", "test")
    page = paged(desk, pages)
    assert page["details"]["found"] == found
    assert f"found {found}, asked for 9900 usd (minor units)" in page["summary"]


def test_two_objects_are_both_told_with_what_they_are(desk: Desk, pages: Path) -> None:
    intent_id, first = desk.lost(landed=True)
    second = desk.sandbox.plant(
        desk.vendor_account,
        "payment_intents.create",
        {
            "amount": "1200",
            "currency": "eur",
            "confirm": "true",
            "payment_method": "pm_card_visa",
            "metadata": {"outbox_id": str(intent_id)},
        },
    )["id"]
    desk.run("resolve", "--once")
    words = desk.invoke("escalation", "show", str(intent_id), "--json").json["found"]
    assert f"{first}: 1200 usd" in words
    assert f"{second}: 1200 eur" in words
    assert paged(desk, pages)["details"]["found"] == words


def paged(desk: Desk, pages: Path) -> dict[str, Any]:
    desk.run("resolve", "--once")
    (line,) = pages.read_text().splitlines()
    page: dict[str, Any] = json.loads(line)
    return page

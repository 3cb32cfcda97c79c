"""A vendor that hangs holds its share of the look-up threads, and no other vendor waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from outbox import WriteTool
from tests.vendors.recipe_floor import RecipeFloor, open_recipe_floor
from tests.workers.floor import CHARGE, FAST, READS, wait_until
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    """Stripe and a vendor that a recipe describes."""
    with open_recipe_floor(database, sandbox, "tickets", tmp_path, FAST) as opened:
        assert {vendor for vendor, _ in opened.directory.accounts} == {"stripe", "tickets"}
        yield opened


def _lost_tickets(floor: RecipeFloor, count: int) -> list[UUID]:
    floor.sandbox.fault("lost_ack", account=floor.account, endpoint="POST /json/*", times=count)
    ticket = WriteTool(
        "open_ticket",
        vendor="tickets",
        operation="tickets.create",
        identity=("case",),
        request=lambda args: {"title": f"case {args['case']}"},
    )
    ids = [floor.ask(ticket, case=str(n)) for n in range(count)]
    floor.drain()
    return ids


def test_a_vendor_whose_reads_hang_keeps_nobody_elses_rows_in_doubt(floor: RecipeFloor) -> None:
    tickets = _lost_tickets(floor, 20)
    floor.sandbox.fault("lost_request", account=floor.account, endpoint="POST /v1/*", attempts=[1])
    charges = floor.enqueue(40, tool=CHARGE)
    floor.drain()
    assert floor.statuses() == {"unknown": 60}
    # No list shows these for all: each look is one thread's.
    floor.sql(
        "UPDATE outbox.intents SET veto = 'stored_500', due_at = due_at - INTERVAL '1 min' "
        "WHERE vendor = 'stripe'"
    )
    floor.sandbox.fault("hang", account=floor.account, endpoint=READS)
    floor.advance(1)
    floor.looker.tick(0.2)
    held = floor.sql(
        "SELECT id FROM outbox.intents WHERE vendor = 'stripe' AND resolver_token IS NOT NULL "
        "AND looks = 0"
    )
    assert len(held) <= 8, "more than its share of the sixteen"

    def settled() -> bool:
        floor.looker.tick(0.1)
        return {floor.status(i) for i in tickets} == {"succeeded"}

    wait_until(settled)
    assert {floor.status(i) for i in charges} == {"unknown"}
    floor.sandbox.clear_faults(floor.account)
    floor.sql("UPDATE outbox.intents SET veto = NULL WHERE vendor = 'stripe'")
    floor.settle()

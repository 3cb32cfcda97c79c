"""Rows that can never be sent: each is its own trouble, and no other row waits for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox import Scope, WriteTool
from tests.privacy.rings import NEW
from tests.statements import fetched
from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox
from workers.testing import OutboxBox, new_account

SEND = WriteTool("send_receipt", vendor="smtp", operation="messages.send", identity=("order", "to"))
TTL_S = 15 * 60
_orders = itertools.count()


@pytest.fixture
def mailer() -> str:
    return new_account()


@pytest.fixture
def outbox_env(mailer: str, outbox_sandbox: Sandbox, tmp_path: Path) -> Mapping[str, str]:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(
        f'[smtp.default]\nmode = "test"\ncredential = "{mailer}:any"\n'
        f'base_url = "{outbox_sandbox.smtp_url}"\n'
    )
    return {"OUTBOX_ACCOUNTS": str(accounts)}


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, PRODUCTION, OUTBOX_CODEC_KEYS=NEW) as opened:
        yield opened
        sandbox.accept_connections(True)


def mails(box: OutboxBox, count: int, *, tenant: str, to: str = "ann@example.org") -> None:
    with psycopg.connect(box.database_url.replace("+psycopg", "")) as connection:
        for _ in range(count):
            args: dict[str, Any] = {"from": "shop@example.com", "subject": "Your order"}
            args |= {"text": "It is on its way.", "order": str(next(_orders)), "to": to}
            box.outbox.enqueue(connection, SEND, Scope(tenant=tenant, run_id="run"), args)


def ledger(box: OutboxBox, statement: str) -> list[Any]:
    with psycopg.connect(box.database_url.replace("+psycopg", "")) as connection:
        return fetched(connection.execute(statement))


def swap_requests(floor: Floor, rows: list[UUID]) -> None:
    """Each row gets the sealed request of the next, as a careless restore would leave them."""
    kept = {row: floor.row(row)["request"] for row in rows}
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        floor.sql(
            "UPDATE outbox.intents SET request = %(request)s WHERE id = %(id)s",
            {"id": row, "request": kept[other]},
        )


def due_now(floor: Floor) -> None:
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'pending'")


def test_mails_that_cannot_be_composed_hold_up_nobody_elses(
    outbox_box: OutboxBox, mailer: str
) -> None:
    """As an earlier release recorded them; they are refused today."""
    mails(outbox_box, 12, tenant="evil", to="eve@example.net")
    ledger(
        outbox_box,
        "UPDATE outbox.intents SET request = replace(request, 'eve@example.net', 'eve@é.net')",
    )
    outbox_box.drain()
    mails(outbox_box, 20, tenant="good")
    outbox_box.drain()
    assert len(outbox_box.sandbox.effects(mailer)) == 20
    assert ledger(outbox_box, "SELECT kind FROM outbox.switches") == []
    told = "SELECT DISTINCT tenant, status FROM outbox.intents ORDER BY tenant"
    assert ledger(outbox_box, told) == [("evil", "pending"), ("good", "succeeded")]


def test_each_mail_that_cannot_be_composed_asks_for_itself_at_its_ttl(
    outbox_box: OutboxBox, mailer: str
) -> None:
    mails(outbox_box, 2, tenant="evil", to="eve@example.net")
    ledger(
        outbox_box,
        "UPDATE outbox.intents SET request = replace(request, 'eve@example.net', 'eve@é.net')",
    )
    outbox_box.drain()
    outbox_box.travel(TTL_S + 60)
    outbox_box.drain()
    outbox_box.resolve()
    asked = {question["intent_id"] for question in outbox_box.escalations()}
    assert asked == {row for (row,) in ledger(outbox_box, "SELECT id FROM outbox.intents")}
    assert outbox_box.sandbox.requests(mailer) == []


def test_swapped_sealed_requests_do_not_trip_the_breaker(floor: Floor) -> None:
    swapped = floor.enqueue(12)
    swap_requests(floor, swapped)
    good = floor.enqueue(20)
    floor.drain()
    floor.drain()
    assert {floor.status(row) for row in good} == {"succeeded"}
    assert {floor.status(row) for row in swapped} == {"pending"}
    assert floor.sql("SELECT kind FROM outbox.switches") == []
    assert len(floor.posts()) == 20


def test_a_request_that_is_no_request_any_more_is_not_in_doubt(floor: Floor) -> None:
    row = floor.one()
    floor.sql("UPDATE outbox.intents SET request = '[]', request_codec = 'plain'")
    floor.drain()
    assert floor.outcomes(row) == ["not_sent"]
    assert floor.status(row) == "pending"
    assert floor.posts() == []


def test_a_probe_that_a_bad_row_took_is_given_to_the_next_row(floor: Floor) -> None:
    floor.sandbox.accept_connections(False)
    good = floor.enqueue(12)
    floor.drain()
    assert floor.sql("SELECT kind FROM outbox.switches") == [{"kind": "breaker"}]
    bad = floor.enqueue(3)
    swap_requests(floor, bad)
    floor.sandbox.accept_connections(True)
    floor.advance(16)
    due_now(floor)
    floor.sql(
        "UPDATE outbox.intents SET due_at = due_at - INTERVAL '1 second' WHERE id = ANY(%(ids)s)",
        {"ids": bad},
    )
    floor.drain()
    assert floor.sql("SELECT kind FROM outbox.switches") == []
    assert {floor.status(row) for row in good} == {"succeeded"}
    assert [floor.outcomes(row) for row in bad] == [["not_sent"]] * 3


def test_bad_rows_do_not_hide_an_outage(floor: Floor) -> None:
    floor.sandbox.accept_connections(False)
    swap_requests(floor, floor.enqueue(15))
    floor.enqueue(10)
    floor.drain()
    assert floor.sql("SELECT kind FROM outbox.switches") == [{"kind": "breaker"}]
    floor.advance(16)
    due_now(floor)
    floor.drain()
    # The bad ones said nothing; the good one that was asked then found the vendor still away.
    assert floor.sql("SELECT probe_after_s FROM outbox.switches") == [{"probe_after_s": 30.0}]

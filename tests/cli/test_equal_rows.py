"""Verdicts on writes that look alike, and on one that two hands reach for."""

from __future__ import annotations

from uuid import UUID

import psycopg

from outbox import Outbox, Scope
from outbox.outcomes import Lost
from tests.cli.desk import CHARGE, Desk
from tests.cli.ran import ended

ARGS = {"invoice_id": "in_equal", "amount": 1200, "currency": "usd"}


def _equal(desk: Desk, count: int = 2) -> list[UUID]:
    """Intended repeats of one write, all in doubt: nothing but their occurrence differs."""
    made = []
    with psycopg.connect(desk.settings.database_url.replace("+psycopg", "")) as connection:
        for number in range(count):
            scope = Scope(tenant="acme", run_id="run-1")
            answer = Outbox(desk.settings).enqueue(
                connection, CHARGE, scope, ARGS, occurrence=number
            )
            made.append(answer.intent_id)
    for row in desk.claim():
        desk.record(row, Lost("no reply"))
    return made


def test_a_verdict_on_one_of_two_equal_writes_moves_that_one_alone(desk: Desk) -> None:
    """B12 (d): what a person allows is one row's, by its id, and is used once."""
    one, other = _equal(desk)
    ran = desk.invoke("escalation", "resend", str(one), "--reason", "lost", "--yes", "--json")
    assert ran.code == 0
    assert [desk.row(row).status for row in (one, other)] == ["retryable", "unknown"]
    assert desk.events(other, "resend_approved") == []
    (claimed,) = desk.claim()
    assert claimed.id == one
    desk.record(claimed, Lost("no reply, again"))
    # It was used: what is in doubt again needs another word.
    assert desk.row(one).status == "unknown"
    assert desk.claim() == []
    assert len(desk.events(one, "resend_approved")) == 1


def test_a_double_click_sends_once(desk: Desk) -> None:
    """B12 (c): the same verdict twice at once, and again while its send is on the wire."""
    (one,) = _equal(desk, 1)
    verb = ("escalation", "resend", str(one), "--reason", "lost", "--yes", "--json")
    processes = [desk.start(*verb) for _ in range(2)]
    ran = [ended(process) for process in processes]
    # The second one finds it done, or decided while it was looking.
    assert [r.json["changed"] for r in ran if r.code == 0].count(True) == 1
    assert {r.code for r in ran} <= {0, 4}
    (claimed,) = desk.claim()
    late = desk.invoke(*verb)
    assert late.code == 4, "it is in flight: nothing may be approved"
    desk.record(claimed, desk.perform(claimed))
    assert desk.row(one).status == "succeeded"
    posts = [r for r in desk.sandbox.requests(desk.vendor_account) if r["method"] == "POST"]
    assert len(posts) == 1
    assert len(desk.sandbox.effects(desk.vendor_account)) == 1

"""A vendor that honours no key: only absence that is confirmed twice allows another send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from outbox import WriteTool
from outbox.contract import VendorContract
from outbox.contracts import CONTRACTS
from tests.workers.floor import CARD, CHARGE, PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox

AGAIN = replace(CHARGE, name="charge_again_when_absent", resend_when_absent=True)


@pytest.fixture
def floor(database: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Floor]:
    """The sandbox forgets every key, and the contract says so."""
    contract = replace(CONTRACTS["stripe"], honours_keys=False, window_s=None, read_lag_s=60.0)
    monkeypatch.setitem(cast(dict[str, VendorContract], CONTRACTS), "stripe", contract)
    with open_floor(database, sandbox, PRODUCTION) as opened:
        sandbox.set_account(opened.account, honours_keys=False)
        yield opened


def _lost(floor: Floor, fault: str, tool: WriteTool) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, times=1)
    intent_id = floor.one(tool=tool)
    floor.drain()
    assert floor.row(intent_id)["window_ends_at"] is None
    assert floor.status(intent_id) == "unknown"
    return intent_id


def _round(floor: Floor) -> None:
    floor.expire()
    floor.look()
    floor.drain()


def test_absence_is_not_counted_before_quiescence_and_needs_two_looks_after_it(
    floor: Floor,
) -> None:
    """Quiescence is the end of the lease, the in-flight bound and the read lag: 60 + 120 + 60 s."""
    intent_id = _lost(floor, "lost_request", AGAIN)
    for after_s in (6, 120, 235):
        floor.until(after_s, intent_id)
        floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'unknown'")
        _round(floor)
        assert floor.row(intent_id)["absent_first_at"] is None
    floor.until(245, intent_id)
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'unknown'")
    _round(floor)
    assert floor.row(intent_id)["absent_first_at"] is not None
    floor.advance(30)
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'unknown'")
    _round(floor)
    assert len(floor.posts()) == 1, "the second look came sooner than a read lag"
    floor.advance(61)
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock() WHERE status = 'unknown'")
    _round(floor)
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.posts()) == 2
    assert floor.effects(intent_id) == 1


def test_a_tool_that_does_not_allow_it_is_never_sent_again(floor: Floor) -> None:
    intent_id = _lost(floor, "lost_request", CHARGE)
    for _ in range(12):
        floor.jump(intent_id)
        _round(floor)
        floor.escalate()
    assert floor.status(intent_id) == "unknown"
    assert len(floor.posts()) == 1
    assert [e["reasons"] for e in floor.escalations()] == [["ttl"]]


def test_what_landed_late_inside_the_bound_is_found_and_not_repeated(floor: Floor) -> None:
    floor.sandbox.fault("late_commit", account=floor.account, times=1, after_s=3600)
    intent_id = floor.one(tool=AGAIN)
    floor.drain()
    floor.until(100, intent_id)
    floor.look()
    floor.sandbox.release(floor.account)
    floor.until(300, intent_id)
    _round(floor)
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.posts()) == 1


def test_a_success_is_verified_once_after_quiescence(floor: Floor) -> None:
    intent_id = floor.one(tool=AGAIN)
    floor.drain()
    assert floor.status(intent_id) == "succeeded"
    floor.until(230, intent_id)
    assert floor.look() == 0
    floor.until(245, intent_id)
    assert floor.look() == 1
    floor.advance(3600)
    assert floor.look() == 0
    assert floor.escalations() == []


def test_a_second_object_that_the_verifying_look_finds_is_for_a_person(floor: Floor) -> None:
    intent_id = floor.one(tool=AGAIN)
    floor.drain()
    row = floor.row(intent_id)
    marks = {"outbox_id": str(intent_id), "outbox_key": bytes(row["key"]).hex()}
    floor.sandbox.plant(floor.account, "payment_intents.create", {**CARD, "metadata": marks})
    floor.until(245, intent_id)
    floor.look()
    row = floor.row(intent_id)
    assert (row["status"], row["contradicted_at"] is not None) == ("succeeded", True)
    assert [e["reasons"] for e in floor.escalations()] == [["duplicate"]]

"""Events that come while a look is being made, before any, and of two of our intents at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from outbox import WriteTool
from outbox.contract import Call, Vendor
from outbox.outcomes import LookUp
from tests.resolvers.hooks import Hooks
from tests.workers.doubles import Stalled
from tests.workers.floor import CARD, PRODUCTION, WAIT_S, Floor, open_floor
from vendors.sandbox.client import Sandbox

REFUND = WriteTool(
    "refund_invoice",
    vendor="stripe",
    operation="refunds.create",
    side_effect="refund",
    identity=("invoice_id",),
    guard=("amount", "payment_intent"),
    request=lambda args: {"amount": args["amount"], "payment_intent": args["payment_intent"]},
)
CAPTURE = WriteTool(
    "capture",
    vendor="stripe",
    operation="payment_intents.capture",
    side_effect="charge",
    identity=("payment_intent",),
    guard=("amount",),
    request=lambda args: {"payment_intent": args["payment_intent"]},
)


class HeldRead(Stalled):
    """Holds what the first read of an armed adapter saw until it is let go."""

    def __init__(self, vendor: Vendor) -> None:
        super().__init__(vendor)
        self.armed, self.came, self.go = False, threading.Event(), threading.Event()

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        return self._held(super().retrieve(call, receipt_id))

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        return self._held(super().look_up(call, since_epoch_s, until_epoch_s))

    def _held(self, seen: LookUp) -> LookUp:
        if self.armed and not self.came.is_set():
            self.came.set()
            assert self.go.wait(WAIT_S), "nobody let it go"
        return seen


def _business(floor: Floor, intent_id: UUID) -> tuple[str, str]:
    row = floor.row(intent_id)
    return row["status"], row["business_status"]


def _round(floor: Floor, hooks: Hooks) -> None:
    floor.advance(2)
    hooks()
    floor.look()


def test_a_refund_by_another_intent_of_ours_reaches_the_charge(floor: Floor) -> None:
    hooks = Hooks(floor)
    charge = floor.one()
    floor.drain()
    _round(floor, hooks)
    assert _business(floor, charge) == ("succeeded", "paid")
    refund = floor.one(tool=REFUND, payment_intent=floor.row(charge)["receipt_id"])
    floor.drain()
    _round(floor, hooks)
    assert floor.status(refund) == "succeeded"
    assert _business(floor, charge) == ("succeeded", "reversed")
    assert floor.escalations() == []


def test_a_capture_by_another_intent_of_ours_reaches_the_charge(floor: Floor) -> None:
    hooks = Hooks(floor)
    charge = floor.one(capture_method="manual")
    floor.drain()
    _round(floor, hooks)
    assert _business(floor, charge) == ("succeeded", "pending")
    capture = floor.one(tool=CAPTURE, payment_intent=floor.row(charge)["receipt_id"])
    floor.drain()
    _round(floor, hooks)
    assert _business(floor, capture) == ("succeeded", "paid")
    assert _business(floor, charge) == ("succeeded", "paid")
    assert floor.escalations() == []


@contextmanager
def _held_floor(database: str, sandbox: Sandbox) -> Iterator[tuple[Floor, HeldRead, Hooks]]:
    built: list[HeldRead] = []

    def wrap(vendor: Vendor) -> Vendor:
        built.append(HeldRead(vendor))
        return built[0]

    with open_floor(database, sandbox, PRODUCTION, vendor=wrap) as floor:
        yield floor, built[0], Hooks(floor)


def _while_reading(floor: Floor, held: HeldRead, happens: Callable[[], None]) -> None:
    """What is due is read; before that is written, something happens."""
    held.armed = True
    look = threading.Thread(target=floor.look)
    look.start()
    assert held.came.wait(WAIT_S)
    happens()
    held.go.set()
    look.join()


@pytest.mark.parametrize("known_at", [0, 9_000_000_000], ids=["plainly newer", "not newer"])
def test_an_event_that_comes_while_its_object_is_being_read_is_not_forgotten(
    database: str, sandbox: Sandbox, known_at: int
) -> None:
    """Whether the event itself is applied, or only asks for one more read."""
    with _held_floor(database, sandbox) as (floor, held, hooks):
        sandbox.fault("status:processing", account=floor.account)
        intent_id = floor.one()
        floor.drain()
        _round(floor, hooks)
        object_id = floor.row(intent_id)["receipt_id"]
        floor.sql(
            "UPDATE outbox.intents SET verify_at = outbox.clock(), business_vendor_time = %(at)s",
            {"at": known_at},
        )

        def paid() -> None:
            sandbox.move(object_id, "succeeded")
            hooks()

        _while_reading(floor, held, paid)
        floor.look()
        assert _business(floor, intent_id) == ("succeeded", "paid")
        assert floor.row(intent_id)["verify_at"] is None
        told = floor.sql("SELECT business_word AS word FROM outbox.settlements ORDER BY id")
        assert [t["word"] for t in told] == ["processing", "succeeded"], "and never back"


def test_an_event_that_comes_while_a_doubt_is_looked_up_is_looked_at_at_once(
    database: str, sandbox: Sandbox
) -> None:
    with _held_floor(database, sandbox) as (floor, held, hooks):
        sandbox.fault("late_commit", account=floor.account, attempts=[1], after_s=3600)
        intent_id = floor.one(payment_method="pm_card_chargeDeclined")
        floor.drain()
        floor.advance(6)

        def declined() -> None:
            sandbox.release(floor.account)
            hooks()

        _while_reading(floor, held, declined)
        floor.look()
        assert floor.status(intent_id) == "failed_poison"


def test_an_event_older_than_a_read_that_showed_nothing_new_is_not_taken_for_newer(
    floor: Floor,
) -> None:
    """It was so before the read, and the read showed what it was again by then."""
    hooks = Hooks(floor)
    floor.sandbox.fault("status:processing", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    object_id = floor.row(intent_id)["receipt_id"]
    for status in ("requires_action", "processing"):
        floor.advance(10)
        floor.sandbox.move(object_id, status)
    floor.advance(10)
    floor.sql("UPDATE outbox.intents SET verify_at = outbox.clock()")
    floor.look()
    hooks()
    for _ in range(2):
        floor.look()
    told = floor.sql("SELECT business_word AS word FROM outbox.settlements ORDER BY id")
    assert [t["word"] for t in told] == ["processing"]


def test_an_event_of_a_write_whose_only_answer_was_a_429_settles_it_plainly(
    database: str, sandbox: Sandbox
) -> None:
    """The network delivered the refused request once more, and that copy was executed."""
    with open_floor(database, sandbox, PRODUCTION) as floor:
        hooks = Hooks(floor)
        for fault in ("redelivery", "rate_limited_429"):
            sandbox.fault(fault, account=floor.account, attempts=[1], times=1, after_s=30)
        intent_id = floor.one()
        floor.drain()
        assert (floor.status(intent_id), floor.effects(intent_id)) == ("pending", 1)
        hooks()
        assert _business(floor, intent_id) == ("succeeded", "paid")
        assert (floor.escalations(), len(floor.posts(intent_id))) == ([], 1)


def test_an_event_of_a_write_that_was_never_tried_is_a_contradiction(
    database: str, sandbox: Sandbox
) -> None:
    with open_floor(database, sandbox, PRODUCTION) as floor:
        hooks = Hooks(floor)
        intent_id = floor.one()
        marks = {
            "outbox_id": str(intent_id),
            "outbox_key": bytes(floor.row(intent_id)["key"]).hex(),
        }
        sandbox.plant(floor.account, "payment_intents.create", {**CARD, "metadata": marks})
        hooks()
        assert floor.status(intent_id) == "succeeded"
        assert [e["reasons"] for e in floor.escalations()] == [["contradiction"]]

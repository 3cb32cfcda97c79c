"""A vendor or an account whose answers are slow holds up its own rows and nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from outbox.contract import Call, Vendor
from outbox.doorbell import Doorbell
from tests.workers.doubles import Stalled
from tests.workers.floor import PRODUCTION, WAIT_S, Floor, open_floor, wait_until
from vendors.sandbox.client import Sandbox

PLACES = 4


@dataclass
class Slow:
    """The calls of the account "default" stay in the air until they may go."""

    go: threading.Event = field(default_factory=threading.Event)
    came: list[UUID] = field(default_factory=list)

    def wrap(self, vendor: Vendor) -> Vendor:
        return Stalled(vendor, before=self._hold)

    def _hold(self, call: Call) -> None:
        if call.account.name == "default":
            self.came.append(call.intent_id)
            assert self.go.wait(60), "nobody let it go"


class Clock:
    """The sender's own clock, which may be ahead. It is asked in each round of a drain."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return time.monotonic() + self.ahead_s


@dataclass
class Scene:
    floor: Floor
    slow: Slow
    clock: Clock
    rung: list[Doorbell] = field(default_factory=list)

    def sent(self, intent_ids: list[UUID]) -> bool:
        return all(self.floor.status(i) == "succeeded" for i in intent_ids)

    def pass_by(self, seconds: float) -> None:
        """So much time passes, and the drain has had rounds enough to see it."""
        self.clock.ahead_s += seconds
        self.have_rounds()

    def have_rounds(self) -> None:
        """The drain goes round a few times more."""
        enough = self.clock.asked + 10
        wait_until(lambda: self.clock.asked > enough)


@pytest.fixture
def scene(database: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    slow, clock, rung = Slow(), Clock(), list[Doorbell]()

    def ring(bell: Doorbell) -> None:
        rung.append(bell)

    monkeypatch.setattr(Doorbell, "ring", ring)
    monkeypatch.setattr("workers.sender.time", SimpleNamespace(monotonic=clock.monotonic))
    with open_floor(
        database, sandbox, PRODUCTION, vendor=slow.wrap,
        OUTBOX_THREADS=str(PLACES), OUTBOX_BATCH=str(PLACES),
    ) as floor:  # fmt: skip
        own = floor.directory.account("stripe", "default")
        assert own is not None
        floor.directory.learn("stripe", replace(own, name="other"))
        yield Scene(floor, slow, clock, rung)


@contextmanager
def draining(scene: Scene) -> Iterator[threading.Thread]:
    """A drain that ends with the block, when the slow calls may go."""
    thread = scene.floor.drain_beside()
    try:
        yield thread
    finally:
        scene.slow.go.set()
        thread.join()


def test_an_account_whose_calls_hold_all_places_does_not_hold_up_another(scene: Scene) -> None:
    slow = scene.floor.enqueue(3 * PLACES)
    with draining(scene):
        wait_until(lambda: len(scene.slow.came) == PLACES)
        others = scene.floor.enqueue(2 * PLACES, account="other")
        wait_until(lambda: scene.sent(others))
        # Its own rows wait for its own calls, and have no attempt.
        assert len(scene.slow.came) == PLACES
        waiting = [row for i in slow if (row := scene.floor.row(i))["status"] == "pending"]
        assert [row["attempts"] for row in waiting] == [0] * (2 * PLACES)
    assert scene.floor.statuses() == {"succeeded": 5 * PLACES}
    assert all(scene.floor.effects(i) == 1 for i in slow)


def test_a_drain_that_is_asked_for_while_it_waits_for_calls_claims_at_once(
    database: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doorbell rang in a process whose drain was waiting for its next tick."""
    slow, emptied = Slow(), threading.Event()

    def answer(_: Doorbell) -> bool:
        emptied.set()
        return False

    monkeypatch.setattr(Doorbell, "answer", answer)
    with open_floor(
        database, sandbox, PRODUCTION, vendor=slow.wrap, OUTBOX_TICK_DRAIN_S=str(2 * WAIT_S)
    ) as floor:
        floor.one()
        thread = floor.drain_beside()
        assert emptied.wait(WAIT_S)
        floor.one()
        try:
            assert floor.sender.drain() == 0
            wait_until(lambda: len(slow.came) == 2)
        finally:
            slow.go.set()
            thread.join()
        assert floor.statuses() == {"succeeded": 2}


def test_one_drain_sends_all_of_a_slow_account_as_its_calls_end(scene: Scene) -> None:
    scene.floor.enqueue(3 * PLACES)
    with draining(scene):
        wait_until(lambda: len(scene.slow.came) == PLACES)
        scene.pass_by(1.0)
    assert scene.floor.statuses() == {"succeeded": 3 * PLACES}


def test_a_drain_whose_budget_is_spent_sends_for_others_while_it_waits_for_slow_calls(
    scene: Scene,
) -> None:
    scene.floor.enqueue(PLACES - 2)
    with draining(scene):
        wait_until(lambda: len(scene.slow.came) == PLACES - 2)
        scene.pass_by(WAIT_S)
        (more,) = scene.floor.enqueue(1)
        others = scene.floor.enqueue(PLACES, account="other")
        wait_until(lambda: scene.sent(others))
        # Whoever is waited for is the next drain's.
        assert len(scene.slow.came) == PLACES - 2
    assert scene.floor.row(more)["attempts"] == 0
    assert len(scene.rung) == 1


def test_a_drain_whose_budget_is_long_spent_claims_for_nobody(scene: Scene) -> None:
    scene.floor.enqueue(PLACES)
    with draining(scene):
        wait_until(lambda: len(scene.slow.came) == PLACES)
        scene.pass_by(WAIT_S + scene.floor.settings.policy.call_deadline_s)
        others = scene.floor.enqueue(PLACES, account="other")
        scene.have_rounds()
    assert [scene.floor.row(i)["attempts"] for i in others] == [0] * PLACES

"""The bell is taken down before the claim that ends a drain: who commits later rings it again."""

from __future__ import annotations

from outbox.doorbell import Doorbell
from tests.workers.floor import Floor
from workers.sender import Sender


class _Bell(Doorbell):
    """It is up, and a row is committed in the very moment in which it is taken down."""

    def __init__(self, floor: Floor) -> None:
        super().__init__("", timeout_s=0.1)
        self._floor = floor
        self.answered = 0

    def answer(self) -> bool:
        self.answered += 1
        if self.answered == 1:
            self._floor.one()
        return self.answered == 1


def test_a_row_that_is_committed_while_the_bell_is_taken_down_is_sent_by_the_same_drain(
    floor: Floor,
) -> None:
    bell = _Bell(floor)
    assert _sender(floor, bell).drain(budget_s=30.0) == 1
    assert [row["status"] for row in floor.statements("SELECT status FROM outbox.intents")] == [
        "succeeded"
    ]


class _Counting(Doorbell):
    def __init__(self) -> None:
        super().__init__("", timeout_s=0.1)
        self.rung = self.answered = self.called = 0

    def ring(self) -> bool:
        self.rung += 1
        return True

    def call(self) -> bool:
        self.called += 1
        return True

    def answer(self) -> bool:
        self.answered += 1
        return False


def test_a_drain_that_only_helps_leaves_a_trickle_to_the_other_one(floor: Floor) -> None:
    bell = _Counting()
    sender = _sender(floor, bell)
    floor.enqueue(64)
    assert sender.drain(budget_s=30.0) == 64
    assert (bell.answered, bell.rung) == (1, 0)
    floor.enqueue(3)
    # It ends on a claim of a few rows, and not on an empty one.
    assert sender.drain(budget_s=30.0, helps=True) == 3
    assert (bell.answered, bell.rung) == (1, 1)
    assert floor.statuses() == {"succeeded": 67}


def test_a_drain_that_finds_more_than_a_batch_calls_another_one_once(floor: Floor) -> None:
    """Which would come at its next tick else."""
    bell = _Counting()
    sender, batch = _sender(floor, bell), floor.settings.policy.batch
    floor.enqueue(batch - 1)
    assert (sender.drain(budget_s=30.0), bell.called) == (batch - 1, 0)
    floor.enqueue(3 * batch)
    assert (sender.drain(budget_s=30.0), bell.called) == (3 * batch, 1)


def _sender(floor: Floor, bell: Doorbell) -> Sender:
    sender = Sender(
        floor.store,
        floor.directory,
        bell,
        owner="sender",
        stopping=floor.told_to_stop.is_set,
        jitter=lambda: 0.5,
    )
    floor.senders.append(sender)
    return sender

"""Deploys under load: agents go on enqueuing while every worker is replaced, by the same release
and by the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from tests.adoption.test_rollout import HERE, Rollout, previous, rollout
from tests.drills.works import Works, open_works
from tests.workers.floor import wait_until

__all__ = ["previous", "rollout"]  # fixtures
pytestmark = pytest.mark.heavy

_DEPLOYS = 2


@contextmanager
def _load(enqueue: Callable[[int], list[UUID]], ids: list[UUID]) -> Iterator[None]:
    """An agent that enqueues again and again, however fast it can, until the block ends."""
    ended = threading.Event()

    def go_on() -> None:
        number = 0
        while not ended.wait(0.1):
            ids.extend(enqueue(number))
            number += 1

    agent = threading.Thread(target=go_on)
    agent.start()
    try:
        yield
    finally:
        ended.set()
        agent.join()


@pytest.fixture
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "worker", "beat") as opened:
        yield opened


def test_rolling_deploys_under_load_send_each_write_once_and_leave_nobody_in_doubt(
    works: Works,
) -> None:
    """The new one runs before the old one is told to end, and so on: what is in the air when a
    worker is told finishes, so that not one write is sent a second time."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.2)
    ids: list[UUID] = []
    with _load(lambda _: works.enqueue(account, 4), ids):
        for _ in range(_DEPLOYS):
            with works.second("worker"):
                seen = len(works.posts(account))
                works.wait_for_posts(account, seen + 10)
                assert works.terminate("worker", kill_after_s=20) == 0
                works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == len(ids)
    assert works.sql("SELECT id FROM outbox.escalations") == []


def test_a_roll_out_of_this_release_under_load_of_the_one_before_sends_each_write_once(
    rollout: Rollout,
) -> None:
    """Old workers alone, then both, then ours alone, over the rows that agents of both releases
    go on enqueuing; each worker is killed in the middle of it."""
    rollout.sandbox.fault("slow", account=rollout.account, after_s=0.2)
    rollout.sandbox.fault("lost_ack", account=rollout.account, attempts=[1], times=5)
    ids: list[UUID] = []

    def enqueue(number: int) -> list[UUID]:
        release = (rollout.previous, HERE)[number % 2]
        return rollout.enqueue(release, *(f"in_{number}_{n}" for n in range(8)))

    def more() -> None:
        seen = len(rollout.sandbox.effects(rollout.account))
        wait_until(lambda: len(rollout.sandbox.effects(rollout.account)) >= seen + 4)

    with _load(enqueue, ids), rollout.worker(rollout.previous) as old:
        more()
        with rollout.worker(HERE):
            more()
            old.kill()
            more()
    with rollout.worker(HERE):
        wait_until(rollout.settled, 60)
    oracle = rollout.sandbox.oracle(rollout.account)
    counted = {UUID(name): one["count"] for name, one in oracle["effects_by_intent"].items()}
    assert counted == dict.fromkeys(ids, 1)
    assert oracle["violations"] == []

"""One worker and nothing else: no broker, no beat, no web."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.works import Works, open_works

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "worker", broker=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _whole(works: Works) -> Iterator[None]:
    yield
    works.sandbox.clear_faults()
    works.restart("worker")


def test_a_worker_without_a_broker_polls_sends_and_resolves(works: Works) -> None:
    """Rule 14; B46: nothing wakes it, and it finds the rows within a poll."""
    account = works.account()
    works.sandbox.fault("lost_ack", account=account, attempts=[1])
    ids = works.enqueue(account, 30)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == 30


def test_it_is_killed_in_mid_call_and_the_next_one_goes_on(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.7, attempts=[1])
    ids = works.enqueue(account, 30)
    works.wait_for_posts(account, 10)
    works.stack.kill("worker")
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_told_to_end_it_finishes_what_is_in_flight(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.6)
    ids = works.enqueue(account, 20)
    works.wait_for_posts(account, 10)
    assert works.terminate("worker", kill_after_s=6) == 0
    assert set(works.statuses(ids)) <= {"succeeded", "pending"}
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == 20


def test_it_lives_through_a_database_that_is_killed(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5, attempts=[1])
    ids = works.enqueue(account, 30)
    works.wait_for_posts(account, 10)
    works.servers.kill_postgres()
    works.servers.start_postgres()
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert works.stack.dead() == []

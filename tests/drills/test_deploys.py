"""Deploys: SIGTERM to the worker, SIGKILL to what is left, and a new worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.works import Works, open_works
from tests.workers.floor import READS, wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "worker", "beat") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _whole(works: Works) -> Iterator[None]:
    yield
    works.sandbox.clear_faults()
    works.restart("worker", "beat")


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_worker_told_to_end_finishes_its_calls_and_hands_the_rest_back(
    works: Works, whole_group: bool
) -> None:
    """B44: done within the call deadline and five seconds, nobody in doubt for it. Some
    supervisors signal the parent, and some every process."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.6)
    ids = works.enqueue(account, 60)
    works.wait_for_posts(account, 5)
    assert works.terminate("worker", kill_after_s=6, whole_group=whole_group) == 0
    statuses = works.statuses(ids)
    assert set(statuses) <= {"succeeded", "pending"}
    works.sandbox.clear_faults()
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == len(ids)


def test_a_worker_told_to_end_does_not_wait_for_look_ups_that_drip(works: Works) -> None:
    """A look-up may take longer than a call; the end of a worker may not."""
    account = works.account()
    works.sandbox.fault("lost_ack", account=account, attempts=[1])
    works.sandbox.fault("drip", account=account, endpoint=READS, after_s=30)
    ids = works.enqueue(account, 20)
    wait_until(lambda: _reads(works, account))
    assert works.terminate("worker", kill_after_s=7) == 0
    works.sandbox.clear_faults()
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_a_worker_told_to_end_does_not_wait_for_a_child_that_never_does(works: Works) -> None:
    """It was suspended, or hangs in the kernel: Celery would wait for it without end."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=1.0)
    ids = works.enqueue(account, 5)
    works.wait_for_posts(account, 1)
    children = works.children()
    for child in children:
        child.suspend()
    assert works.terminate("worker", kill_after_s=60) == 0
    assert not any(child.is_running() for child in children)
    works.sandbox.clear_faults()
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)


def _reads(works: Works, account: str) -> bool:
    asked = [r for r in works.sandbox.requests(account) if r["method"] == "GET"]
    return any(r["path"] == "/v1/payment_intents" for r in asked)


@pytest.mark.parametrize(
    ("moment", "fault", "kill_after_s"),
    [
        ("before the claim", None, 5.0),
        ("after the claim", "slow", 0.0),
        ("during the call", "slow", 0.2),
        ("after the call", "slow", 0.55),
        ("after the record", None, 0.3),
        ("while it hangs", "hang", 5.0),
    ],
)
def test_a_deploy_at_any_moment_leaves_one_effect_and_no_page(
    works: Works, moment: str, fault: str | None, kill_after_s: float
) -> None:
    """B44: SIGTERM, then SIGKILL, then a new worker."""
    account = works.account()
    if fault:
        works.sandbox.fault(fault, account=account, after_s=0.5, attempts=[1])
    if moment == "before the claim":
        works.stack.programs["worker"].process.terminate()
        ids = works.enqueue(account, 6)
    else:
        ids = works.enqueue(account, 6)
        if moment == "after the claim":
            wait_until(lambda: works.statuses(ids).get("in_flight"))
        elif moment == "after the record":
            wait_until(lambda: works.statuses(ids).get("succeeded"))
        else:
            works.wait_for_posts(account, 6)
    works.terminate("worker", kill_after_s)
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)
    questions = works.sql(
        "SELECT reasons FROM outbox.escalations WHERE intent_id = ANY(%(ids)s)", {"ids": ids}
    )
    assert questions == []


def test_two_workers_and_two_beats_side_by_side_do_no_harm(works: Works) -> None:
    """B57: during a rolling deploy the old ones and the new ones run together."""
    with works.second("worker", "beat"):
        account = works.account()
        works.sandbox.fault("lost_ack", account=account, attempts=[1])
        ids = works.enqueue(account, 60)
        works.wait_until_settled(ids)
        works.check(account, ids)
        assert len(works.posts(account)) == len(ids)
        looks = [
            r
            for r in works.sandbox.requests(account)
            if r["method"] == "GET" and r["path"] == "/v1/payment_intents"
        ]
        # One reading shows many rows, and nobody reads for a row that somebody has in hand.
        assert 1 <= len(looks) <= len(ids)

"""kill -9 of a worker process at each step of the sender, held at that very step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.drills.behind import BehindProxies, open_behind
from tests.drills.steps import STEPS, Step

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    # One process and no broker: the poll sends, and what is held is what this process does.
    with open_behind(tmp_path_factory.mktemp("works"), broker=False) as opened:
        opened.warm_up()
        yield opened


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_worker_killed_at_any_step_leaves_one_request_and_one_effect(
    works: BehindProxies, step: Step, record_property: Callable[[str, object], None]
) -> None:
    """Settled within the order of a lease and one tick, with nobody asked."""
    account = works.account()
    works.restart("worker")
    moment = step.hold(works)
    ids = works.enqueue(account, 1)
    moment.wait_for(ids)
    killed_at = works.now()
    works.stack.kill("worker")
    moment.end()
    nobody_s = works.start_worker_in_s()
    took_s = works.settle(account, ids, killed_at, nobody_s)
    record_property("settled_after_s", round(took_s, 2))
    assert len(works.posts(account)) == 1
    assert works.outcomes(ids[0]) == step.outcomes

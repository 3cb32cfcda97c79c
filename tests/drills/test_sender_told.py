"""SIGTERM to a worker at each step of the sender, held at that very step, as each deploy does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.drills.behind import BehindProxies, open_behind
from tests.drills.steps import STEPS, Step

pytestmark = pytest.mark.heavy

# How soon it ends is asserted in `test_deploys.py`; here, that it does, by itself.
_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    with open_behind(tmp_path_factory.mktemp("works")) as opened:
        opened.warm_up()
        yield opened


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_worker_told_to_end_at_any_step_ends_in_order_and_leaves_one_request(
    works: BehindProxies, step: Step, record_property: Callable[[str, object], None]
) -> None:
    """With Celery's children: only the parent is told, and whoever is held finishes."""
    account = works.account()
    works.restart("worker")
    moment = step.hold(works)
    ids = works.enqueue(account, 1)
    moment.wait_for(ids)
    told_at = works.now()
    works.stack.programs["worker"].process.terminate()
    moment.end()
    assert works.terminate("worker", kill_after_s=_PATIENCE_S) == 0
    ended_s = (works.now() - told_at).total_seconds()
    nobody_s = works.start_worker_in_s()
    took_s = works.settle(account, ids, told_at, ended_s, nobody_s)
    record_property("settled_after_s", round(took_s, 2))
    assert len(works.posts(account)) == 1
    assert works.outcomes(ids[0]) == step.when_told

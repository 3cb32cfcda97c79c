"""Steps of a host's clock, and hosts that were asleep, on worker processes.

The database's clock decides, so a host whose clock steps matters where it is the database's: it is
stepped through `outbox.clock()`, the one seam of time. A worker's host has no say but by a clock
that counts from its boot, sleep included: its processes are stopped for longer than their lease.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbox.testing import Clock, settable_clock
from tests.drills.behind import BehindProxies, open_behind
from tests.drills.proxy import Gate
from tests.drills.stopped import stopped
from tests.workers.floor import READS, wait_until
from tests.workers.proxy import CLAIM

pytestmark = pytest.mark.heavy

STEP_S = 120.0
# A clock as far away from the vendor's as production allows: what landed is found all the same.
# And the word of a claim is waited for by a worker that was asleep meanwhile.
_APART = {"OUTBOX_CLOCK_SKEW_S": "600", "OUTBOX_STATEMENT_TIMEOUT_S": "60"}


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    folder = tmp_path_factory.mktemp("works")
    with open_behind(folder, broker=False, more=_APART) as opened:
        opened.warm_up()
        yield opened


@pytest.fixture
def clock(works: BehindProxies) -> Iterator[Clock]:
    clock = settable_clock(works.database_url)
    yield clock
    works.sandbox.clear_faults()


def _accept(works: BehindProxies) -> None:
    """What the operator types."""
    script = Path(sys.executable).with_name("outbox")
    subprocess.run(
        [sys.executable, str(script), "doctor", "--accept", "--reason", "the host's clock was set"],
        env=dict(works.env), capture_output=True, check=False,
    )  # fmt: skip
    assert not works.sql("SELECT * FROM outbox.switches")


def _is_doubted(works: BehindProxies) -> bool:
    switches = works.sql("SELECT kind FROM outbox.switches")
    questions = works.sql("SELECT reasons FROM outbox.escalations WHERE closed_at IS NULL")
    return (switches, questions) == ([{"kind": "clock"}], [{"reasons": ["clock"]}])


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S], ids=["forward", "back"])
def test_a_step_of_the_databases_clock_sends_nothing_again_until_a_person_has_looked(
    works: BehindProxies, clock: Clock, step_s: float
) -> None:
    """With calls on the wire, whose leases all end at once or last longer than they were to. What
    never arrived waits; everything else settles by its answer or by a look."""
    account = works.account()
    works.sandbox.fault("lost_request", account=account, times=2)
    works.sandbox.fault("slow", account=account, after_s=0.7)
    works.sandbox.fault("hang", account=account, endpoint=READS)  # no look ends before the step
    ids = works.enqueue(account, 10)
    works.wait_for_posts(account, 10)
    clock.advance(step_s)
    wait_until(lambda: _is_doubted(works))
    works.sandbox.clear_faults()  # what landed may be found from here on
    wait_until(lambda: works.statuses(ids) == {"succeeded": 8, "unknown": 2})
    if step_s < 0:
        clock.advance(-step_s)  # it is set right again, and what it said before stays in doubt
    # The looks that find nothing are made, and no send comes of them.
    looked = "SELECT id FROM outbox.intents WHERE id = ANY(%(ids)s) AND absent_looks > 0"
    wait_until(lambda: len(works.sql(looked, {"ids": ids})) == 2)
    assert works.statuses(ids) == {"succeeded": 8, "unknown": 2}
    assert len(works.posts(account)) == 10
    _accept(works)
    works.settle(account, ids, works.now())
    assert len(works.posts(account)) == 12


def _claimed(works: BehindProxies) -> Gate:
    return works.postgres.hold(CLAIM, at=b"COMMIT", held="answers")


def _asking(works: BehindProxies) -> Gate:
    return works.vendor.hold(b"POST /v1/payment_intents", at=b"POST", held="questions")


@pytest.mark.parametrize("held", [_claimed, _asking], ids=["before its call", "in its call"])
def test_a_worker_that_was_asleep_for_longer_than_its_lease_sends_nothing_any_more(
    works: BehindProxies, held: Callable[[BehindProxies], Gate]
) -> None:
    """Another one has settled its row meanwhile; what it brings when it wakes is late."""
    account = works.account()
    gate = held(works)
    ids = works.enqueue(account, 1)
    wait_until(gate.reached.is_set)
    with stopped(works.stack.programs["worker"].process.pid):
        fell_asleep_at = works.now()
        with works.second("worker"):
            gate.let_go()
            works.settle(account, ids, fell_asleep_at, works.usual_s)
    awake = works.enqueue(account, 1)
    works.wait_until_settled(awake)  # by the one that woke: there is no other any more
    works.check(account, [*ids, *awake])
    assert len(works.posts(account)) == 2
    assert works.questions(ids) == []

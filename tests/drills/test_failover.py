"""A failover under a running worker: the primary is killed, its standby is read-only for a while,
and once promoted it has forgotten what the primary had committed last."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.adoption.standby import Pair, programs, running_pair
from tests.drills.behind import BehindProxies, open_behind
from tests.workers.floor import wait_until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(programs() is None, reason="pg_basebackup is not installed"),
]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_pair() as running:
        wait_until(running.caught_up)
        yield running


@pytest.fixture
def works(pair: Pair, tmp_path: Path) -> Iterator[BehindProxies]:
    """A worker whose database's name leads to the primary."""
    with open_behind(tmp_path, broker=False) as opened:
        opened.ledger_url = pair.primary
        opened.postgres.lead_to(_socket(pair.primary))
        opened.postgres.mend()
        opened.warm_up()
        yield opened


def _socket(url: str) -> Path:
    return Path(url.partition("?host=")[2]) / ".s.PGSQL.5432"


def _run(url: str, statement: bytes) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement)


def _end_replication(pair: Pair) -> None:
    _run(pair.standby, b"ALTER SYSTEM SET primary_conninfo = ''")
    _run(pair.standby, b"SELECT pg_reload_conf()")

    def has_ended() -> bool:
        with psycopg.connect(pair.standby.replace("+psycopg", "")) as connection:
            return not connection.execute("SELECT FROM pg_stat_wal_receiver").fetchall()

    wait_until(has_ended)


def _kill_primary(pair: Pair) -> None:
    with psycopg.connect(pair.primary.replace("+psycopg", "")) as connection:
        postmaster = psutil.Process(connection.info.backend_pid).parent()
    assert postmaster is not None
    for process in [postmaster, *postmaster.children(recursive=True)]:
        process.kill()


def test_a_failover_that_forgets_the_last_commits_makes_no_second_effect(
    works: BehindProxies, pair: Pair
) -> None:
    """What was settled and forgotten is sent again with its key; what was in doubt is sent again
    only after a person has looked, for the windows of another history cannot be trusted."""
    settled, lost = works.account(), works.account()
    works.stack.kill("worker")
    forgotten = works.enqueue(settled, 5)
    wait_until(pair.caught_up)
    _end_replication(pair)
    works.restart("worker")
    works.wait_until_settled(forgotten)
    _kill_primary(pair)
    works.ledger_url = pair.standby
    works.postgres.lead_to(_socket(pair.standby))
    works.postgres.mend()
    # Read-only for as long as a lease: nothing is claimed, and nobody has ended for it.
    began = works.now()
    works.wait_a_lease(began)
    assert works.statuses(forgotten) == {"pending": 5}
    assert len(works.posts(settled)) == 5
    works.sandbox.fault("lost_request", account=lost, times=2)
    pair.promote()
    ids = works.enqueue(lost, 2)
    wait_until(lambda: works.sql("SELECT kind FROM outbox.switches WHERE kind = 'clock'"))
    works.wait_until_settled(forgotten)
    works.check(settled, forgotten)
    assert len(works.posts(settled)) == 10
    wait_until(lambda: works.statuses(ids) == {"unknown": 2})
    script = Path(sys.executable).with_name("outbox")
    words = ["doctor", "--accept", "--reason", "the standby was promoted"]
    subprocess.run(
        [sys.executable, str(script), *words], env=dict(works.env), capture_output=True, check=False
    )
    works.settle(lost, ids, works.now())
    assert works.stack.dead() == []

"""Postgres stopped, out of connections, and read-only for a while. Killed: see `test_kills.py`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from outbox import Outbox, ReadOnly
from tests.drills.behind import BehindProxies, open_behind
from tests.drills.stopped import stopped
from tests.workers.floor import wait_until

pytestmark = pytest.mark.heavy

_LIMITS = {"OUTBOX_STATEMENT_TIMEOUT_S": "2"}
_END_OURS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox'"
)


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    with open_behind(
        tmp_path_factory.mktemp("works"), "worker", "beat",
        more=_LIMITS, postgres_settings={"max_connections": "60"},
    ) as opened:  # fmt: skip
        opened.warm_up()
        yield opened


@pytest.fixture(autouse=True)
def _alive(works: BehindProxies) -> Iterator[None]:
    yield
    works.sandbox.clear_faults()
    assert works.stack.dead() == []


@pytest.fixture
def account(works: BehindProxies) -> str:
    """One whose vendor takes a moment for each first answer."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5, attempts=[1])
    return account


def _in_the_air(works: BehindProxies, account: str) -> list[UUID]:
    ids = works.enqueue(account, 30)
    works.wait_for_posts(account, 10)
    return ids


def _ask(works: BehindProxies, intent_id: UUID) -> str:
    """What an agent is told that asks now."""
    outbox = Outbox(works.settings)
    told = outbox.wait(intent_id, timeout_s=0).told
    outbox.close()
    return told


@contextlib.contextmanager
def _no_connection_left(works: BehindProxies) -> Iterator[None]:
    """Every one is somebody else's, who ends ours and takes whatever comes free."""
    url = works.database_url.replace("+psycopg", "")
    ended = threading.Event()

    def take_all() -> None:
        with contextlib.ExitStack() as others:
            first = others.enter_context(psycopg.connect(url, autocommit=True))
            while not ended.wait(0.02):
                first.execute(_END_OURS)
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        others.enter_context(psycopg.connect(url, autocommit=True))

    taking = threading.Thread(target=take_all)
    taking.start()
    try:
        wait_until(lambda: _is_refused(url))
        yield
    finally:
        ended.set()
        taking.join()


def _is_refused(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


def test_answers_outlive_a_postgres_that_is_stopped_and_goes_on(
    works: BehindProxies, account: str
) -> None:
    """Its connections stay, and nothing comes over them for longer than a lease."""
    ids = _in_the_air(works, account)
    with stopped(works.servers.pids["postgres"]):
        end = time.monotonic() + works.settings.policy.lease_s
        assert _ask(works, ids[0]) == "unknown"
        wait_until(lambda: time.monotonic() > end)
    works.settle(account, ids, works.now())
    assert len(works.posts(account)) == len(ids)


def test_nothing_is_lost_while_postgres_has_no_connection_left(
    works: BehindProxies, account: str
) -> None:
    ids = _in_the_air(works, account)
    with _no_connection_left(works):
        end = time.monotonic() + works.settings.policy.lease_s
        assert _ask(works, ids[0]) != "failed"  # a place may have come free just then
        wait_until(lambda: time.monotonic() > end)
        assert _is_refused(works.database_url.replace("+psycopg", ""))
    works.settle(account, ids, works.now())
    assert len(works.posts(account)) == len(ids)


def test_a_postgres_that_takes_no_writes_for_a_while_is_told_and_loses_nothing(
    works: BehindProxies, account: str
) -> None:
    ids = _in_the_air(works, account)
    works.sql("ALTER SYSTEM SET default_transaction_read_only = on")
    works.sql("SELECT pg_reload_conf()")
    wait_until(lambda: works.sql("SHOW transaction_read_only") == [{"transaction_read_only": "on"}])
    began = works.now()
    with pytest.raises(ReadOnly):
        works.enqueue(account, 1)
    works.wait_a_lease(began)
    works.sql("ALTER SYSTEM RESET default_transaction_read_only")
    works.sql("SELECT pg_reload_conf()")
    works.settle(account, ids, works.now())
    assert len(works.posts(account)) == len(ids)

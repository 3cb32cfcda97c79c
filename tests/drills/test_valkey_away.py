"""Valkey stopped and full. Killed, flushed, cut and slow to answer: see `test_broker.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from tests.drills.behind import BehindProxies, open_behind
from tests.drills.stopped import stopped

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    with open_behind(tmp_path_factory.mktemp("works"), "worker", "beat") as opened:
        opened.warm_up()
        yield opened


@contextmanager
def _stopped(works: BehindProxies) -> Iterator[None]:
    with stopped(works.servers.pids["valkey"]):
        yield


@contextmanager
def _full(works: BehindProxies) -> Iterator[None]:
    """Whatever would need memory is refused, as without eviction it is."""
    with redis.Redis.from_url(works.servers.redis_url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            client.lpush("outbox.send", "one more")
        yield
        client.config_set("maxmemory", "0")


@pytest.mark.parametrize("away", [_stopped, _full], ids=["stopped", "full"])
def test_a_broker_that_is_there_and_takes_nothing_delays_and_never_stops(
    works: BehindProxies, away: Callable[[BehindProxies], AbstractContextManager[None]]
) -> None:
    """Nobody waits for it, rows settle while it lasts, and afterwards messages are taken again."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.3, attempts=[1])
    works.sandbox.fault("lost_ack", account=account, attempts=[1], times=2)
    ids = works.enqueue(account, 10)
    with away(works):
        began, began_s = works.now(), time.monotonic()
        ids += works.enqueue(account, 10)
        assert time.monotonic() - began_s < 1 + works.usual_s, "the caller waited for the broker"
        works.settle(account, ids, began)
    assert len(works.posts(account)) == len(ids)
    began = works.now()
    ids = works.enqueue(account, 10)
    works.settle(account, ids, began)
    assert works.stack.dead() == []
    assert works.terminate("worker", kill_after_s=20) == 0
    works.restart("worker")

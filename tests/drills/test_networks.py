"""The network to Postgres, to Valkey and to the vendor: cut, slowed, half-closed, gone silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.drills.behind import BehindProxies, open_behind
from tests.drills.proxy import Proxy
from tests.workers.floor import wait_until

pytestmark = pytest.mark.heavy

FAULTS: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "slowed": lambda proxy: proxy.slow(0.02, 512),
    "closed towards the server": lambda proxy: proxy.half_close("questions"),
    "closed towards the worker": lambda proxy: proxy.half_close("answers"),
    "silent": Proxy.fall_silent,
}
# A connection that hears nothing is given up a second later.
PATIENCE = {"OUTBOX_STATEMENT_TIMEOUT_S": "2", "OUTBOX_IDLE_TIMEOUT_S": "3"}
every_fault = pytest.mark.parametrize("fault", FAULTS)


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxies]:
    folder = tmp_path_factory.mktemp("works")
    with open_behind(folder, "worker", "beat", more=PATIENCE) as opened:
        opened.warm_up()
        yield opened


@pytest.fixture(autouse=True)
def _whole(works: BehindProxies) -> Iterator[None]:
    yield
    for proxy in (works.postgres, works.valkey, works.vendor):
        proxy.mend()
    works.sandbox.clear_faults()
    # Whatever the network did, no process has ended.
    assert works.stack.dead() == []


def _strike(proxy: Proxy, fault: str) -> None:
    wait_until(proxy.has_connections)  # where nobody talks through it, a fault shows nothing
    FAULTS[fault](proxy)


@every_fault
def test_the_network_to_the_broker_only_delays(works: BehindProxies, fault: str) -> None:
    """Rule 14: settled while it lasts, by enqueuers and workers that cannot ring or be rung."""
    account = works.account()
    works.sandbox.fault("lost_ack", account=account, attempts=[1], times=2)
    _strike(works.valkey, fault)
    began = works.now()
    ids = works.enqueue(account, 10)
    works.settle(account, ids, began)
    assert len(works.posts(account)) == len(ids)


@every_fault
def test_the_network_to_the_vendor_leaves_one_effect_each(works: BehindProxies, fault: str) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.3, attempts=[1])
    ids = works.enqueue(account, 20)
    works.wait_for_posts(account, 2)
    _strike(works.vendor, fault)
    ids += works.enqueue(account, 10)
    wait_until(lambda: all(works.attempted(ids)))
    works.vendor.mend()
    works.settle(account, ids, works.now())


@every_fault
def test_the_network_to_the_database_loses_no_answer_for_good(
    works: BehindProxies, fault: str
) -> None:
    """For as long as a lease: what was answered meanwhile is in the memory of the worker."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5, attempts=[1])
    ids = works.enqueue(account, 20)
    works.wait_for_posts(account, 5)
    _strike(works.postgres, fault)
    began = works.now()
    ids += works.enqueue(account, 10)
    works.wait_a_lease(began)
    works.postgres.mend()
    works.settle(account, ids, works.now(), works.settings.idle_in_transaction_timeout_s)
    assert len(works.posts(account)) == len(ids)

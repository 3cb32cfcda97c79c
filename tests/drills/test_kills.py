"""kill -9 of every process in the middle of a run: nothing is lost, nothing happens twice.

After each kill nobody enqueues anything again: what the ledger holds is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.works import Works, open_works
from tests.workers.floor import READS, wait_until

pytestmark = pytest.mark.heavy

IN_THE_AIR = 60


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "web", "worker", "beat") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _whole(works: Works) -> Iterator[None]:
    """Each test finds everything running."""
    yield
    works.sandbox.clear_faults()
    works.restart("web", "worker", "beat")


def test_all_is_well_without_any_kill(works: Works) -> None:
    account = works.account()
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == IN_THE_AIR


def test_children_that_were_forked_share_no_connection(works: Works) -> None:
    """B32: every row has its own answer, whichever child asked for it."""
    account = works.account()
    ids = [i for _ in range(20) for i in works.enqueue(account, 10)]
    works.wait_until_settled(ids)
    works.check(account, ids)
    made = {e["outbox_id"]: e["object_id"] for e in works.sandbox.effects(account)}
    rows = works.sql(
        "SELECT id, receipt_id FROM outbox.intents WHERE id = ANY(%(ids)s)", {"ids": ids}
    )
    assert {str(row["id"]): row["receipt_id"] for row in rows} == made
    assert len(works.posts(account)) == len(ids)


def test_the_worker_and_all_its_children_are_killed_in_mid_call(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.7, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 10)
    works.stack.kill("worker")
    assert works.statuses(ids).get("in_flight")
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_one_child_is_killed_in_mid_call(works: Works) -> None:
    """B08: the broker has acknowledged the message of a child that is gone."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.7, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 10)
    owners = works.sql("SELECT DISTINCT lease_owner FROM outbox.intents WHERE status = 'in_flight'")
    pids = {int(row["lease_owner"].rpartition(":")[2]) for row in owners}
    (victim, *_) = [c for c in works.children() if c.pid in pids]
    victim.kill()
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_beat_is_killed_and_the_workers_tick_by_themselves(works: Works) -> None:
    """Rule 14: a job whose heartbeat is old is run by whoever sees it."""
    account = works.account()
    works.stack.kill("beat")
    works.sandbox.fault("lost_ack", account=account, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == IN_THE_AIR


def test_web_is_killed_while_webhooks_come_in(works: Works) -> None:
    account = works.account()
    url = f"{works.stack.said('web')}/webhooks/stripe/{account}"
    works.sandbox.add_endpoint(account, url, "whsec_of_the_works")
    works.sandbox.fault("lost_ack", account=account, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 10)
    works.stack.kill("web")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_valkey_is_killed_and_comes_back(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.3, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 5)
    works.servers.kill_valkey()
    ids += works.enqueue(account, 20)
    works.wait_until_settled(ids)
    works.servers.start_valkey()
    ids += works.enqueue(account, 20)
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_postgres_is_killed_and_comes_back(works: Works) -> None:
    """B07 (a): the vendor has answered and nothing can be written down."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 10)
    works.servers.kill_postgres()
    works.servers.start_postgres()
    works.wait_until_settled(ids)
    works.check(account, ids)
    # The processes that lived through it still work.
    more = works.enqueue(account, 5)
    works.wait_until_settled(more)
    works.check(account, more)
    assert works.stack.dead() == []


def test_everything_is_killed_at_once(works: Works) -> None:
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5, attempts=[1])
    ids = works.enqueue(account, IN_THE_AIR)
    works.wait_for_posts(account, 10)
    for verb in ("worker", "beat", "web"):
        works.stack.kill(verb)
    works.servers.kill_valkey()
    works.servers.kill_postgres()
    works.servers.start_postgres()
    works.servers.start_valkey()
    works.restart("web", "worker", "beat")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_a_row_that_kills_whoever_sends_it_is_parked_after_three_and_asked_about(
    works: Works,
) -> None:
    """B45: good rows behind it go out, and no broker drives the loop on."""
    account = works.account()
    works.sandbox.fault("hang", account=account)
    works.sandbox.fault("unavailable_503", account=account, endpoint=READS)
    (bad,) = works.enqueue(account, 1)
    good_account = works.account()
    while not works.has_lost(bad, 3):
        owner = works.owner_of(bad)
        for child in works.children():
            if child.pid == owner:
                child.kill()
        wait_until(lambda: works.statuses([bad]) != {"in_flight": 1})
    good = works.enqueue(good_account, 5)
    works.wait_until_settled(good)
    works.check(good_account, good)
    wait_until(lambda: not works.unseen([bad]))
    (question,) = works.sql(
        "SELECT reasons FROM outbox.escalations WHERE intent_id = %(id)s", {"id": bad}
    )
    assert "worker_lost" in question["reasons"]
    assert works.statuses([bad]) == {"unknown": 1}
    assert len(works.posts(account)) <= 3


def test_a_child_that_is_killed_is_replaced(works: Works) -> None:
    before = {c.pid for c in works.children()}
    for child in works.children()[:1]:
        child.kill()
    wait_until(lambda: len({c.pid for c in works.children()} - before) >= 1)
    account = works.account()
    ids = works.enqueue(account, 10)
    works.wait_until_settled(ids)
    works.check(account, ids)

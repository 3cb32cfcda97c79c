"""The broker is a doorbell: dead, flushed, cut or full of old ticks, it delays and never stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import redis
from celery import Celery

from tests.drills.works import Works, open_works
from tests.workers.floor import READS, wait_until
from workers.broker import broker_url_of

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "worker", "beat") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _whole(works: Works) -> Iterator[None]:
    yield
    works.sandbox.clear_faults()
    if "valkey" not in works.servers.pids:
        works.servers.start_valkey()
    works.restart("worker", "beat")


def _settled_in_time(works: Works, account: str, count: int) -> None:
    ids = works.enqueue(account, count)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == count


def test_an_enqueue_while_the_broker_is_dead_succeeds_and_is_sent(works: Works) -> None:
    """B28: no error and no wait for the caller, and the rows go out all the same."""
    works.servers.kill_valkey()
    _settled_in_time(works, works.account(), 10)


def test_rows_from_a_time_without_worker_and_broker_are_found(works: Works) -> None:
    """B28, B29: nobody ever rings for them again."""
    works.stack.kill("worker")
    works.stack.kill("beat")
    works.servers.kill_valkey()
    account = works.account()
    ids = works.enqueue(account, 10)
    works.servers.start_valkey()
    works.restart("worker")
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_a_child_that_dies_before_the_broker_first_answers_does_not_end_the_worker(
    works: Works,
) -> None:
    """Celery would give up: no process could be started."""
    works.stack.kill("worker")
    works.servers.kill_valkey()
    works.restart("worker")
    wait_until(lambda: len(works.children()) == works.settings.policy.children)
    victim = works.children()[0]
    victim.kill()
    wait_until(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)
    works.servers.start_valkey()
    wait_until(
        lambda: (
            works.stack.dead() == ["worker"]
            or (
                victim.pid not in {c.pid for c in works.children()}
                and len(works.children()) == works.settings.policy.children
            )
        )
    )
    assert works.stack.dead() == []
    _settled_in_time(works, works.account(), 10)


def test_children_that_die_while_the_broker_restarts_do_not_end_the_worker(works: Works) -> None:
    """Celery breaks over what is left of them when it connects again, and ends."""
    before = works.children()
    works.servers.kill_valkey()
    for child in before:
        child.kill()
    works.servers.start_valkey()
    wait_until(
        lambda: (
            works.stack.dead() == ["worker"]
            or len([c for c in works.children() if c not in before])
            == works.settings.policy.children
        )
    )
    _settled_in_time(works, works.account(), 10)
    assert works.stack.dead() == []
    assert works.terminate("worker", kill_after_s=20) == 0


def test_a_flushed_broker_loses_no_row(works: Works) -> None:
    """B08, B29: every message and every queue is gone while rows are pending."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.3, attempts=[1])
    ids = works.enqueue(account, 40)
    works.wait_for_posts(account, 5)
    with redis.Redis.from_url(works.servers.redis_url) as client:
        for _ in range(5):
            client.flushall()
            threading.Event().wait(0.1)
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_a_worker_whose_broker_connections_are_cut_again_and_again_still_sends(
    works: Works,
) -> None:
    """B23: after a reconnect a worker may look alive and take no more messages."""
    with redis.Redis.from_url(works.servers.redis_url) as client:
        for _ in range(6):
            client.client_kill_filter(_type="normal", skipme=True)
            threading.Event().wait(0.4)
    _settled_in_time(works, works.account(), 5)
    assert works.stack.dead() == []


def test_a_broker_that_answers_nothing_delays_nobody_much(works: Works) -> None:
    """B28: paused for longer than any time-out."""
    with redis.Redis.from_url(works.servers.redis_url) as client:
        client.execute_command("CLIENT", "PAUSE", "4000", "ALL")
    began = time.monotonic()
    account = works.account()
    ids = works.enqueue(account, 5)
    assert time.monotonic() - began < 3, "the caller waited for the broker"
    works.wait_until_settled(ids)
    works.check(account, ids)


def test_hundreds_of_old_ticks_do_not_hold_up_the_sender_nor_look_again(works: Works) -> None:
    """B58: the worker was down, and 300 resolve ticks wait for it."""
    works.stack.kill("worker")
    works.stack.kill("beat")
    account = works.account()
    works.sandbox.fault("lost_ack", account=account, attempts=[1])
    works.restart("worker")
    stale = works.enqueue(account, 10)
    wait_until(lambda: works.statuses(stale).get("unknown"))
    works.stack.kill("worker")
    app = Celery(broker=broker_url_of(works.servers.redis_url), set_as_current=False)
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for _ in range(300):
            app.send_task("outbox.resolve", queue="outbox.resolve", producer=producer)
    app.close()
    works.restart("worker")
    fresh = works.enqueue(account, 10, description="behind the ticks")
    works.wait_until_settled([*stale, *fresh])
    works.check(account, [*stale, *fresh])
    looks = [
        r
        for r in works.sandbox.requests(account)
        if r["method"] == "GET" and r["path"] == "/v1/payment_intents"
    ]
    assert len(looks) <= 2 * 20


def test_a_webhook_joins_while_a_vendor_hangs_and_a_hundred_thousand_rows_are_due(
    works: Works,
) -> None:
    """Reads that hang hold their own threads; joining calls no vendor and waits for none."""
    hanging, calm = works.account(), works.account()
    works.restart("web")
    url = f"{works.stack.said('web')}/webhooks/stripe/{calm}"
    works.sandbox.add_endpoint(calm, url, "whsec_of_the_works")
    works.sandbox.fault("hang", account=hanging)
    works.sandbox.fault("hang", account=hanging, endpoint=READS)
    (model,) = works.enqueue(hanging, 1)
    wait_until(lambda: works.statuses([model]).get("unknown"))
    works.fill(model, 100_000)
    # Only the webhook can tell: nothing of this account can be read.
    works.sandbox.fault("lost_ack", account=calm)
    works.sandbox.fault("unavailable_503", account=calm, endpoint=READS)
    works.sandbox.webhook_fault("delay", account=calm, after_s=1)
    ids = works.enqueue(calm, 3)
    works.wait_until_settled(ids)
    joined = works.sql(
        "SELECT settled_by FROM outbox.intents WHERE id = ANY(%(ids)s)", {"ids": ids}
    )
    assert joined == [{"settled_by": "webhook"}] * 3
    works.sandbox.clear_faults()

"""A worker that is told to end while the database hangs: the process ends in its time, whatever it
waits for, and its rows are settled by others."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outbox import Settings
from outbox.errors import Unreachable
from outbox.store.connection import Store
from tests.adoption.served import env_of
from tests.cli.desk import SCRIPT
from tests.workers.floor import Floor, wait_until
from tests.workers.proxy import PostgresProxy
from workers.poller import Poller
from workers.runtime import Runtime, Slots
from workers.servers import Servers
from workers.startup import checked

DEADLINE_S = 3.0
# Far beyond what a worker may take to end.
STATEMENT_S = 60.0
BUSY_MACHINE_S = 15.0


@pytest.fixture
def proxy(servers: Servers) -> Iterator[PostgresProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as between,
    ):
        yield between


@pytest.mark.heavy
@pytest.mark.parametrize("told", ["while it hangs", "before it hangs"])
@pytest.mark.parametrize("by", ["its poll", "a broker"])
def test_a_worker_ends_in_its_deadline_and_five_seconds_while_the_database_hangs(
    floor: Floor, proxy: PostgresProxy, servers: Servers, told: str, by: str
) -> None:
    """A call is in the air, and its answer cannot be written down."""
    broker = {"REDIS_URL": servers.redis_url} if by == "a broker" else {}
    env = env_of(
        floor, **broker,
        DATABASE_URL=proxy.url(floor.settings.database_url),
        OUTBOX_STATEMENT_TIMEOUT_S=f"{STATEMENT_S:g}",
        OUTBOX_CALL_DEADLINE_S=f"{DEADLINE_S:g}", OUTBOX_START_LIMIT_S="1", OUTBOX_LEASE_S="8",
        OUTBOX_PAGERS="none",
    )  # fmt: skip
    floor.sandbox.fault("slow", account=floor.account, after_s=1.5)
    worker = subprocess.Popen(
        [str(SCRIPT), "worker"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        intent_id = floor.one()
        wait_until(floor.posts)
        if told == "before it hangs":
            worker.send_signal(signal.SIGTERM)
        proxy.hangs = True
        proxy.fall_silent()
        if told == "while it hangs":
            threading.Event().wait(2.0)  # the answer is there, and its recording waits
            worker.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.wait(STATEMENT_S * 3) == 0
        assert time.monotonic() - began < DEADLINE_S + 5 + BUSY_MACHINE_S
    finally:
        worker.kill()
        worker.wait()
    floor.sandbox.clear_faults(floor.account)
    floor.advance(floor.settings.policy.lease_s + 10)
    floor.settle()
    assert floor.effects(intent_id) == 1
    assert floor.status(intent_id) == "succeeded"


def test_no_thread_of_an_ending_process_waits_longer_for_a_database_that_hangs(
    floor: Floor, proxy: PostgresProxy
) -> None:
    """A drain, whose answer cannot be written down, and a job; an exit would wait for both."""
    env = env_of(
        floor, DATABASE_URL=proxy.url(floor.settings.database_url), OUTBOX_PAGERS="none",
        OUTBOX_STATEMENT_TIMEOUT_S=f"{STATEMENT_S:g}",
    )  # fmt: skip
    told = threading.Event()
    settings = checked(Settings.from_env(env))
    runtime = Runtime(settings, slots=Slots(1), stopping=told.is_set)
    poller = Poller(runtime, told.is_set)
    floor.sandbox.fault("slow", account=floor.account, after_s=0.5)
    floor.one()
    works = [
        threading.Thread(target=work, daemon=True)
        for work in (runtime.drain, lambda: runtime.run("expire"))
    ]
    works[0].start()
    wait_until(floor.posts)
    proxy.hangs = True
    proxy.fall_silent()
    works[1].start()
    poller.start()
    told.set()
    for work in works:
        work.join(STATEMENT_S / 2)
    assert [work.is_alive() for work in works] == [False, False]
    poller.stop(0.0)
    runtime.close(0.0)
    floor.sandbox.clear_faults(floor.account)


def test_an_answer_whose_row_a_caller_holds_is_written_by_a_process_that_ends_between_two_drains(
    floor: Floor,
) -> None:
    """It was forgotten, and the intent was in doubt."""
    env = env_of(floor, OUTBOX_PAGERS="none", OUTBOX_TICK_DRAIN_S="60")
    told = threading.Event()
    runtime = Runtime(checked(Settings.from_env(env)), slots=Slots(1), stopping=told.is_set)
    runtime.identify()
    poller = Poller(runtime, told.is_set)
    floor.sandbox.fault("slow", account=floor.account, after_s=0.3)
    intent_id = floor.one()
    drain = threading.Thread(target=runtime.drain)
    drain.start()
    wait_until(floor.posts)
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as caller:
        caller.execute("SELECT id FROM outbox.intents WHERE id = %s FOR UPDATE", (intent_id,))
        drain.join()
        poller.start()
        told.set()
        caller.rollback()
    poller.stop()
    runtime.close()
    assert floor.status(intent_id) == "succeeded"
    assert floor.outcomes(intent_id) == ["receipt"]


def test_a_store_that_is_cut_ends_what_waits_for_a_statement_a_commit_and_a_connection(
    floor: Floor, proxy: PostgresProxy
) -> None:
    settings = floor.box.settings
    store = Store(
        type(settings).from_env(
            {
                "DATABASE_URL": proxy.url(settings.database_url),
                "OUTBOX_STATEMENT_TIMEOUT_S": f"{STATEMENT_S:g}",
            }
        ),
        size=2,
    )
    both, silent = threading.Barrier(3), threading.Event()
    ended: list[type[Exception]] = []

    def work(statement: str) -> None:
        try:
            with store.transaction() as tx:
                tx.one("SELECT 1 AS one")
                both.wait()
                silent.wait()
                if statement:
                    tx.one("SELECT 2 AS two")
        except Unreachable as error:
            ended.append(type(error))

    def connect() -> None:
        try:
            with store.transaction():
                pass
        except Unreachable as error:
            ended.append(type(error))

    waiting = [threading.Thread(target=work, args=(word,), daemon=True) for word in ("x", "")]
    waiting.append(threading.Thread(target=connect, daemon=True))
    for thread in waiting[:2]:
        thread.start()
    both.wait()
    proxy.fall_silent()
    silent.set()
    waiting[2].start()
    began = time.monotonic()
    threading.Event().wait(0.5)
    assert all(thread.is_alive() for thread in waiting)
    store.cut()
    for thread in waiting:
        thread.join(STATEMENT_S / 3)
    assert ended == [Unreachable] * 3
    assert time.monotonic() - began < STATEMENT_S / 2
    with pytest.raises(Unreachable), store.transaction():
        pass

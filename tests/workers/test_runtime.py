"""One worker process in this process: polling, slots, heartbeats and the watch on the clock."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import schedule

from outbox import Outbox, Settings
from outbox.store import switches
from outbox.testing import settable_clock
from resolvers.health import periods_s
from tests.resolvers.page_target import Answer, page_target
from tests.workers.floor import FAST, SECRET, WAIT_S, enqueue, new_account, query, wait_until
from tests.workers.proxy import PostgresProxy
from vendors.sandbox.client import Sandbox
from workers.poller import Poller
from workers.process import build_app
from workers.runtime import Runtime, Slots
from workers.servers import Servers


@pytest.fixture
def settings(database: str, sandbox: Sandbox) -> Settings:
    account = new_account()
    sandbox.set_account(account, any_customer=True)
    return Settings.from_env(
        {
            **FAST,
            "DATABASE_URL": database,
            "STRIPE_API_KEY": sandbox.api_key(account),
            "STRIPE_API_BASE": sandbox.url,
            "STRIPE_WEBHOOK_SECRET": SECRET,
            "OUTBOX_PAGERS": "none",
        }
    )


@contextmanager
def _runtime(settings: Settings, slots: int = 2) -> Iterator[Runtime]:
    runtime = Runtime(settings, slots=Slots(slots))
    yield runtime
    runtime.close()


def _statuses(settings: Settings) -> set[str]:
    rows = query(settings.database_url, "SELECT DISTINCT status FROM outbox.intents")
    return {row["status"] for row in rows}


def test_a_process_without_a_broker_sends_resolves_and_beats(
    settings: Settings, sandbox: Sandbox
) -> None:
    """Rule 14: a dead broker, and no beat at all."""
    account = settings.accounts["stripe", "default"].credential.removeprefix("sk_test_")
    sandbox.fault("lost_ack", account=account)
    enqueue(settings, 10)
    with _runtime(settings) as runtime:
        poller = Poller(runtime, lambda: False)
        poller.start()
        wait_until(lambda: _statuses(settings) == {"succeeded"})
        wait_until(
            lambda: (
                {
                    r["role"]
                    for r in query(settings.database_url, "SELECT role FROM outbox.heartbeats")
                }
                >= set(runtime.roles)
            )
        )
        poller.stop()
    assert sandbox.oracle(account)["violations"] == []


def test_a_process_sends_at_once_when_the_doorbell_rings(
    settings: Settings, redis_url: str
) -> None:
    """And not at its next tick, which is further away than this test waits."""
    rung = replace(
        settings,
        redis_url=redis_url,
        policy=replace(settings.policy, tick_drain_s=10 * WAIT_S, tick_expire_s=10 * WAIT_S),
    )
    outbox = Outbox(rung)
    with _runtime(rung) as runtime:
        runtime.identify()
        poller = Poller(runtime, lambda: False)
        poller.start()
        for number in (1, 2):
            enqueue(rung, 2)
            outbox.ring()
            wait_until(lambda: _statuses(rung) == {"succeeded"})
            assert len(query(rung.database_url, "SELECT id FROM outbox.intents")) == 2 * number
        poller.stop()
    outbox.close()


def test_a_job_is_taken_up_before_anybody_calls_it_stale(settings: Settings) -> None:
    """Where no beat runs, doctor and health would find one stale now and then."""
    with _runtime(settings) as runtime:
        for role in runtime.roles:
            runtime.run(role)
        assert runtime.late_roles() == []

        for role, period_s in runtime.roles.items():
            query(
                settings.database_url,
                "UPDATE outbox.heartbeats SET at = outbox.clock() - %(s)s * INTERVAL '1 second' "
                "WHERE role = %(role)s RETURNING role",
                {"role": role, "s": 2.5 * period_s},
            )
        assert set(runtime.late_roles()) == set(runtime.roles)


class _Failing(Runtime):
    """Fails at first, as while a migration has a table away."""

    failures = 0

    def due(self) -> bool:
        if self.failures < 3:
            self.failures += 1
            raise RuntimeError("a table is away")
        return super().due()


def test_a_poll_survives_what_it_did_not_expect(settings: Settings) -> None:
    runtime = _Failing(settings, slots=Slots(2))
    poller = Poller(runtime, lambda: False)
    enqueue(settings, 2)
    poller.start()
    wait_until(lambda: _statuses(settings) == {"succeeded"})
    assert runtime.failures == 3
    poller.stop()
    runtime.close()


def test_a_vendor_that_hangs_does_not_hold_up_the_jobs_of_a_lone_process(
    settings: Settings, sandbox: Sandbox
) -> None:
    account = settings.accounts["stripe", "default"].credential.removeprefix("sk_test_")
    sandbox.fault("hang", account=account)
    enqueue(settings, 32)
    with _runtime(settings) as runtime:
        poller = Poller(runtime, lambda: False)
        poller.start()
        wait_until(lambda: _statuses(settings) == {"in_flight"})
        wait_until(lambda: not runtime.late_roles())
        assert _statuses(settings) == {"in_flight"}
        poller.stop()
    sandbox.clear_faults(account)


def test_a_pager_that_hangs_does_not_hold_up_the_other_jobs(settings: Settings) -> None:
    """Look-ups, joins and ended leases waited for it, one page after the other."""
    with page_target() as target:
        target.last = Answer(202, hang=True)
        hanging = replace(settings, pagers=(f"webhook:{target.url}",), pager_secret="s" * 32)
        with _runtime(hanging) as runtime:
            with runtime.store.transaction() as tx:
                switches.doubt_clock(tx, "a question to page about")
            poller = Poller(runtime, lambda: False)
            poller.start()
            wait_until(lambda: target.requests)
            query(settings.database_url, "DELETE FROM outbox.heartbeats RETURNING role")
            wait_until(lambda: _late(settings) == {"page"})
            assert len(target.requests) == 1, "the page is still in its hands"
            target.stopping.set()
            poller.stop()


def test_a_process_whose_database_fell_silent_goes_on_sending_and_beating(
    settings: Settings, servers: Servers
) -> None:
    """A failover without a RST: what was connected hangs, new connections work."""
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as proxy,
    ):
        through = replace(
            settings, database_url=proxy.url(settings.database_url), statement_timeout_s=1.0
        )
        with _runtime(through) as runtime:
            poller = Poller(runtime, lambda: False)
            poller.start()
            enqueue(settings, 2)
            wait_until(lambda: _statuses(settings) == {"succeeded"} and not _late(settings))
            proxy.fall_silent()
            enqueue(settings, 2)
            query(settings.database_url, "DELETE FROM outbox.heartbeats RETURNING role")
            wait_until(lambda: _statuses(settings) == {"succeeded"} and not _late(settings))
            poller.stop()


def _late(settings: Settings) -> set[str]:
    """The roles that have not beaten."""
    rows = query(settings.database_url, "SELECT role FROM outbox.heartbeats")
    return set(periods_s(settings)) - {row["role"] for row in rows}


def _hold(slots: Slots, line: Connection) -> None:
    """In a child: takes a slot, says which, and holds it until it is told to end."""
    with slots.take() as number:
        line.send(number)
        line.recv()


# Python 3.12 warns of any fork of a process with threads.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_drains_never_take_the_last_child() -> None:
    slots, forking = Slots(2), multiprocessing.get_context("fork")

    def child() -> tuple[int | None, Connection, ForkProcess]:
        ours, theirs = forking.Pipe()
        process = forking.Process(target=_hold, args=(slots, theirs))
        process.start()
        return ours.recv(), ours, process

    children = [child() for _ in range(3)]
    assert [number for number, _, _ in children] == [0, 1, None]
    # One that is killed gives its slot back, one that ends its drain too.
    children[0][2].kill()
    children[0][2].join()
    children.append(child())
    assert children[-1][0] == 0
    for _, line, process in children[1:]:
        line.send(None)
        process.join()
    # Two threads of one process are two drains.
    for _ in range(2):
        with slots.take() as first, slots.take() as second, slots.take() as third:
            assert (first, second, third) == (0, 1, None)
        with slots.take() as first:
            with slots.take() as second:
                assert (first, second) == (0, 1)
            with slots.take() as again:
                assert again == 1


def test_a_stepped_clock_suspends_and_a_steady_one_does_not(settings: Settings) -> None:
    clock = settable_clock(settings.database_url)
    with _runtime(settings) as runtime:
        runtime.clock.look()
        clock.advance(4)
        runtime.clock.look()
        assert query(settings.database_url, "SELECT kind FROM outbox.switches") == []
        clock.advance(-3600)
        runtime.clock.look()
        assert query(settings.database_url, "SELECT kind FROM outbox.switches") == [
            {"kind": "clock"}
        ]
        (question,) = query(settings.database_url, "SELECT holder, reasons FROM outbox.escalations")
        assert question == {"holder": "clock", "reasons": ["clock"]}


@pytest.mark.parametrize("day", [(2026, 10, 25), (2026, 3, 29)])
def test_ticks_are_intervals_and_know_no_summer_time(
    settings: Settings, day: tuple[int, int, int]
) -> None:
    """B43: on the night of the clock change a crontab skips an hour; an interval does not."""
    app = build_app(settings)
    assert (app.conf.timezone, app.conf.enable_utc) == ("UTC", True)
    for tick in app.conf.beat_schedule.values():
        assert isinstance(tick["schedule"], float)
        every = schedule(timedelta(seconds=tick["schedule"]), app=app)
        last = datetime(*day, 0, 59, tzinfo=UTC)
        now = last + timedelta(seconds=tick["schedule"] + 1)
        every.nowfun = lambda now=now: now.astimezone(ZoneInfo("Europe/Paris"))
        assert every.is_due(last).is_due

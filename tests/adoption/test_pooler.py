"""All through PgBouncer in transaction mode: own sessions, the caller's, the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import Answer, Outbox, Scope, schema
from resolvers import joining
from resolvers.receiving import Receiver
from tests.adoption.pooler import SESSIONS, Pooler, program, running_pooler
from tests.adoption.served import ROOT, env_of
from tests.cli.desk import SCRIPT
from tests.resolvers.deliveries import signed
from tests.workers.floor import CARD, CHARGE, SECRET, Floor, open_floor, query, wait_until
from vendors.sandbox.client import Sandbox
from workers.servers import Servers

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(program() is None, reason="PgBouncer is not installed"),
]
SCOPE = Scope(tenant="acme", run_id="run")
# What the caller's own driver needs behind such a pooler; nothing of it is ours.
UNPREPARED = {"prepare_threshold": None}


@pytest.fixture(scope="module")
def pooler(servers: Servers) -> Iterator[Pooler]:
    with running_pooler(servers) as running:
        yield running


@pytest.fixture
def floor(database: str, pooler: Pooler, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(pooler.url(database), sandbox) as opened:
        yield opened


def args(invoice: str, **changes: Any) -> dict[str, Any]:
    return {**CARD, "invoice_id": invoice, **changes}


def plain(floor: Floor) -> str:
    return floor.settings.database_url.replace("+psycopg", "")


def command(floor: Floor, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=ROOT,
        env=env_of(floor, OUTBOX_PAGERS="none"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_own_sessions_keep_their_limits_in_every_transaction_on_whatever_server_session(
    floor: Floor,
) -> None:
    _each_session(floor, "SELECT 1 AS one")  # now there are several, which take turns
    pids: set[int] = set()
    for _ in range(12):
        with floor.store.transaction() as tx:
            shown = {
                name: next(iter((tx.one(f"SHOW {name}") or {}).values()))
                for name in (
                    "statement_timeout",
                    "lock_timeout",
                    "idle_in_transaction_session_timeout",
                    "timezone",
                    "transaction_isolation",
                )
            }
            row = tx.one("SELECT pg_backend_pid() AS pid, %(n)s::int AS n", {"n": 1}) or {}
            pids.add(row["pid"])
        assert list(shown.values()) == ["5s", "2s", "10s", "UTC", "read committed"]
    assert len(pids) > 1, "one server session served them all"
    assert _each_session(floor, "SELECT name FROM pg_prepared_statements") == [[]] * SESSIONS


async def _enqueued_async(floor: Floor) -> list[Answer]:
    engine = create_async_engine(floor.settings.database_url, connect_args=UNPREPARED)
    outbox = Outbox(floor.settings)
    answers = []
    for n in range(8):
        async with AsyncSession(engine) as session, session.begin():
            answers.append(await outbox.aenqueue(session, CHARGE, SCOPE, args(f"async_{n}")))
    await engine.dispose()
    outbox.close()
    return answers


def test_a_charge_is_enqueued_sent_settled_and_consumed_once_through_the_pooler(
    floor: Floor,
) -> None:
    outbox = Outbox(floor.settings)
    engine = create_engine(floor.settings.database_url, connect_args=UNPREPARED)
    answers = asyncio.run(_enqueued_async(floor))
    # Often enough on one connection that a driver which prepares statements would.
    with psycopg.connect(plain(floor), prepare_threshold=None) as raw:
        for n in range(8):
            answers.append(outbox.enqueue(raw, CHARGE, SCOPE, args(f"raw_{n}")))
            raw.commit()
    for n in range(8):
        with Session(engine) as session, session.begin():
            answers.append(outbox.enqueue(session, CHARGE, SCOPE, args(f"session_{n}")))
    floor.sandbox.fault("lost_ack", account=floor.account, times=3)
    floor.settle()
    assert {outbox.wait(a).told for a in answers} == {"settled"}
    assert floor.statuses() == {"succeeded": 24}
    assert {floor.effects(a.intent_id) for a in answers} == {1}
    taken: list[int] = []
    for _ in range(8):
        with Session(engine) as session, session.begin():
            taken += [s.id for s in outbox.settlements(session, "billing", limit=5)]
    assert len(taken) == len(set(taken)) == 24
    engine.dispose()
    outbox.close()


def test_two_consumers_and_an_epoch_take_locks_that_end_with_their_transactions(
    floor: Floor,
) -> None:
    outbox = Outbox(floor.settings)
    with psycopg.connect(plain(floor), prepare_threshold=None) as raw:
        for turn in ("one", "two"):
            outbox.advance_epoch(raw, "acme", "run", turn)
            raw.commit()
        for consumer in ("billing", "mail"):
            assert outbox.settlements(raw, consumer) == []
            raw.commit()
    assert floor.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == []
    outbox.close()


def _each_session(floor: Floor, *statements: str) -> list[list[dict[str, Any]]]:
    """What each server session answers, all of them held open at once."""
    answers = []
    with contextlib.ExitStack() as held:
        for _ in range(SESSIONS):
            raw = held.enter_context(
                psycopg.connect(plain(floor), row_factory=dict_row, prepare_threshold=None)
            )
            answers.append([row for s in statements for row in raw.execute(s.encode()).fetchall()])
    return answers


def test_nothing_is_left_in_a_server_session_for_the_next_client(floor: Floor) -> None:
    shown = [f"SHOW {n}" for n in ("statement_timeout", "lock_timeout", "timezone", "datestyle",
             "idle_in_transaction_session_timeout", "transaction_isolation")]  # fmt: skip
    before = _each_session(floor, *shown)
    floor.enqueue(3)
    floor.settle()
    assert _each_session(floor, *shown) == before
    left = (
        "SELECT name FROM pg_prepared_statements",
        "SELECT name FROM pg_cursors WHERE is_holdable",
        "SELECT pg_listening_channels() AS name",
        "SELECT relname AS name FROM pg_class WHERE relpersistence = 't'",
    )
    assert _each_session(floor, *left) == [[]] * SESSIONS


def test_more_threads_than_server_sessions_take_turns(floor: Floor) -> None:
    seen: list[int] = []

    def work() -> None:
        for _ in range(10):
            with floor.store.transaction() as tx:
                seen.append((tx.one("SELECT pg_backend_pid() AS pid") or {})["pid"])

    threads = [threading.Thread(target=work) for _ in range(3 * SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 30 * SESSIONS
    assert 1 < len(set(seen)) <= SESSIONS


def test_a_webhook_is_stored_and_joined_through_the_pooler(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    intent_id = floor.one()
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    (found,) = floor.sandbox.objects(floor.account, "payment_intents")
    event = {
        "id": "evt_pooled",
        "object": "event",
        "type": "payment_intent.succeeded",
        "created": int(floor.sandbox.now(floor.account)),
        "livemode": False,
        "request": {"id": "req_1", "idempotency_key": None},
        "data": {"object": found},
    }
    receiver = Receiver(floor.settings)
    delivery = signed(json.dumps(event), int(floor.sandbox.now(floor.account)), SECRET)
    assert receiver.receive("stripe", "default", delivery.headers, delivery.body)[0] == 200
    receiver.close()
    joining.join_once(floor.store, floor.directory)
    assert floor.status(intent_id) == "succeeded"


def test_the_schema_is_brought_up_and_checked_through_the_pooler(
    servers: Servers, pooler: Pooler
) -> None:
    query(servers.database_url, "CREATE DATABASE pooled")
    url = pooler.url(servers.database_url.replace("@/postgres?", "@/pooled?"))
    for _ in range(2):
        schema.upgrade(url)
    assert schema.current(url) == schema.head()
    query(servers.database_url, "DROP DATABASE pooled WITH (FORCE)")


def test_the_command_line_works_through_the_pooler(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    (intent_id,) = floor.enqueue(1)
    floor.drain()
    checked = command(floor, "schema", "check", "--json")
    assert (checked.returncode, json.loads(checked.stdout)["ok"]) == (0, True)
    listed = json.loads(command(floor, "intent", "list", "--json").stdout)["items"]
    assert [(i["id"], i["status"]) for i in listed] == [(str(intent_id), "unknown")]
    assert command(floor, "intent", "history", str(intent_id)).returncode == 0
    assert command(floor, "resolve", "--once").returncode == 0
    floor.settle()
    floor.sql("CREATE TABLE invoices (id text PRIMARY KEY, status text)")
    consume = ("consume", "tests.examples.billing:apply", "--consumer", "billing", "--once")
    assert [command(floor, *consume).returncode for _ in range(2)] == [0, 0]
    assert floor.sql("SELECT 1 FROM outbox.deliveries WHERE consumed_at IS NULL") == []
    assert command(floor, "doctor", "--json").returncode == 3  # the floor's clock can be moved
    assert command(floor, "health").returncode in (0, 3)


def test_a_worker_behind_the_pooler_sends_by_its_poll_without_any_wake_up(floor: Floor) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "worker"],
        env=env_of(floor, OUTBOX_PAGERS="none"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        floor.enqueue(3)
        wait_until(lambda: floor.statuses() == {"succeeded": 3} or process.poll() is not None, 60)
        assert floor.statuses() == {"succeeded": 3}
        assert len(floor.posts()) == 3
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said

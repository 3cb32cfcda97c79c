"""Throttled, unreachable, refused at the door: none of it is the intent's fault."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from outbox import Settings
from outbox.doorbell import Doorbell
from outbox.store import switches
from outbox.store.connection import Store
from resolvers.directory import Directory
from resolvers.identifying import identify
from tests.workers.floor import (
    PRODUCTION,
    READS,
    Floor,
    enqueue,
    new_account,
    open_floor,
    query,
    wait_until,
)
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from workers.sender import Sender


def _posts(sandbox: Sandbox, account: str) -> int:
    return len([r for r in sandbox.requests(account) if r["method"] == "POST"])


def test_throttling_slows_a_hundred_rows_down_and_fails_none(floor: Floor) -> None:
    """B30: 429 before any execution."""
    floor.sandbox.fault("lock_timeout_429", account=floor.account, attempts=[1, 2])
    ids = floor.enqueue(100)
    floor.settle()
    assert floor.statuses() == {"succeeded": 100}
    assert all(floor.row(i)["doubt"] == 0 for i in ids[:5])
    assert floor.outcomes(ids[0]) == ["not_sent", "not_sent", "receipt"]


def test_a_retry_after_is_waited_for(database: str, sandbox: Sandbox) -> None:
    """B30: the vendor's own wait is longer than ours."""
    with open_floor(database, sandbox, PRODUCTION) as floor:
        sandbox.fault("rate_limited_429", account=floor.account, attempts=[1], after_s=60)
        intent_id = floor.one()
        floor.drain()
        row = floor.row(intent_id)
        assert (row["status"], row["not_sent_count"]) == ("pending", 1)
        floor.advance(55)
        assert floor.drain() == 0
        floor.advance(6)
        assert floor.drain() == 1
        assert floor.status(intent_id) == "succeeded"


def test_the_back_off_doubles_in_the_database_up_to_its_limit(
    database: str, sandbox: Sandbox
) -> None:
    """B02, B30: the wait is a time in Postgres and not a message with a countdown."""
    with open_floor(database, sandbox, PRODUCTION) as floor:
        sandbox.fault("lock_timeout_429", account=floor.account)
        intent_id = floor.one()
        waits = []
        for _ in range(9):
            assert floor.drain() == 1
            (row,) = floor.sql(
                "SELECT EXTRACT(EPOCH FROM i.due_at - a.ended_at)::float8 AS wait_s "
                "FROM outbox.intents i, outbox.attempts a ORDER BY a.id DESC LIMIT 1"
            )
            waits.append(row["wait_s"])
            floor.advance(row["wait_s"] + 0.5)
        # The test's chance is in the middle, so there is no jitter.
        assert [round(w) for w in waits] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        sandbox.clear_faults(floor.account)
        floor.drain()
        assert floor.status(intent_id) == "succeeded"


def test_jitter_spreads_the_back_off_by_a_fifth(database: str, sandbox: Sandbox) -> None:
    with open_floor(database, sandbox, PRODUCTION) as floor:
        sandbox.fault("lock_timeout_429", account=floor.account)
        for chance, least, most in ((0.0, 0.75, 0.85), (1.0, 1.15, 1.25)):
            sender = Sender(
                floor.store,
                floor.directory,
                Doorbell("", timeout_s=0.1),
                owner="jitter",
                stopping=lambda: False,
                jitter=partial(float, chance),
            )
            floor.senders.append(sender)
            intent_id = floor.one()
            sender.drain(5.0)
            (row,) = floor.sql(
                "SELECT EXTRACT(EPOCH FROM i.due_at - a.ended_at)::float8 AS wait_s "
                "FROM outbox.intents i JOIN outbox.attempts a ON a.intent_id = i.id "
                "WHERE i.id = %(id)s",
                {"id": intent_id},
            )
            assert least < row["wait_s"] < most


def test_a_key_that_is_in_use_is_patience_and_ends_in_one_success(
    database: str, sandbox: Sandbox
) -> None:
    """B30: the first attempt lasts and commits, the second is told that it is in use."""
    with open_floor(database, sandbox, OUTBOX_RESENDS_S="0.05,0.1,0.1") as floor:
        sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
        sandbox.fault("in_use_409", account=floor.account, attempts=[1], after_s=3600)
        intent_id = floor.one()

        def told_in_use() -> bool:
            floor.round()
            return 409 in [p["status"] for p in floor.posts()]

        wait_until(told_in_use)
        sandbox.release(floor.account)
        floor.settle()
        row = floor.row(intent_id)
        assert (row["status"], row["failure_code"]) == ("succeeded", None)
        assert floor.effects(intent_id) == 1


def test_throttling_of_a_row_in_doubt_waits_as_long_as_the_vendor_asks(
    database: str, sandbox: Sandbox
) -> None:
    with open_floor(database, sandbox, PRODUCTION) as floor:
        sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
        sandbox.fault("lost_request", account=floor.account, attempts=[1])
        sandbox.fault("rate_limited_429", account=floor.account, attempts=[2], after_s=600)
        intent_id = floor.one()
        floor.drain()
        for _ in range(6):
            floor.advance(30)
            floor.look()
            floor.drain()
        assert len(floor.posts()) == 2
        assert floor.row(intent_id)["doubt"] == 1
        floor.advance(600)
        floor.look()
        floor.drain()
        assert floor.status(intent_id) == "succeeded"


def test_refused_credentials_pause_one_account_once_and_no_other(
    database: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    refused, other = new_account(), new_account()
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(
        "".join(
            f'[stripe.{name}]\ncredential = "{sandbox.api_key(account)}"\n'
            f'base_url = "{sandbox.url}"\n'
            for name, account in (("default", refused), ("second", other))
        )
    )
    for account in (refused, other):
        sandbox.set_account(account, any_customer=True)
    settings = Settings.from_env(
        {
            "DATABASE_URL": database,
            "OUTBOX_ACCOUNTS": str(accounts),
            "OUTBOX_PROFILE": "demo",
        }
    )
    built = build("stripe", connect_s=1.0, read_s=2.0)
    store = Store(settings)
    directory = Directory(settings, {"stripe": built})
    assert list(identify(store, directory, 10.0)) == []
    sender = Sender(
        store,
        directory,
        Doorbell("", timeout_s=0.1),
        owner="one",
        stopping=lambda: False,
        jitter=lambda: 0.5,
    )
    sandbox.fault("unauthorized_401", account=refused)
    waiting = enqueue(settings, 20)
    sender.drain(5.0)
    refused_posts = _posts(sandbox, refused)
    assert refused_posts <= settings.policy.batch
    (switch,) = query(database, "SELECT holder, kind FROM outbox.switches")
    assert switch == {"holder": "vendor:stripe/default", "kind": "pause"}
    (question,) = query(database, "SELECT holder, reasons FROM outbox.escalations")
    assert question == {"holder": "vendor:stripe/default", "reasons": ["paused"]}
    # Nothing more is sent there, and all rows are as unsent as before.
    query(database, "UPDATE outbox.intents SET due_at = outbox.clock()")
    assert sender.drain(1.0) == 0
    assert _posts(sandbox, refused) == refused_posts
    states = query(database, "SELECT status, doubt FROM outbox.intents GROUP BY 1, 2")
    assert states == [{"status": "pending", "doubt": 0}]

    others = enqueue(settings, 3, account="second")
    assert sender.drain(5.0) == 3
    assert _posts(sandbox, other) == 3

    sandbox.clear_faults(refused)
    with store.transaction() as tx:
        assert switches.resume(tx, "stripe", "default", by="jane", reason="new key")
    assert sender.drain(10.0) == 20
    done = query(database, "SELECT id FROM outbox.intents WHERE status = 'succeeded'")
    assert {row["id"] for row in done} == {*waiting, *others}
    (question,) = query(database, "SELECT verdict FROM outbox.escalations")
    assert question["verdict"] == "resumed"
    sender.close()
    store.close()
    built.close()

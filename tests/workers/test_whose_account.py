"""A key that one vendor account knows is new to another: no row is ever sent for two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from outbox import Settings
from outbox.doorbell import Doorbell
from resolvers.directory import Directory
from resolvers.identifying import identify
from resolvers.looking import Looker
from tests.workers.floor import FAST, Floor, enqueue, new_account, query, wait_until
from vendors.sandbox.client import Sandbox
from workers.poller import Poller
from workers.runtime import Runtime, Slots
from workers.sender import Sender


def _settings(database: str, sandbox: Sandbox, account: str) -> Settings:
    sandbox.set_account(account, any_customer=True)
    env = {"STRIPE_API_KEY": sandbox.api_key(account), "STRIPE_API_BASE": sandbox.url}
    return Settings.from_env({"DATABASE_URL": database, "OUTBOX_PAGERS": "none", **FAST, **env})


@contextmanager
def _exchanged(floor: Floor) -> Iterator[tuple[str, Directory]]:
    """Another process, in whose environment the key is of another vendor account."""
    other = new_account()
    directory = Directory.of(_settings(floor.settings.database_url, floor.sandbox, other))
    yield other, directory
    directory.close()


def _work(floor: Floor, directory: Directory) -> None:
    """Some rounds of a process with that directory."""
    looker = Looker(floor.store, directory)
    sender = Sender(
        floor.store,
        directory,
        Doorbell("", timeout_s=0.1),
        owner="exchanged",
        stopping=lambda: False,
        jitter=lambda: 0.5,
    )
    for _ in range(5):
        floor.advance(0.3)
        looker.once()
        sender.drain(2.0)
    sender.close()
    looker.close()


@pytest.mark.parametrize("learned", ["nothing", "what it was the last time"])
def test_a_credential_exchanged_while_a_row_is_in_doubt_makes_no_second_effect(
    floor: Floor, learned: str
) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    with _exchanged(floor) as (other, directory):
        if learned != "nothing":
            account = directory.accounts["stripe", "default"]
            directory.learn("stripe", replace(account, vendor_account=f"acct_{floor.account}"))
        _work(floor, directory)
    assert floor.status(intent_id) == "unknown"
    assert floor.sandbox.effects(other) == []
    assert {r["method"] for r in floor.sandbox.requests(other)} == {"GET"}
    assert [e["reasons"] for e in floor.escalations()] == [["paused"]]


def test_a_name_with_unsettled_rows_is_not_taken_over_by_another_account(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    floor.one()
    floor.drain()
    with _exchanged(floor) as (other, directory):
        ((vendor, account, problem),) = identify(floor.store, directory, 10.0)
        assert (vendor, account.vendor_account) == ("stripe", f"acct_{other}")
        assert f"was acct_{floor.account}" in problem
        assert directory.sendable() == ()
        floor.settle()
        assert list(identify(floor.store, directory, 10.0)) == []
        assert [s.account.vendor_account for s in directory.sendable()] == [f"acct_{other}"]


@contextmanager
def _process(settings: Settings) -> Iterator[Runtime]:
    runtime = Runtime(settings, slots=Slots(1))
    poller = Poller(runtime, lambda: False)
    poller.start()
    yield runtime
    poller.stop()
    runtime.close()


def _rows(settings: Settings) -> Mapping[str, object]:
    (row,) = query(settings.database_url, "SELECT status, vendor_account FROM outbox.intents")
    return row


def test_nothing_is_sent_before_the_vendor_has_said_whose_account_it_is(
    database: str, sandbox: Sandbox
) -> None:
    account = new_account()
    settings = _settings(database, sandbox, account)
    sandbox.fault("unavailable_503", account=account, endpoint="GET /v1/account")
    enqueue(settings)
    with _process(settings):
        wait_until(lambda: len(sandbox.requests(account)) > 3)
        assert {r["method"] for r in sandbox.requests(account)} == {"GET"}
        assert _rows(settings) == {"status": "pending", "vendor_account": None}
        sandbox.clear_faults(account)
        wait_until(lambda: _rows(settings)["status"] == "succeeded")
    assert _rows(settings)["vendor_account"] == f"acct_{account}"
    remembered = query(database, "SELECT vendor_account FROM outbox.accounts")
    assert remembered == [{"vendor_account": f"acct_{account}"}]


def test_a_credential_that_may_not_say_whose_it_is_pauses_its_account_at_once(
    database: str, sandbox: Sandbox
) -> None:
    account = new_account()
    settings = _settings(database, sandbox, account)
    sandbox.fault("forbidden_403", account=account, endpoint="GET /v1/account")
    enqueue(settings)
    with _process(settings):
        wait_until(lambda: query(database, "SELECT 1 FROM outbox.escalations"))
    (switch,) = query(database, "SELECT kind, reason FROM outbox.switches")
    assert switch["kind"] == "pause"
    assert "http_403" in switch["reason"]
    assert {r["method"] for r in sandbox.requests(account)} == {"GET"}

"""Two credentials under one name, and a name that is paused: what `doctor` tells of them, and what
a worker is told that starts with the other one. No settings here say whose an account is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from outbox import Settings, SettingsError
from outbox.store import switches
from resolvers import holding
from resolvers.health import release
from tests.cli import test_doctor
from tests.cli.desk import Desk
from tests.cli.test_doctor import MIGRATIONS_CLOCK, ROLES
from workers.runtime import Runtime, Slots
from workers.startup import checked

NAME = "stripe/default"


@pytest.fixture
def ours(desk: Desk) -> Desk:
    """A desk of whose name a worker learned whose it is, that has sent one write, and of which
    nothing is to be said."""
    desk.sql(MIGRATIONS_CLOCK)
    checked(desk.settings)
    desk.succeeded()
    assert found(desk) == {}
    return desk


def found(desk: Desk, **env: str) -> dict[str, tuple[int, list[str]]]:
    """What is not as it must be, of jobs that have just run however slow the machine is."""
    with desk.store.transaction() as tx:
        for role in ROLES:
            switches.beat(tx, role, "worker-1", {"release": release()})
    return test_doctor.found(desk, **env)


def detail(desk: Desk, check: str) -> str:
    items = desk.invoke("doctor", "--json").json["items"]
    return next(str(item["detail"]) for item in items if item["check"] == check)


def theirs(desk: Desk, *, live: bool = False) -> dict[str, str]:
    """What another host says: under the same name the key of another vendor account, or of the
    same in the other mode."""
    whose = desk.vendor_account + ("" if live else "b")
    return {"STRIPE_API_KEY": desk.sandbox.api_key(whose, live=live), "OUTBOX_PAGERS": "none"}


def of_host(desk: Desk, said: Mapping[str, str]) -> Settings:
    return Settings.from_env({**desk.env, **said})


@contextmanager
def running(desk: Desk, said: Mapping[str, str] | None = None) -> Iterator[None]:
    """A worker that has started with these settings and runs its jobs."""
    runtime = Runtime(of_host(desk, said or {}), slots=Slots(1))
    runtime.identify()
    runtime.run("expire")
    yield
    runtime.close()


def refused(settings: Settings) -> str:
    with pytest.raises(SettingsError) as problems:
        checked(settings)
    return dict(problems.value.problems)[f"account {NAME}"]


def test_what_is_sent_for_one_account_after_its_name_went_to_another_is_found_on_both_hosts(
    ours: Desk,
) -> None:
    checked(of_host(ours, theirs(ours)))
    assert found(ours) == found(ours, **theirs(ours)) == {}, "it was changed in good order"
    split, _ = ours.succeeded()
    wrong = {"sent_for_another_owner": (1, [str(split)])}
    assert found(ours) == found(ours, **theirs(ours)) == wrong
    told = detail(ours, "sent_for_another_owner")
    assert f"{NAME} is {ours.vendor_account}b (test) since" in told
    assert f"1 were sent for {ours.vendor_account} (test) after that" in told
    checked(ours.settings)
    assert found(ours) == {}, "the other host was put right and ours started again"


def test_a_split_of_long_ago_is_history(ours: Desk) -> None:
    checked(of_host(ours, theirs(ours)))
    ours.succeeded()
    ours.sql("UPDATE outbox.intents SET settled_at = settled_at - INTERVAL '25 hours'")
    assert found(ours) == {}


def test_two_processes_that_started_side_by_side_for_two_accounts_are_found_before_they_send(
    ours: Desk,
) -> None:
    with running(ours):
        ours.sql("UPDATE outbox.accounts SET vendor_account = vendor_account || 'b'")
        wrong = {"account_changed": (1, [NAME])}
        assert found(ours) == found(ours, **theirs(ours)) == wrong
        told = detail(ours, "account_changed")
        assert f"sends for {ours.vendor_account} (test) under this name" in told


@pytest.mark.parametrize("learned", ["theirs", "ours"])
def test_doubt_of_an_account_whose_host_is_gone_is_found_from_the_other_one(
    ours: Desk, learned: str
) -> None:
    with running(ours, theirs(ours)):
        doubtful, _ = ours.lost()
        if learned == "ours":
            ours.sql("UPDATE outbox.accounts SET vendor_account = rtrim(vendor_account, 'b')")
        wrong = found(ours, **theirs(ours))
    if learned == "theirs":
        assert wrong == {"mode_or_owner_changed": (1, [str(doubtful)])}
    else:
        assert wrong == {"account_changed": (1, [NAME])}


@pytest.mark.parametrize("live", [False, True], ids=["another account", "another mode"])
def test_a_worker_does_not_take_a_name_over_while_another_sends_under_it(
    ours: Desk, *, live: bool
) -> None:
    with running(ours):
        problem = refused(of_host(ours, theirs(ours, live=live)))
        assert f"sends for {ours.vendor_account} (test) under this name" in problem
        (kept,) = ours.sql("SELECT mode, vendor_account FROM outbox.accounts")
        assert kept == {"mode": "test", "vendor_account": ours.vendor_account}
        checked(ours.settings)
        assert found(ours) == {}
    ours.sql("UPDATE outbox.heartbeats SET at = at - INTERVAL '3 min'")
    checked(of_host(ours, theirs(ours, live=live)))


def test_a_worker_whose_vendor_said_late_whose_it_is_pauses_the_name_instead(ours: Desk) -> None:
    with running(ours), running(ours, theirs(ours)):
        (switch,) = ours.sql("SELECT kind, reason FROM outbox.switches")
        assert switch["kind"] == "pause"
        assert f"sends for {ours.vendor_account} (test) under this name" in switch["reason"]
        (question,) = ours.sql("SELECT reasons FROM outbox.escalations WHERE closed_at IS NULL")
        assert question["reasons"] == ["paused"]


def test_a_pause_that_holds_writes_is_found_with_what_to_type(ours: Desk) -> None:
    with ours.store.transaction() as tx:
        why = "http_401: the credential was refused"
        switches.pause(tx, "stripe", "default", kind="pause", reason=why, by="sender")
    assert "account_paused" not in found(ours, OUTBOX_PAGERS="none"), "it holds nothing"
    ours.enqueue()
    ours.enqueue()
    assert found(ours, OUTBOX_PAGERS="none") == {"account_paused": (1, [NAME])}
    told = detail(ours, "account_paused")
    assert f"{NAME}: 2 writes wait, paused by sender: {why}" in told
    assert f"`outbox vendor resume {NAME} --reason ...`" in told
    holding.resume(
        ours.store, ours.directory, "stripe", "default", by="alice", reason="a new credential"
    )
    assert found(ours, OUTBOX_PAGERS="none") == {}

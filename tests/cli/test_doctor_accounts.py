"""Two credentials under one name: what `doctor` tells of them. No settings here say whose an
account is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from outbox import Settings
from outbox.store import switches
from resolvers.health import release
from tests.cli.desk import Desk
from tests.cli.test_doctor import MIGRATIONS_CLOCK, ROLES, found
from workers.runtime import Runtime, Slots
from workers.startup import checked

NAME = "stripe/default"


@pytest.fixture
def ours(desk: Desk) -> Desk:
    """A desk of whose name a worker learned whose it is, that has sent one write, and of which
    nothing is to be said."""
    desk.sql(MIGRATIONS_CLOCK)
    with desk.store.transaction() as tx:
        for role in ROLES:
            switches.beat(tx, role, "worker-1", {"release": release()})
    checked(desk.settings)
    desk.succeeded()
    assert found(desk) == {}
    return desk


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


def test_what_is_sent_for_one_account_after_its_name_went_to_another_is_found_on_both_hosts(
    ours: Desk,
) -> None:
    checked(of_host(ours, theirs(ours)))
    assert found(ours) == found(ours, **theirs(ours)) == {}, "it was changed in good order"
    split, _ = ours.succeeded()
    wrong = {"sent_for_another_owner": (1, [str(split)])}
    assert found(ours) == found(ours, **theirs(ours)) == wrong
    (told,) = ours.invoke("doctor", "--json").json["items"]
    assert f"{NAME} is {ours.vendor_account}b (test) since" in told["detail"]
    assert f"1 were sent for {ours.vendor_account} (test) after that" in told["detail"]
    checked(ours.settings)
    assert found(ours) == {}, "the other host was put right and ours started again"


def test_a_split_of_long_ago_is_history(ours: Desk) -> None:
    checked(of_host(ours, theirs(ours)))
    ours.succeeded()
    ours.sql("UPDATE outbox.intents SET settled_at = settled_at - INTERVAL '25 hours'")
    assert found(ours) == {}


def test_doubt_of_an_account_whose_host_is_gone_is_found_from_the_other_one(ours: Desk) -> None:
    with running(ours, theirs(ours)):
        doubtful, _ = ours.lost()
        wrong = {"mode_or_owner_changed": (1, [str(doubtful)])}
        assert found(ours, **theirs(ours)) == wrong

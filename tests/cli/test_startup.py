"""What forbids a start, and what is remembered from one."""

from __future__ import annotations

import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from outbox import Settings, SettingsError
from outbox.contract import Account
from tests.cli.desk import Desk
from tests.cli.test_doctor import MIGRATIONS_CLOCK
from tests.vendors.raw_server import RawServer
from workers.startup import checked, foreign_packages


def problems(settings: Settings) -> dict[str, str]:
    with pytest.raises(SettingsError) as refused:
        checked(settings)
    return dict(refused.value.problems)


def live(desk: Desk) -> Settings:
    env = {
        **desk.env,
        "STRIPE_API_KEY": desk.sandbox.api_key(desk.vendor_account, live=True),
        "OUTBOX_PAGERS": "none",
    }
    return Settings.from_env(env)


def test_a_first_start_remembers_what_each_account_stands_for(desk: Desk) -> None:
    checked(desk.settings)
    (row,) = desk.sql("SELECT * FROM outbox.accounts")
    assert (row["vendor"], row["account"], row["mode"]) == ("stripe", "default", "test")
    assert row["vendor_account"] == desk.vendor_account


def test_a_start_asks_the_vendor_whose_the_accounts_are_that_nobody_said_it_of(desk: Desk) -> None:
    started = checked(desk.settings)
    assert started.accounts["stripe", "default"].vendor_account == desk.vendor_account


def test_a_start_goes_on_with_what_an_account_was_where_its_vendor_does_not_answer(
    desk: Desk,
) -> None:
    silent = Settings.from_env({**desk.env, "STRIPE_API_BASE": "http://127.0.0.1:1"})
    assert checked(silent).accounts["stripe", "default"].vendor_account == ""
    checked(desk.settings)
    started = checked(silent)
    assert started.accounts["stripe", "default"].vendor_account == desk.vendor_account


def test_a_credential_of_another_account_is_refused_while_rows_are_unsettled(desk: Desk) -> None:
    checked(desk.settings)
    desk.lost()
    other = {"STRIPE_API_KEY": desk.sandbox.api_key(desk.vendor_account + "b")}
    problem = problems(Settings.from_env({**desk.env, **other}))["account stripe/default"]
    assert desk.vendor_account in problem
    assert "give the new credentials another name" in problem


def test_an_account_that_changes_its_mode_under_unsettled_rows_is_refused(desk: Desk) -> None:
    checked(desk.settings)
    desk.lost()
    desk.sql(MIGRATIONS_CLOCK)
    assert "give the new credentials another name" in problems(live(desk))["account stripe/default"]
    (row,) = desk.sql("SELECT mode FROM outbox.accounts")
    assert row["mode"] == "test"


def test_a_tests_clock_is_refused_with_a_live_credential(desk: Desk) -> None:
    assert "clock" in problems(live(desk))["DATABASE_URL"]
    desk.sql(MIGRATIONS_CLOCK)
    checked(live(desk))


def test_every_reason_is_told_at_once(desk: Desk) -> None:
    desk.sql("UPDATE outbox.alembic_version SET version_num = '0000'")
    wrong = replace(live(desk), pagers=None, profile="demo")
    assert set(problems(wrong)) == {"OUTBOX_PAGERS", "OUTBOX_PROFILE", "DATABASE_URL"}


def test_another_distribution_that_claims_one_of_our_names_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(foreign_packages()) == []
    info = tmp_path / "their_app-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-app\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("workers\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(tmp_path) in sys.path
    ((name, problem),) = foreign_packages()
    assert name == "package workers"
    assert "their-app" in problem
    assert "virtual environment" in problem


def test_accounts_are_asked_about_side_by_side_where_their_vendor_hangs(desk: Desk) -> None:
    """A worker with five of them was ready after half a minute, and `outbox up` gave up on it."""
    together = threading.Barrier(5)
    passed: list[int] = []

    def hang(_connection: socket.socket, _request: bytes) -> None:
        together.wait(30)  # each waits until all five are asked
        passed.append(1)
        ended.wait(30)

    ended = threading.Event()
    names = [f"n{number}" for number in range(5)]
    with RawServer(hang) as server:
        accounts = {
            ("stripe", name): Account(
                name, "test", credential=f"sk_test_{name}", base_url=server.url
            )
            for name in names
        }
        for name in names:
            desk.sql(
                "INSERT INTO outbox.accounts VALUES ('stripe', %(name)s, 'test', %(owner)s, now())",
                {"name": name, "owner": f"acct_{name}"},
            )
        started = checked(replace(desk.settings, accounts=accounts))
        ended.set()
    assert passed == [1] * 5
    owners = {name: account.vendor_account for (_, name), account in started.accounts.items()}
    assert owners == {name: f"acct_{name}" for name in names}

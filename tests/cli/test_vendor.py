"""Accounts: whose credential it is, and letting go only what somebody has seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.cli.ran import WAIT_S, ended


def test_the_vendor_says_whose_credential_it_is(desk: Desk) -> None:
    ran = desk.run("vendor", "check", "stripe/default", "--json")
    assert ran.code == 0
    (item,) = ran.json["items"]
    assert (item["vendor_account"], item["ok"]) == (desk.vendor_account, True)


def test_a_credential_of_another_account_is_found(desk: Desk) -> None:
    ran = desk.invoke("vendor", "check", "--json", STRIPE_ACCOUNT_ID="acct_somebody_else")
    assert ran.code == 3
    (item,) = ran.json["items"]
    assert desk.vendor_account in item["problem"]
    assert "acct_somebody_else" in item["problem"]


def test_an_account_without_credentials_here_is_not_found(desk: Desk) -> None:
    assert desk.invoke("vendor", "check", "stripe/backup").code == 5


def test_resuming_shows_what_would_go_out_at_once(desk: Desk) -> None:
    desk.enqueue(amount=1000)
    desk.enqueue(amount=500, tenant="globex")
    assert desk.invoke("vendor", "pause", "stripe/default", "--reason", "x").code == 0
    no = desk.terminal("vendor", "resume", "stripe/default", "--reason", "over", answer="n\n")
    assert no.code == 7
    assert "2 intents of 2 tenants" in no.err
    assert "1500 usd" in no.err
    assert desk.claim() == []
    yes = desk.terminal("vendor", "resume", "stripe/default", "--reason", "over", answer="y\n")
    assert yes.code == 0
    assert len(desk.claim()) == 2


def test_a_pause_says_and_pages_how_many_writes_wait_and_nothing_else(
    desk: Desk, tmp_path: Path
) -> None:
    pages = tmp_path / "pages.jsonl"
    desk.env["OUTBOX_PAGERS"] = f"file:{pages}"
    for count, words in enumerate(("no writes waiting", "1 write waiting", "2 writes waiting")):
        said = desk.invoke("vendor", "pause", "stripe/default", "--reason", "incident").out
        assert said.endswith(f"paused stripe/default: {count} writes wait\n")
        desk.invoke("resolve", "--once")
        page = json.loads(pages.read_text().splitlines()[-1])
        assert (page["action"], page["details"]["waiting"]) == ("trigger", count)
        assert f"sending is paused, {words} [paused]" in page["summary"]
        desk.invoke("vendor", "resume", "stripe/default", "--reason", "over", "--yes")
        desk.invoke("resolve", "--once")
        desk.enqueue()


def test_a_dry_run_pauses_nothing(desk: Desk) -> None:
    ran = desk.invoke("vendor", "pause", "stripe/default", "--reason", "x", "--dry-run", "--json")
    assert (ran.code, ran.json["dry_run"], ran.json["changed"]) == (0, True, False)
    assert desk.sql("SELECT * FROM outbox.switches") == []
    assert desk.invoke("vendor", "list", "--json").json["items"][0]["state"] == "open"


@pytest.mark.heavy
def test_every_adapter_is_held_to_its_contract_without_asking_any_vendor(desk: Desk) -> None:
    checking = desk.start(
        "vendor", "check", "--all", "--json", DATABASE_URL="postgres://nowhere:1/x"
    )
    ran = ended(checking, limit_s=10 * WAIT_S)  # a suite of 164 checks, several vendors' processes
    assert ran.code == 0
    assert ran.json["schema"] == 1
    assert ran.json["ok"] is True
    assert {row["vendor"] for row in ran.json["rows"]} >= {"stripe", "smtp", "payments"}
    assert all(row["ok"] for row in ran.json["rows"])

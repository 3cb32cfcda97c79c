"""`resolve --once` and `config show`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.desk import Desk


def test_one_round_of_the_resolvers_finds_what_landed(desk: Desk) -> None:
    landed, object_id = desk.lost(landed=True)
    due = desk.invoke("resolve", "--once", "--dry-run", "--json").json["items"]
    assert {row["job"]: row["due"] for row in due}["resolve"] == 1
    assert desk.row(landed).status == "unknown"
    ran = desk.run("resolve", "--once", "--json")
    assert ran.code == 0
    assert {row["job"]: row["done"] for row in ran.json["items"]}["resolve"] == 1
    row = desk.row(landed)
    assert (row.status, row.receipt_id) == ("succeeded", object_id)


def test_one_round_expires_escalates_and_pages(desk: Desk, tmp_path: Path) -> None:
    desk.enqueue()
    desk.claim()
    desk.forward(desk.settings.policy.ttl_max_s + 60)
    pages = tmp_path / "pages.jsonl"
    ran = desk.run("resolve", "--once", "--json", OUTBOX_PAGERS=f"file:{pages}")
    done = {row["job"]: row["done"] for row in ran.json["items"]}
    assert (done["expire"], done["escalate"], done["page"]) == (1, 1, 1)
    assert len(pages.read_text().splitlines()) == 1


def test_resolve_says_once_or_nothing(desk: Desk) -> None:
    assert desk.invoke("resolve").code == 2


def test_every_setting_is_shown_with_its_source_and_no_secret_is(desk: Desk) -> None:
    secrets = {
        "STRIPE_WEBHOOK_SECRET": "whsec_of_nobody",
        "OUTBOX_PAGER_SECRET": "sesame-open",
        "OUTBOX_PAGERS": "pagerduty:0123456789abcdef0123456789abcdef",
        "REDIS_URL": "redis://:hunter2@127.0.0.1/0",
    }
    ran = desk.run("config", "show", "--json", **secrets, OUTBOX_LEASE_S="90")
    shown = {item["name"]: item for item in ran.json["items"]}
    assert shown["OUTBOX_LEASE_S"] == {
        "name": "OUTBOX_LEASE_S",
        "value": "90",
        "unit": "s",
        "source": "environment",
    }
    assert (shown["PORT"]["value"], shown["PORT"]["source"]) == (8000, "default")
    for name in (*secrets, "STRIPE_API_KEY", "DATABASE_URL"):
        assert shown[name]["value"] == "set", name
    for secret in ("whsec_of_nobody", "sesame", "0123456789abcdef", "hunter2", "sk_test"):
        assert secret not in ran.out


def test_the_settings_that_are_shown_are_the_settings_that_are_read(desk: Desk) -> None:
    shown = {i["name"] for i in desk.invoke("config", "show", "--json").json["items"]}
    assert set(desk.settings.sources) <= shown


def test_the_demos_settings_are_told_as_such(desk: Desk) -> None:
    ran = desk.invoke("config", "show", "--json", OUTBOX_PROFILE="demo")
    shown = {i["name"]: i for i in ran.json["items"]}
    assert (shown["OUTBOX_LEASE_S"]["value"], shown["OUTBOX_LEASE_S"]["source"]) == (
        "3",
        "profile demo",
    )

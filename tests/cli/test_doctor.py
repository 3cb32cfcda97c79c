"""What `doctor` finds, and that it finds nothing where nothing is wrong."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox import schema
from outbox.store import switches
from outbox.store.contradictions import contradict
from outbox.store.intents import lock
from resolvers.health import release
from tests.cli.desk import Desk

MIGRATIONS_CLOCK = (
    "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
    "$$ SELECT statement_timestamp() $$"
)
ROLES = ("expire", "join", "resolve", "escalate", "page")


def make_healthy(desk: Desk) -> dict[str, UUID]:
    """A ledger of which nothing is to be said, with one intent that landed, one in doubt and one
    that was never sent; their ids."""
    desk.sql(MIGRATIONS_CLOCK)
    with desk.store.transaction() as tx:
        for role in ROLES:
            switches.beat(tx, role, "worker-1", {"release": release()})
    landed, _ = desk.succeeded()
    doubtful, _ = desk.lost()
    return {"landed": landed, "doubtful": doubtful, "fresh": desk.enqueue()}


@pytest.fixture
def healthy(desk: Desk) -> Desk:
    """A desk over a ledger of which nothing is to be said."""
    make_healthy(desk)
    return desk


def found(desk: Desk, **env: str) -> dict[str, tuple[int, list[str]]]:
    """What is not as it must be."""
    ran = desk.invoke("doctor", "--json", **env)
    wrong = [f for f in ran.json["items"] if not f["ok"]]
    assert (ran.code, ran.json["ok"]) == ((3, False) if wrong else (0, True))
    return {f["check"]: (f["count"], f["sample"]) for f in wrong}


def test_nothing_is_found_where_nothing_is_wrong(healthy: Desk) -> None:
    ran = healthy.run("doctor")
    assert (ran.code, ran.out) == (0, "check\trule\tok\tcount\tdetail\tsample\n")


def test_what_rightly_waits_behind_a_question_is_no_finding(healthy: Desk) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    healthy.sql(
        "UPDATE outbox.intents SET ttl_at = outbox.clock() - INTERVAL '5 min' "
        "WHERE status = 'unknown'"
    )
    assert "overdue_without_escalation" in found(healthy)
    healthy.escalate(row["id"])
    assert "overdue_without_escalation" not in found(healthy)
    healthy.sql(
        "UPDATE outbox.intents SET ttl_at = outbox.clock() - INTERVAL '5 min' "
        "WHERE status = 'pending'"
    )
    assert "overdue_without_escalation" in found(healthy)
    with healthy.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="x", by="alice")
    assert "overdue_without_escalation" not in found(healthy)


def test_a_page_that_does_not_go_out_is_found(healthy: Desk) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    question = healthy.escalate(row["id"])
    assert "page_not_going_out" not in found(healthy)
    healthy.sql("UPDATE outbox.pages SET attempts = 3")
    assert found(healthy)["page_not_going_out"] == (1, [str(question)])


def test_jobs_that_nobody_runs_are_found(healthy: Desk) -> None:
    healthy.sql("UPDATE outbox.heartbeats SET at = at - INTERVAL '1 h' WHERE role = 'escalate'")
    healthy.sql("DELETE FROM outbox.heartbeats WHERE role = 'page'")
    assert found(healthy)["heartbeat_stale"] == (2, ["escalate", "page"])


def test_an_account_that_changed_under_unsettled_rows_is_found(healthy: Desk) -> None:
    with healthy.store.transaction() as tx:
        switches.freeze_account(tx, "stripe", healthy.settings.accounts["stripe", "default"])
    healthy.sql("UPDATE outbox.accounts SET mode = 'live'")
    assert found(healthy)["account_changed"] == (1, ["stripe/default"])


def test_a_settable_clock_is_found(desk: Desk) -> None:
    assert "settable_clock" in found(desk)


def test_a_schema_of_another_release_is_the_only_finding(healthy: Desk) -> None:
    healthy.sql("UPDATE outbox.alembic_version SET version_num = '0000'")
    assert found(healthy) == {"schema_revision": (1, ["0000"])}
    assert schema.head() != "0000"


def test_a_step_of_the_clock_holds_resends_until_it_is_accepted_with_a_reason(
    healthy: Desk,
) -> None:
    with healthy.store.transaction() as tx:
        switches.doubt_clock(tx, "stepped by 60 s")
    assert "clock_doubted" in found(healthy)
    assert healthy.invoke("doctor", "--accept").code == 2
    tried = healthy.invoke("doctor", "--accept", "--reason", "host was set", "--dry-run")
    assert (tried.code, "stepped by 60 s" in tried.err) == (3, True)
    assert "clock_doubted" in found(healthy)
    assert healthy.invoke("doctor", "--accept", "--reason", "host was set").code == 0
    assert found(healthy) == {}
    (event,) = healthy.sql("SELECT actor, reason FROM outbox.events WHERE kind = 'resumed'")
    assert (event["actor"], event["reason"]) == ("alice", "host was set")
    (question,) = healthy.sql("SELECT closed_at FROM outbox.escalations")
    assert question["closed_at"] is not None


def test_doctor_changes_nothing(healthy: Desk) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    with healthy.store.transaction() as tx:
        locked = lock(tx, row["id"])
        assert locked is not None
        contradict(tx, locked, "duplicate", ["pi_1"], "look-up")
    tables = ("intents", "events", "escalations", "pages", "switches", "settlements")
    before = {t: healthy.sql(f"SELECT * FROM outbox.{t} ORDER BY 1") for t in tables}
    healthy.invoke("doctor")
    assert {t: healthy.sql(f"SELECT * FROM outbox.{t} ORDER BY 1") for t in tables} == before


def test_json_has_every_check_with_its_rule_and_what_it_looked_at(healthy: Desk) -> None:
    ran = healthy.run("doctor", "--json")
    assert (ran.code, ran.json["schema"], ran.json["ok"]) == (0, 1, True)
    assert ran.json["items"] == []
    items = ran.json["passed"]
    assert {tuple(item) for item in items} == {("check", "rule", "ok", "count", "detail", "sample")}
    assert len({item["check"] for item in items}) == len(items)
    assert {item["rule"] for item in items} == {None, *range(1, 15)}
    assert {(item["ok"], item["count"], *item["sample"]) for item in items} == {(True, 0)}
    said = {item["check"]: item["detail"] for item in items}
    assert "worker-1" in said["releases_differ"]
    assert "newest 20000" in said["status_against_sent"]


def test_what_is_not_answered_in_time_is_told_as_not_checked_and_the_rest_is_checked(
    healthy: Desk,
) -> None:
    healthy.sql("UPDATE outbox.heartbeats SET at = at - INTERVAL '1 h' WHERE role = 'escalate'")
    with healthy.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE outbox.webhook_inbox IN ACCESS EXCLUSIVE MODE")
        ran = healthy.invoke("doctor", "--json", OUTBOX_LOCK_TIMEOUT_S="0.1")
        connection.rollback()
    wrong = {item["check"]: item for item in ran.json["items"] if not item["ok"]}
    assert (ran.code, ran.err) == (3, "")
    assert wrong["heartbeat_stale"]["sample"] == ["escalate"]
    unchecked = {f["check"] for f in wrong.values() if f["detail"].startswith("not checked: ")}
    assert unchecked == set(wrong) - {"heartbeat_stale"}
    assert {"webhook_waits", "webhook_ours_and_not_joined"} <= unchecked
    assert {(f["count"], *f["sample"]) for c, f in wrong.items() if c in unchecked} == {(0,)}


def test_what_the_role_may_not_read_is_told_as_not_checked(healthy: Desk) -> None:
    """Timelines are for monitoring roles on some hosts."""
    healthy.sql("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
    role = f"reader_{healthy.vendor_account}"
    healthy.sql(f"CREATE ROLE {role} LOGIN")
    try:
        healthy.sql(f"GRANT USAGE ON SCHEMA outbox TO {role}")
        healthy.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {role}")
        url = healthy.settings.database_url.replace("postgres@", f"{role}@")
        assert found(healthy, DATABASE_URL=url) == {"timeline_changed": (0, [])}
    finally:
        healthy.sql(f"DROP OWNED BY {role}")
        healthy.sql(f"DROP ROLE {role}")


def test_a_broker_that_is_named_and_does_not_answer_is_found(healthy: Desk, redis_url: str) -> None:
    assert "broker_away" not in found(healthy, REDIS_URL=redis_url)
    away = "redis://127.0.0.1:1/0"
    assert found(healthy, REDIS_URL=away)["broker_away"] == (1, ["REDIS_URL"])


def test_questions_of_which_nobody_is_paged_are_found(healthy: Desk) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    question = healthy.escalate(row["id"])
    assert found(healthy)["pagers_unset"] == (1, [str(question)])
    assert "pagers_unset" not in found(healthy, OUTBOX_PAGERS="none")


def test_live_credentials_without_pagers_and_among_test_mode_rows_are_found(
    healthy: Desk,
) -> None:
    live = healthy.sandbox.api_key(healthy.vendor_account, live=True)
    wrong = found(healthy, STRIPE_API_KEY=live)
    assert wrong["settings"] == (1, ["OUTBOX_PAGERS"])
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    assert wrong["mode_or_owner_changed"] == (1, [str(row["id"])])


def test_an_account_whose_events_no_longer_come_while_its_sends_succeed_is_found(
    healthy: Desk,
) -> None:
    secret = {"STRIPE_WEBHOOK_SECRET": "whsec_x"}
    assert "webhooks_silent" not in found(healthy, **secret), "nothing is known after an hour"
    # Its first result is older than a day, and another one has come since.
    healthy.sql("UPDATE outbox.settlements SET at = at - INTERVAL '25 hours'")
    assert "webhooks_silent" not in found(healthy, **secret), "nothing was sent since"
    healthy.succeeded()
    assert found(healthy, **secret)["webhooks_silent"] == (1, ["stripe/default"])
    assert "webhooks_silent" not in found(healthy), "no event is expected without a secret"
    healthy.sql(
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, received_at) "
        "VALUES ('stripe', 'default', 'test', 'evt_1', 'foreign', outbox.clock())"
    )
    assert "webhooks_silent" not in found(healthy, **secret)

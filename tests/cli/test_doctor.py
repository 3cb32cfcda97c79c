"""What `doctor` finds, and that it finds nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from outbox import schema
from outbox.store import moves, switches
from outbox.store.intents import lock
from tests.cli.desk import Desk

MIGRATIONS_CLOCK = (
    "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
    "$$ SELECT statement_timestamp() $$"
)
ROLES = ("expire", "join", "resolve", "escalate", "page")


@pytest.fixture
def healthy(desk: Desk) -> Desk:
    """A ledger with one row of each kind, of which nothing is to be said."""
    desk.sql(MIGRATIONS_CLOCK)
    with desk.store.transaction() as tx:
        for role in ROLES:
            switches.beat(tx, role, "worker-1")
    desk.succeeded()
    desk.lost()
    desk.enqueue()
    return desk


def found(desk: Desk, **env: str) -> dict[str, tuple[int, list[str]]]:
    ran = desk.invoke("doctor", "--json", **env)
    assert ran.code == (3 if ran.json["items"] else 0)
    return {item["check"]: (item["count"], item["ids"]) for item in ran.json["items"]}


def test_nothing_is_found_where_nothing_is_wrong(healthy: Desk) -> None:
    ran = healthy.run("doctor")
    assert (ran.code, ran.out) == (0, "check\tcount\twhat\tids\n")


_UNCHECKED = (
    "ALTER TABLE outbox.intents DROP CONSTRAINT never_sent, DROP CONSTRAINT sent_has_a_time, "
    "DROP CONSTRAINT lease_while_in_flight, DROP CONSTRAINT landed_has_a_receipt, "
    "DROP CONSTRAINT settled_has_a_time, DROP CONSTRAINT unsettled_has_no_receipt, "
    "DROP CONSTRAINT unsettled_keeps_its_request"
)
_ROW = "WHERE id = %(id)s"
BROKEN = {
    "status_against_sent": f"UPDATE outbox.intents SET status = 'pending' {_ROW}",
    "lease_against_status": f"UPDATE outbox.intents SET lease_token = id {_ROW}",
    "landed_without_receipt": (
        f"UPDATE outbox.intents SET status = 'succeeded', settled_at = outbox.clock() {_ROW}"
    ),
    "receipt_before_settlement": f"UPDATE outbox.intents SET receipt_id = 'pi_early' {_ROW}",
    "settled_without_time": (
        f"UPDATE outbox.intents SET status = 'succeeded', receipt_id = 'pi_x' {_ROW}"
    ),
    "unsettled_without_request": f"UPDATE outbox.intents SET request = NULL {_ROW}",
    "doubt_without_send": f"UPDATE outbox.intents SET first_sent_at = NULL {_ROW}",
    "request_not_as_hashed": f"UPDATE outbox.intents SET request = request || ' ' {_ROW}",
    "sent_after_its_window": (
        f"UPDATE outbox.intents SET window_ends_at = first_sent_at - INTERVAL '1 s' {_ROW}"
    ),
    "settled_without_settlement": (
        "UPDATE outbox.intents SET status = 'failed_poison', settled_at = outbox.clock() " + _ROW
    ),
    "contradiction_without_escalation": (
        f"UPDATE outbox.intents SET contradicted_at = outbox.clock() {_ROW}"
    ),
    "lease_long_expired": (
        "UPDATE outbox.intents SET status = 'in_flight', lease_token = id, "
        f"lease_until = outbox.clock() - INTERVAL '1 min' {_ROW}"
    ),
    "overdue_without_escalation": (
        f"UPDATE outbox.intents SET ttl_at = outbox.clock() - INTERVAL '5 min' {_ROW}"
    ),
    "unknown_vendor": f"UPDATE outbox.intents SET vendor = 'strpe' {_ROW}",
    "unknown_operation": f"UPDATE outbox.intents SET operation = 'payment.make' {_ROW}",
    "unknown_fingerprint_version": f"UPDATE outbox.intents SET fingerprint_version = 99 {_ROW}",
    "account_without_credentials": f"UPDATE outbox.intents SET account = 'backup' {_ROW}",
}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_rule_is_found_with_the_row_that_breaks_it(healthy: Desk, check: str) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    healthy.sql(_UNCHECKED)
    healthy.sql(BROKEN[check], {"id": row["id"]})
    assert found(healthy)[check] == (1, [str(row["id"])])


def test_a_result_that_no_consumer_will_get_is_found(healthy: Desk) -> None:
    healthy.sql("INSERT INTO outbox.consumers VALUES ('billing', outbox.clock())")
    (count, _) = found(healthy)["settlement_without_delivery"]
    assert count == 1


def test_one_object_that_settled_two_intents_is_found(healthy: Desk) -> None:
    _, object_id = healthy.succeeded()
    second, _ = healthy.succeeded()
    healthy.sql(
        "UPDATE outbox.intents SET receipt_id = %(r)s WHERE id = %(id)s",
        {"r": object_id, "id": second},
    )
    assert found(healthy)["two_intents_with_one_receipt"] == (1, [object_id])


def test_what_rightly_waits_behind_a_question_is_no_finding(healthy: Desk) -> None:
    (row,) = healthy.sql("SELECT id FROM outbox.intents WHERE status = 'unknown'")
    healthy.sql(BROKEN["overdue_without_escalation"], {"id": row["id"]})
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
        moves.contradict(tx, locked, "duplicate", ["pi_1"], "look-up")
    tables = ("intents", "events", "escalations", "pages", "switches", "settlements")
    before = {t: healthy.sql(f"SELECT * FROM outbox.{t} ORDER BY 1") for t in tables}
    healthy.invoke("doctor")
    assert {t: healthy.sql(f"SELECT * FROM outbox.{t} ORDER BY 1") for t in tables} == before

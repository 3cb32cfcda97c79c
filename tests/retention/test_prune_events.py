"""What becomes of stored events and of heartbeats, and what is never deleted."""

from __future__ import annotations

import psycopg
import pytest

from outbox.store import escalations, switches
from resolvers.joining import join_once
from tests.retention.attic import DAY_S, Attic

TABLES = (
    *("intents", "attempts", "settlements", "deliveries", "consumers", "escalations"),
    *("pages", "epochs", "accounts", "switches"),
)


def test_the_body_of_an_event_that_joined_is_emptied_after_90_days_and_its_intent_is_not(
    attic: Attic,
) -> None:
    intent_id = attic.landed()
    number = attic.event(intent_id)
    attic.days(89)
    assert attic.prune()["matched_events"].done == 0
    attic.days(2)
    assert attic.prune()["matched_events"].done == 1
    assert attic.body(number) is None
    assert not attic.is_empty(intent_id)
    (left,) = attic.desk.sql("SELECT state, intent_id, due_at FROM outbox.webhook_inbox")
    assert left == {"state": "joined", "intent_id": intent_id, "due_at": None}
    assert attic.broken() == []


def test_a_shorter_retention_of_intents_is_one_of_their_events_too(attic: Attic) -> None:
    intent_id = attic.landed()
    number = attic.event(intent_id)
    attic.days(41)
    done = attic.prune(older_than_s=40 * DAY_S)
    # Its intent was emptied, and of this event with it.
    assert (done["intents"].done, done["matched_events"].done) == (1, 0)
    assert attic.body(number) is None
    late = attic.event(intent_id)
    attic.days(41)
    assert attic.prune(older_than_s=40 * DAY_S)["matched_events"].done == 1
    assert attic.body(late) is None


def test_an_event_that_comes_long_after_is_stored_joined_and_emptied_in_its_own_time(
    attic: Attic,
) -> None:
    intent_id = attic.landed()
    attic.days(401)
    attic.prune()
    number = attic.event(intent_id)
    assert attic.body(number) is not None
    attic.days(91)
    assert attic.prune()["matched_events"].done == 1
    assert attic.body(number) is None


def test_an_event_with_our_marks_that_matches_nothing_is_tried_for_35_days_and_then_emptied(
    attic: Attic,
) -> None:
    number = attic.desk.keep("evt_lost_intent", "parked")
    attic.desk.sql("UPDATE outbox.webhook_inbox SET due_at = outbox.clock() + INTERVAL '1 h'")
    attic.days(36)
    tried = attic.prune()["unmatched_events"]
    assert (tried.done, dict(tried.kept)) == (0, {})
    attic.desk.sql("UPDATE outbox.webhook_inbox SET due_at = NULL")
    assert attic.prune()["unmatched_events"].done == 1
    assert attic.body(number) is None
    # What it was about may be missing: that is told for as long as the row is there.
    found = attic.desk.invoke("doctor", "--json").json["items"]
    assert [str(number)] in [f["sample"] for f in found if "not_joined" in f["check"]]


def test_an_event_of_another_account_is_emptied_once_its_question_is_long_closed(
    attic: Attic,
) -> None:
    number = attic.desk.keep("evt_elsewhere", "mismatch")
    with attic.desk.store.transaction() as tx:
        escalations.open_for_holder(tx, "webhook:stripe/default", ["webhook_mismatch"], {})
    attic.days(100)
    done = attic.prune()["unmatched_events"]
    assert (done.done, dict(done.kept)) == (0, {"question": 1})
    attic.desk.sql("UPDATE outbox.escalations SET closed_at = outbox.clock()")
    attic.days(36)
    assert attic.prune()["unmatched_events"].done == 1
    assert attic.body(number) is None


def test_an_event_that_is_not_ours_is_deleted_after_35_days(attic: Attic) -> None:
    number = attic.desk.keep("evt_foreign", "foreign", None)
    attic.days(34)
    assert attic.prune()["foreign_events"].done == 0
    attic.days(2)
    assert attic.prune()["foreign_events"].done == 1
    assert attic.body(number) == "gone"


def test_no_event_of_ours_can_be_deleted_whoever_does_it(attic: Attic) -> None:
    attic.event(attic.landed())
    attic.desk.keep("evt_parked", "parked")
    for state in ("joined", "parked"):
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            attic.desk.sql(
                "DELETE FROM outbox.webhook_inbox WHERE state = %(state)s", {"state": state}
            )


def test_a_foreign_event_that_is_made_due_in_that_instant_stays(attic: Attic) -> None:
    number = attic.desk.keep("evt_foreign", "foreign", b"{}")
    attic.days(36)
    with attic.held("webhook_inbox", number) as somebody:
        done = attic.prune()["foreign_events"]
        assert (done.done, dict(done.kept)) == (0, {"in use": 1})
        somebody.execute("UPDATE outbox.webhook_inbox SET state = 'new', due_at = outbox.clock()")
        somebody.commit()
    assert attic.prune()["foreign_events"].done == 0
    assert attic.body(number) == b"{}"
    assert join_once(attic.desk.store, attic.desk.directory) == 1


def test_heartbeats_of_processes_that_are_gone_are_deleted_but_the_last_of_each_role(
    attic: Attic,
) -> None:
    def beat(role: str, instance: str) -> None:
        with attic.desk.store.transaction() as tx:
            switches.beat(tx, role, instance)

    beat("join", "pod-1:7")
    beat("timeline", "database")
    beat("page", "pod-1:7")
    attic.days(36)
    beat("join", "pod-2:7")
    assert attic.prune(dry_run=True)["heartbeats"].done == 1
    assert attic.prune()["heartbeats"].done == 1
    left = attic.desk.sql("SELECT role, instance FROM outbox.heartbeats ORDER BY role")
    assert [(row["role"], row["instance"]) for row in left] == [
        ("join", "pod-2:7"),
        ("page", "pod-1:7"),
        ("timeline", "database"),
    ]


def test_attempts_events_results_deliveries_and_questions_stay(attic: Attic) -> None:
    attic.results("billing")
    intent_id = attic.landed()
    attic.event(intent_id)
    attic.results("billing")
    attic.desk.escalate(intent_id, "ttl")
    attic.desk.sql("UPDATE outbox.escalations SET closed_at = outbox.clock()")
    tables = (*TABLES, "webhook_inbox")

    def counts() -> list[int]:
        return [attic.desk.sql(f"SELECT count(*) AS n FROM outbox.{t}")[0]["n"] for t in tables]

    before = counts()
    events = attic.desk.sql("SELECT * FROM outbox.events ORDER BY id")
    attic.days(5000)
    assert attic.prune()["intents"].done == 1
    assert counts() == before
    after = attic.desk.sql("SELECT * FROM outbox.events ORDER BY id")
    assert after[: len(events)] == events
    assert [row["kind"] for row in after[len(events) :]] == ["pruned"]

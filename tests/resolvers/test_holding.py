"""Holding back and letting go: acknowledgements, mutes, pauses, replays."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from typing import Any

import pytest

from outbox import Denied, Invalid, NotFound
from outbox.store import escalations
from resolvers import holding, triage
from tests.cli.conftest import desk, sandbox  # noqa: F401
from tests.cli.desk import Desk


def ack(desk: Desk, reference: object, **changes: Any) -> triage.Ruling:
    given = {"by": "alice", "reason": "looking", **changes}
    return holding.ack(desk.store, desk.directory, str(reference), **given)


def test_an_acknowledgement_withdraws_an_approved_resend_at_once(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    triage.resend(desk.store, desk.directory, str(intent_id), by="bob", reason="try")
    ruling = ack(desk, question)
    assert ruling.changed
    assert desk.row(intent_id).status == "unknown"
    assert desk.claim() == []
    assert desk.escalation(question)["acked_by"] == "alice"


def test_an_acknowledgement_ends_by_itself(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    ack(desk, question, for_s=600.0)
    with pytest.raises(Denied, match="alice looks at it until"):
        ack(desk, question, by="bob")
    desk.forward(601)
    assert ack(desk, question, by="bob").changed


def test_an_acknowledgement_lasts_an_hour_unless_said(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    ack(desk, question)
    found = desk.escalation(question)
    assert (found["acked_until"] - found["changed_at"]).total_seconds() == 3600


def test_the_same_acknowledgement_twice_is_one_and_a_longer_one_extends(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    until = ack(desk, question).until
    again = ack(desk, question)
    assert (again.changed, again.until) == (False, until)
    assert ack(desk, question, for_s=7200.0).changed


def test_an_acknowledgement_is_told_to_the_pager_under_the_same_key(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    ack(desk, question)
    rows = desk.sql("SELECT action, dedup_key FROM outbox.pages ORDER BY id")
    assert [r["action"] for r in rows] == ["trigger", "acknowledge"]
    assert len({r["dedup_key"] for r in rows}) == 1


def test_what_is_closed_cannot_be_held_any_more(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    triage.landed(desk.store, desk.directory, str(question), object_id, by="bob", reason="seen")
    with pytest.raises(Denied, match="closed by bob at"):
        ack(desk, question)
    with pytest.raises(Denied, match="closed by bob at"):
        holding.mute(desk.store, str(question), by="alice", reason="noise", for_s=60.0)


@pytest.mark.parametrize("for_s", [0.0, -5.0, holding.MAX_HOLD_S + 1])
def test_a_hold_without_an_end_in_sight_is_refused(desk: Desk, for_s: float) -> None:
    question = desk.escalate(desk.lost()[0])
    with pytest.raises(Invalid):
        ack(desk, question, for_s=for_s)
    with pytest.raises(Invalid):
        holding.mute(desk.store, str(question), by="alice", reason="noise", for_s=for_s)


def test_a_muted_question_stays_open_and_is_audited(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    ruling = holding.mute(desk.store, str(question), by="alice", reason="known", for_s=600.0)
    found = desk.escalation(question)
    assert ruling.changed
    assert (found["closed_at"], found["muted_by"]) == (None, "alice")
    (event,) = desk.events(intent_id, "muted")
    assert (event["actor"], event["reason"]) == ("alice", "known")
    again = holding.mute(desk.store, str(question), by="bob", reason="known", for_s=600.0)
    assert not again.changed


def test_an_intent_without_a_question_cannot_be_acknowledged(desk: Desk) -> None:
    with pytest.raises(NotFound):
        ack(desk, desk.lost()[0])


def test_a_paused_account_sends_nothing_until_somebody_resumes_it(desk: Desk) -> None:
    intent_id = desk.enqueue()
    where = ("stripe", "default")
    holding.pause(desk.store, desk.directory, *where, by="alice", reason="incident")
    assert desk.claim() == []
    again = holding.pause(desk.store, desk.directory, *where, by="bob", reason="me too")
    assert not again.changed
    assert "closed by alice at" in again.said
    holding.resume(desk.store, desk.directory, *where, by="bob", reason="over")
    assert [row.id for row in desk.claim()] == [intent_id]
    assert not holding.resume(desk.store, desk.directory, *where, by="bob", reason="x").changed
    kinds = [e["kind"] for e in desk.sql("SELECT kind FROM outbox.events ORDER BY id")]
    assert kinds == ["paused", "resumed"]
    (question,) = desk.sql("SELECT * FROM outbox.escalations")
    assert question["verdict"] == "resumed"


def test_a_misspelled_account_is_not_paused_in_silence(desk: Desk) -> None:
    with pytest.raises(NotFound) as refused:
        holding.pause(desk.store, desk.directory, "strpe", "default", by="alice", reason="incident")
    assert refused.value.candidates == ("stripe/default",)
    assert desk.sql("SELECT * FROM outbox.switches") == []


def test_a_question_about_mismatched_events_is_closed_by_a_person(desk: Desk) -> None:
    with desk.store.transaction() as tx:
        question = escalations.open_for_holder(
            tx, "webhook:stripe/default", ["webhook_mismatch"], {"vendor": "stripe"}
        )
    holding.close(desk.store, str(question), by="alice", reason="endpoint corrected")
    found = desk.escalation(question)
    assert (found["closed_by"], found["verdict"]) == ("alice", "closed")
    again = holding.close(desk.store, str(question), by="bob", reason="x")
    assert (again.changed, "closed by alice" in again.said) == (False, True)


def test_a_question_about_an_intent_or_a_closed_account_is_not_simply_closed(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    with pytest.raises(Denied):
        holding.close(desk.store, str(question), by="alice", reason="tired")
    holding.pause(desk.store, desk.directory, "stripe", "default", by="bob", reason="incident")
    (held,) = desk.sql("SELECT id FROM outbox.escalations WHERE holder IS NOT NULL")
    with pytest.raises(Denied, match="resume it"):
        holding.close(desk.store, str(held["id"]), by="alice", reason="tired")


def test_a_parked_event_is_joined_again_when_a_person_says_so(desk: Desk) -> None:
    number = str(desk.keep("evt_1", "parked"))
    assert holding.replay(desk.store, number, by="alice", reason="restored").changed
    assert not holding.replay(desk.store, number, by="alice", reason="restored").changed
    (row,) = desk.sql("SELECT state, due_at FROM outbox.webhook_inbox")
    assert row["state"] == "new"
    assert row["due_at"] is not None
    (event,) = desk.sql("SELECT actor, kind FROM outbox.events")
    assert (event["actor"], event["kind"]) == ("alice", "webhook_replayed")


def test_an_event_whose_body_was_not_kept_cannot_be_replayed(desk: Desk) -> None:
    number = str(desk.keep("evt_1", "foreign", None))
    with pytest.raises(Denied):
        holding.replay(desk.store, number, by="alice", reason="x")


@pytest.mark.parametrize(("number", "error"), [("99", NotFound), ("evt_1", Invalid), ("", Invalid)])
def test_an_event_that_is_not_there_is_said(
    desk: Desk, number: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        holding.replay(desk.store, number, by="alice", reason="x")

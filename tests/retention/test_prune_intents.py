"""What is emptied of settled intents, what is kept of each, and which are never touched."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox import Outbox
from outbox.codec import codec_of
from outbox.errors import IntentMismatch
from outbox.outcomes import Lost, Receipt
from outbox.states import Event
from outbox.store import doubt
from outbox.store.moves import Change, apply
from resolvers import triage
from tests.cli.desk import CAPTURE, CHARGE
from tests.privacy.rings import OLD
from tests.retention.attic import KEPT, PERSON, SCOPE, TURN, Attic, arguments


def test_a_settled_intent_is_emptied_and_keeps_what_it_is_found_and_told_by(attic: Attic) -> None:
    intent_id = attic.landed()
    number = attic.event(intent_id)
    before = attic.row(intent_id, KEPT)
    attic.days(401)
    done = attic.prune()
    assert (done["intents"].done, dict(done["intents"].kept)) == (1, {})
    assert attic.is_empty(intent_id)
    assert attic.row(intent_id, KEPT) == before
    assert attic.row(intent_id, "request_path") == {"request_path": "/v1/payment_intents"}
    assert attic.body(number) is None
    (left,) = attic.desk.sql(
        "SELECT (SELECT string_agg(i::text, '') FROM outbox.intents i) "
        "|| (SELECT string_agg(w::text, '') FROM outbox.webhook_inbox w) AS text"
    )
    assert PERSON not in left["text"]
    assert attic.broken() == []


def test_each_emptied_row_has_an_event_that_says_who_when_and_why(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.event(intent_id)
    attic.days(401)
    attic.prune()
    (said,) = attic.desk.events(intent_id, "pruned")
    assert (said["actor"], said["from_status"], said["to_status"]) == (
        "alice",
        "succeeded",
        "succeeded",
    )
    assert said["reason"] == "settled more than 400 d ago"
    assert said["detail"] == {"columns": ["args", "request", "receipt"], "webhook_bodies": 1}


def test_it_is_the_age_since_the_settlement_that_counts(attic: Attic) -> None:
    intent_id = attic.enqueue().intent_id
    attic.days(0.1)
    attic.desk.record(attic.desk.leased(intent_id), Lost("no reply"))
    attic.days(500)
    assert attic.prune()["intents"].done == 0
    row = attic.desk.row(intent_id)
    attic.event(intent_id, amount=1200)
    assert attic.desk.row(intent_id).status == "succeeded", row.status
    attic.days(399)
    assert attic.prune()["intents"].done == 0
    attic.days(2)
    assert attic.prune()["intents"].done == 1


@pytest.mark.parametrize("how", ["pending", "in_flight", "unknown"])
def test_what_is_undecided_is_never_touched_nor_its_evidence(attic: Attic, how: str) -> None:
    intent_id = attic.enqueue().intent_id
    if how != "pending":
        row = attic.desk.leased(intent_id)
        if how == "unknown":
            attic.desk.record(row, Lost("no reply"))
    number = attic.desk.keep("evt_undecided", "joined")
    attic.desk.sql("UPDATE outbox.webhook_inbox SET intent_id = %(id)s", {"id": intent_id})
    attic.days(5000)
    done = attic.prune()
    assert (done["intents"].done, done["matched_events"].done) == (0, 0)
    assert dict(done["matched_events"].kept) == {"unsettled": 1}
    assert not attic.is_empty(intent_id)
    assert attic.body(number) == b"{}"


def test_what_a_person_is_asked_about_is_kept_and_so_it_is_for_as_long_after_the_answer(
    attic: Attic,
) -> None:
    intent_id = attic.landed()
    number = attic.event(intent_id)
    question = attic.desk.escalate(intent_id, "duplicate", objects=["pi_other"])
    attic.days(1000)
    assert attic.kept() == {"question": 1}
    attic.desk.sql("UPDATE outbox.escalations SET closed_at = outbox.clock()")
    attic.days(399)
    assert attic.kept() == {"question": 1}
    assert not attic.is_empty(intent_id)
    attic.days(2)
    assert attic.prune()["intents"].done == 1
    assert attic.body(number) is None
    assert attic.desk.escalation(question)["reasons"] == ["duplicate"]


def test_a_contradiction_is_kept_whether_or_not_its_question_is_there(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.event(intent_id, id="pi_second_object")
    assert attic.row(intent_id, "contradicted_at IS NOT NULL AS y") == {"y": True}
    attic.days(1000)
    assert attic.kept() == {"question": 1}
    attic.desk.sql("UPDATE outbox.escalations SET closed_at = outbox.clock() - INTERVAL '900 d'")
    assert attic.kept() == {"question": 1}
    assert not attic.is_empty(intent_id)


def test_what_a_consumer_has_not_had_is_kept_until_it_has(attic: Attic) -> None:
    with attic.desk.connect(autocommit=False) as connection:
        Outbox(attic.desk.settings).settlements(connection, "billing")
        connection.rollback()
    intent_id = attic.landed()
    number = attic.event(intent_id)
    attic.days(1000)
    assert attic.kept() == {"undelivered": 1}
    assert attic.body(number) is not None
    assert [s.intent_id for s in attic.results("billing")] == [intent_id]
    assert attic.prune()["intents"].done == 1


def test_a_consumer_that_is_still_being_made_known_has_not_had_it(attic: Attic) -> None:
    attic.landed()
    attic.desk.sql("INSERT INTO outbox.consumers (name, registered_at) VALUES ('new', now())")
    attic.days(401)
    assert attic.kept() == {"undelivered": 1}


def test_what_an_unsettled_repeat_stands_on_is_kept(attic: Attic) -> None:
    first = attic.refused(invoice="in_again")
    second = attic.enqueue(invoice="in_again", supersedes=first).intent_id
    attic.days(1000)
    assert attic.kept() == {"successor": 1}
    triage.cancel(attic.desk.store, str(second), by="alice", reason="no longer wanted")
    done = attic.prune()
    assert (done["intents"].done, attic.is_empty(first)) == (1, True)
    assert not attic.is_empty(second)


def test_an_outcome_that_guards_its_twin_from_a_later_turn_is_kept_until_it_was_told(
    attic: Attic,
) -> None:
    intent_id = attic.landed(TURN)
    attic.days(1000)
    assert attic.kept() == {"not told": 1}
    assert Outbox(attic.desk.settings).wait(intent_id, timeout_s=0).told == "settled"
    assert attic.prune()["intents"].done == 1


def test_an_outcome_that_was_taken_back_is_kept_until_it_was_told_again(attic: Attic) -> None:
    intent_id = attic.landed(TURN)
    Outbox(attic.desk.settings).wait(intent_id, timeout_s=0)
    attic.desk.sql("UPDATE outbox.intents SET retracted_at = told_at + INTERVAL '1 s'")
    attic.days(1000)
    assert attic.kept() == {"not told": 1}
    Outbox(attic.desk.settings).wait(intent_id, timeout_s=0)
    assert attic.prune()["intents"].done == 1


def test_an_object_that_is_to_be_read_again_keeps_its_row(attic: Attic) -> None:
    intent_id = attic.landed()
    with attic.desk.store.transaction() as tx:
        doubt.schedule_verification(tx, [intent_id], 0.0)
    attic.days(1000)
    assert attic.kept() == {"to be read again": 1}


def test_an_event_that_is_to_be_joined_again_keeps_its_row(attic: Attic) -> None:
    intent_id = attic.landed()
    number = attic.event(intent_id)
    attic.days(1000)
    attic.desk.invoke("webhook", "replay", str(number), "--reason", "once more")
    done = attic.prune()
    assert dict(done["intents"].kept) == dict(done["matched_events"].kept) == {"to be joined": 1}
    assert attic.body(number) is not None


def test_a_second_time_there_is_nothing_to_do(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(401)
    assert attic.prune()["intents"].done == 1
    assert attic.prune()["intents"].done == 0
    assert len(attic.desk.events(intent_id, "pruned")) == 1


def test_a_row_that_was_ruled_on_after_it_was_emptied_is_emptied_again_in_its_time(
    attic: Attic,
) -> None:
    intent_id = attic.refused()
    attic.days(401)
    assert attic.prune()["intents"].done == 1
    row = attic.desk.row(intent_id)
    with attic.desk.store.transaction() as tx:
        change = Change(actor="alice", reading=attic.reading(row), settled_by="operator")
        apply(tx, row, Event.RULED_LANDED, change)
    assert attic.row(intent_id, "receipt IS NULL AS y") == {"y": False}
    assert attic.broken() == []
    attic.days(399)
    assert attic.prune()["intents"].done == 0
    attic.days(2)
    assert attic.prune()["intents"].done == 1
    assert attic.is_empty(intent_id)


def test_what_nobody_can_open_any_more_is_emptied_too(attic: Attic) -> None:
    held = attic.desk.sandbox.plant(
        attic.desk.vendor_account, "payment_intents.create", {"amount": 900, "currency": "usd"}
    )
    intent_id = attic.desk.enqueue(tool=CAPTURE, payment_intent=held["id"], amount=900)
    row = attic.desk.leased(intent_id)
    attic.desk.record(row, Receipt(attic.reading(row, receipt_id=held["id"])))
    attic.desk.sql(
        "UPDATE outbox.intents SET args_codec = 'aesgcm:gone', request_codec = 'aesgcm:gone', "
        "receipt_codec = 'aesgcm:gone'"
    )
    attic.days(401)
    attic.desk.store.codec = codec_of("", OLD)
    assert attic.prune()["intents"].done == 1
    kept = attic.row(intent_id, "request_path, args_codec")
    assert kept == {
        "request_path": f"/v1/payment_intents/{held['id']}/capture",
        "args_codec": "plain",
    }


def test_another_amount_under_the_same_key_is_refused_as_before(attic: Attic) -> None:
    intent_id = attic.landed(invoice="in_guarded")
    attic.days(401)
    attic.prune()
    assert attic.is_empty(intent_id)
    with attic.desk.connect(autocommit=False) as connection:
        outbox, args = Outbox(attic.desk.settings), arguments("in_guarded", amount=1300)
        with pytest.raises(IntentMismatch) as refused:
            outbox.enqueue(connection, CHARGE, SCOPE, args)
    assert (UUID(refused.value.intent_id), refused.value.fields) == (intent_id, ("amount",))

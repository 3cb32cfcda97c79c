"""Ruling that a write landed: only on an object that the vendor shows now and that is ours."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Denied, Invalid, Unreachable
from outbox.contract import Account
from outbox.contracts import CONTRACTS
from outbox.contracts.stripe import STRIPE
from outbox.outcomes import Lost, Receipt
from outbox.store import intents
from outbox.store.contradictions import contradict
from resolvers import triage
from resolvers.directory import Directory
from tests.cli.conftest import desk, sandbox  # noqa: F401
from tests.cli.desk import CAPTURE, Desk
from tests.workers.floor import READS


def rule(desk: Desk, reference: UUID | str, receipt: str = "", **changes: Any) -> triage.Ruling:
    given = {"by": "alice", "reason": "seen in the dashboard", **changes}
    directory = given.pop("directory", desk.directory)
    return triage.landed(desk.store, directory, str(reference), receipt, **given)


def other_directory(desk: Desk, **changes: Any) -> Directory:
    """The same adapters with the account configured in another way."""
    account = replace(desk.settings.accounts["stripe", "default"], **changes)
    settings = replace(desk.settings, accounts={("stripe", "default"): account})
    adapter = desk.directory.vendor("stripe")
    assert adapter is not None
    return Directory(settings, {"stripe": adapter})


def test_a_lost_ack_is_ruled_landed_by_the_object_that_the_vendor_shows(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    ruling = rule(desk, question, object_id)
    row = desk.row(intent_id)
    assert ruling.changed
    assert (row.status, row.receipt_id, row.business_status) == ("succeeded", object_id, "paid")
    assert (row.doubt, row.settled_by) == (0, "ruling")
    assert desk.settlements(intent_id) == [("settled", "succeeded", "settled")]
    closed = desk.escalation(question)
    assert (closed["verdict"], closed["closed_by"]) == ("landed", "alice")
    (event,) = desk.events(intent_id, "ruled_landed")
    assert (event["actor"], event["reason"]) == ("alice", "seen in the dashboard")
    assert (event["from_status"], event["to_status"]) == ("unknown", "succeeded")
    assert len(desk.sandbox.effects(desk.vendor_account)) == 1


def test_a_receipt_of_another_intent_is_refused_and_changes_nothing(desk: Desk) -> None:
    """B16: the receipt id is checked upstream: it exists, and it is not this intent's."""
    _, foreign = desk.lost(landed=True)
    intent_id, _ = desk.lost()
    before = desk.row(intent_id)
    with pytest.raises(Denied, match=f"has no {foreign} that is of this intent"):
        rule(desk, intent_id, foreign)
    assert desk.row(intent_id) == before


def test_a_receipt_that_the_vendor_does_not_have_is_refused(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, "pi_nothing")
    assert refused.value.code == "no_such_receipt"
    assert desk.row(intent_id).status == "unknown"


def planted(desk: Desk, intent_id: UUID, amount: int) -> str:
    marks = {
        "outbox_id": str(intent_id),
        "outbox_key": bytes(desk.row(intent_id).key).hex(),
    }
    params = {
        "amount": amount,
        "currency": "usd",
        "confirm": "true",
        "payment_method": "pm_card_visa",
        "metadata": marks,
    }
    made = desk.sandbox.plant(desk.vendor_account, "payment_intents.create", params)
    return str(made["id"])


def test_an_object_of_ours_with_another_amount_is_refused(desk: Desk) -> None:
    intent_id, _ = desk.lost(amount=1200)
    object_id = planted(desk, intent_id, 9900)
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, object_id)
    assert refused.value.code == "another_amount"
    assert desk.row(intent_id).status == "unknown"


def test_another_amount_that_a_person_was_asked_about_can_be_ruled_on(desk: Desk) -> None:
    intent_id, _ = desk.lost(amount=1200)
    object_id = planted(desk, intent_id, 9900)
    with desk.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        assert row is not None
        contradict(tx, row, "another_amount", [object_id], "look-up")
    rule(desk, intent_id, object_id)
    row = desk.row(intent_id)
    assert (row.status, row.contradicted_at) == ("succeeded", None)
    assert desk.settlements(intent_id)[-1] == ("settled", "succeeded", "settled")


def test_a_receipt_is_refused_where_the_account_is_now_of_another_mode(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    live = other_directory(
        desk, mode="live", credential=desk.sandbox.api_key(desk.vendor_account, live=True)
    )
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, object_id, directory=live)
    assert refused.value.code == "another_mode"
    assert desk.row(intent_id).status == "unknown"


def test_a_receipt_is_refused_where_the_account_was_exchanged(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    desk.sql("UPDATE outbox.intents SET vendor_account = 'acct_before'")
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, object_id)
    assert refused.value.code == "another_account"


def test_nothing_is_ruled_while_the_vendor_cannot_be_reached(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    before = desk.row(intent_id)
    away = other_directory(desk, base_url="http://127.0.0.1:9")
    with pytest.raises(Unreachable):
        rule(desk, intent_id, object_id, directory=away)
    assert desk.row(intent_id) == before


@pytest.mark.parametrize("verdict", ["landed", "not landed"])
def test_a_verdict_does_not_wait_for_a_vendor_that_drips(desk: Desk, verdict: str) -> None:
    intent_id, object_id = desk.lost(landed=True)
    desk.quiet()
    policy = replace(desk.settings.policy, look_deadline_s=0.5)
    adapter = desk.directory.vendor("stripe")
    assert adapter is not None
    impatient = Directory(replace(desk.settings, policy=policy), {"stripe": adapter})
    desk.sandbox.fault("drip", endpoint=READS, after_s=30, account=desk.vendor_account)
    ask = triage.landed if verdict == "landed" else triage.not_landed
    stated = [object_id] if verdict == "landed" else []
    with pytest.raises(Unreachable):
        ask(desk.store, impatient, str(intent_id), *stated, by="alice", reason="seen")
    assert desk.row(intent_id).status == "unknown"
    desk.sandbox.clear_faults(desk.vendor_account)


def test_a_verdict_without_a_receipt_is_refused_where_the_vendor_can_be_asked(desk: Desk) -> None:
    """B16: no verdict of success without a receipt."""
    intent_id, _ = desk.lost(landed=True)
    with pytest.raises(Invalid) as refused:
        rule(desk, intent_id)
    assert refused.value.field == "receipt"


@pytest.mark.parametrize(("by", "reason"), [("", "because"), ("alice", "  ")])
def test_a_verdict_needs_a_name_and_a_reason(desk: Desk, by: str, reason: str) -> None:
    intent_id, object_id = desk.lost(landed=True)
    with pytest.raises(Invalid):
        rule(desk, intent_id, object_id, by=by, reason=reason)


def test_a_declined_object_is_no_proof_that_the_write_landed(desk: Desk) -> None:
    intent_id = desk.enqueue(payment_method="pm_card_chargeDeclined")
    (row,) = desk.claim()
    desk.perform(row)
    desk.record(row, Lost("no reply"))
    (effect,) = desk.sandbox.effects(desk.vendor_account)
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, effect["object_id"])
    assert refused.value.code == "not_landed"


def test_what_was_never_sent_cannot_have_landed(desk: Desk) -> None:
    intent_id = desk.enqueue()
    with pytest.raises(Denied, match="nothing was ever sent"):
        rule(desk, intent_id, "pi_1")


def test_what_a_worker_is_sending_is_left_to_it(desk: Desk) -> None:
    intent_id = desk.enqueue()
    desk.claim()
    with pytest.raises(Denied, match="a worker is sending it until"):
        rule(desk, intent_id, "pi_1")


def test_the_same_verdict_twice_changes_nothing_and_says_who_ruled(desk: Desk) -> None:
    """B16: the second time is a no-op."""
    intent_id, object_id = desk.lost(landed=True)
    rule(desk, intent_id, object_id)
    before = desk.row(intent_id)
    again = rule(desk, intent_id, object_id, by="bob")
    assert not again.changed
    assert "ruled_landed by alice at" in again.said
    assert desk.row(intent_id) == before
    assert len(desk.events(intent_id, "ruled_landed")) == 1


def test_another_receipt_after_the_verdict_is_refused_with_who_decided(desk: Desk) -> None:
    _, foreign = desk.lost(landed=True)
    intent_id, object_id = desk.lost(landed=True)
    rule(desk, intent_id, object_id)
    with pytest.raises(Denied, match="ruled_landed by alice at"):
        rule(desk, intent_id, foreign, by="bob")


def test_a_dry_run_asks_the_vendor_and_changes_nothing(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    before = desk.row(intent_id)
    tried = rule(desk, intent_id, object_id, dry_run=True)
    assert (tried.changed, tried.dry_run, tried.receipt_id) == (False, True, object_id)
    assert desk.row(intent_id) == before
    with pytest.raises(Denied):
        rule(desk, intent_id, "pi_nothing", dry_run=True)


def test_where_the_vendor_cannot_be_asked_the_verdict_is_the_receipt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTRACTS, "stripe", replace(STRIPE, can_look_up=False))
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    rule(desk, question, "their fax of 3 March")
    row = desk.row(intent_id)
    assert (row.status, row.receipt_id) == ("succeeded", f"verdict:{question}")
    (event,) = desk.events(intent_id, "ruled_landed")
    assert event["detail"]["receipt_stated"] == "their fax of 3 March"


def test_a_contradicted_success_is_told_again_once_a_person_has_ruled_that_it_stands(
    desk: Desk,
) -> None:
    intent_id, object_id = desk.succeeded()
    with desk.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        assert row is not None
        contradict(tx, row, "contradiction", ["pi_other"], "a second object")
    assert desk.settlements(intent_id)[-1] == ("contradiction", "succeeded", "unknown")
    rule(desk, intent_id, object_id)
    row = desk.row(intent_id)
    assert (row.status, row.contradicted_at) == ("succeeded", None)
    assert desk.settlements(intent_id)[-1] == ("ruled", "succeeded", "settled")
    (question,) = desk.sql("SELECT * FROM outbox.escalations")
    assert (question["verdict"], question["closed_by"]) == ("landed", "alice")


def test_a_capture_is_proved_by_the_object_it_was_to_change_and_by_no_other(desk: Desk) -> None:
    params = {
        "amount": 1200,
        "currency": "usd",
        "confirm": "true",
        "payment_method": "pm_card_visa",
        "capture_method": "manual",
    }
    target, other = (
        str(desk.sandbox.plant(desk.vendor_account, "payment_intents.create", params)["id"])
        for _ in range(2)
    )
    intent_id = desk.enqueue(CAPTURE, payment_intent=target, amount=1200)
    (row,) = desk.claim()
    assert isinstance(desk.perform(row), Receipt)
    desk.record(row, Lost("no reply"))
    with pytest.raises(Denied):
        rule(desk, intent_id, other)
    rule(desk, intent_id, target)
    assert desk.row(intent_id).receipt_id == target


def test_a_write_ruled_not_landed_that_landed_after_all_is_a_question_and_no_silent_flip(
    desk: Desk,
) -> None:
    """B35(a): a person closed the case; then the vendor says that the money moved. Both are kept,
    one page says so, nothing is refunded by itself, and a person's next ruling is told."""
    intent_id, _ = desk.lost()
    row = desk.row(intent_id)
    desk.quiet()
    triage.not_landed(
        desk.store, desk.directory, str(intent_id), by="alice", reason="nothing there"
    )
    late = desk.perform(row)
    assert isinstance(late, Receipt)
    from resolvers.evidence import apply_reading

    with desk.store.transaction() as tx:
        current = intents.lock(tx, intent_id)
        assert current is not None
        apply_reading(tx, current, late.reading, actor="webhook", source="webhook")
    row = desk.row(intent_id)
    assert (row.status, row.failure_code) == ("failed_poison", "ruled_not_landed")
    assert row.contradicted_at is not None
    assert desk.settlements(intent_id)[-1] == ("contradiction", "failed_poison", "unknown")
    (question,) = desk.sql("SELECT * FROM outbox.escalations WHERE closed_at IS NULL")
    assert question["detail"]["objects"] == [late.reading.receipt_id]
    pages = desk.sql("SELECT * FROM outbox.pages WHERE action = 'trigger'")
    assert [p["escalation_id"] for p in pages] == [question["id"]]
    with pytest.raises(Denied, match=late.reading.receipt_id):
        triage.not_landed(desk.store, desk.directory, str(intent_id), by="bob", reason="still not")
    rule(desk, intent_id, late.reading.receipt_id)
    assert desk.row(intent_id).receipt_id == late.reading.receipt_id
    assert desk.settlements(intent_id)[-1] == ("ruled", "succeeded", "settled")
    kinds = [e["kind"] for e in desk.sql("SELECT kind FROM outbox.events ORDER BY id")]
    assert [k for k in kinds if k.startswith("ruled")] == ["ruled_not_landed", "ruled_landed"]
    assert [e["kind"] for e in desk.sandbox.effects(desk.vendor_account)] == [
        "payment_intent.create"
    ]


def test_an_account_without_credentials_here_is_refused_and_said(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    nobody: dict[tuple[str, str], Account] = {}
    bare = Directory(replace(desk.settings, accounts=nobody), {})
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id, object_id, directory=bare)
    assert refused.value.code == "no_credentials"

"""Ruling that a write never landed: only once it no longer can, and the vendor shows nothing."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Denied, Unreachable
from outbox.contracts import CONTRACTS
from outbox.contracts.stripe import STRIPE
from outbox.outcomes import Lost
from resolvers import triage
from resolvers.directory import Directory
from tests.cli.conftest import desk, sandbox  # noqa: F401
from tests.cli.desk import Desk


def rule(desk: Desk, reference: UUID, **changes: Any) -> triage.Ruling:
    given = {"by": "alice", "reason": "the vendor has nothing of it", **changes}
    directory = given.pop("directory", desk.directory)
    return triage.not_landed(desk.store, directory, str(reference), **given)


def test_nothing_is_ruled_absent_while_the_request_may_still_land(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    policy = desk.settings.policy
    bound_s = policy.lease_s + policy.quiet_after_s(desk.contract)
    with pytest.raises(Denied) as refused:
        rule(desk, intent_id)
    assert refused.value.code == "not_quiet"
    wait_s = int(str(refused.value).split("another ")[1].split(" s")[0])
    assert 0 < wait_s <= bound_s + 1
    desk.forward(wait_s)
    assert rule(desk, intent_id).changed


def test_after_quiescence_a_look_that_finds_nothing_lets_a_person_rule(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    desk.quiet()
    rule(desk, question)
    row = desk.row(intent_id)
    assert (row.status, row.receipt_id) == ("failed_poison", None)
    assert (row.failure_code, row.settled_by) == ("ruled_not_landed", "ruling")
    assert desk.settlements(intent_id) == [("settled", "failed_poison", "failed")]
    assert desk.escalation(question)["verdict"] == "not-landed"
    (event,) = desk.events(intent_id, "ruled_not_landed")
    assert (event["actor"], event["reason"]) == ("alice", "the vendor has nothing of it")


def test_a_write_that_the_vendor_shows_is_not_ruled_away(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    desk.quiet()
    before = desk.row(intent_id)
    with pytest.raises(Denied, match=object_id):
        rule(desk, intent_id)
    assert desk.row(intent_id) == before


def test_nothing_is_ruled_absent_while_the_vendor_cannot_be_read(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    desk.quiet()
    account = replace(desk.settings.accounts["stripe", "default"], base_url="http://127.0.0.1:9")
    settings = replace(desk.settings, accounts={("stripe", "default"): account})
    adapter = desk.directory.vendor("stripe")
    assert adapter is not None
    with pytest.raises(Unreachable):
        rule(desk, intent_id, directory=Directory(settings, {"stripe": adapter}))
    assert desk.row(intent_id).status == "unknown"


def test_a_declined_object_is_kept_beside_the_ruling(desk: Desk) -> None:
    intent_id = desk.enqueue(payment_method="pm_card_chargeDeclined")
    (row,) = desk.claim()
    desk.perform(row)
    desk.record(row, Lost("no reply"))
    (effect,) = desk.sandbox.effects(desk.vendor_account)
    desk.quiet()
    rule(desk, intent_id)
    ruled = desk.row(intent_id)
    assert (ruled.status, ruled.receipt_id) == ("failed_poison", effect["object_id"])
    assert ruled.failure_code != "ruled_not_landed"


def test_the_same_ruling_twice_is_told_and_changes_nothing(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    desk.quiet()
    rule(desk, intent_id)
    before = desk.row(intent_id)
    again = rule(desk, intent_id, by="bob")
    assert not again.changed
    assert "ruled_not_landed by alice at" in again.said
    assert desk.row(intent_id) == before


def test_a_success_is_not_ruled_away_and_says_who_decided(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    triage.landed(desk.store, desk.directory, str(intent_id), object_id, by="bob", reason="seen")
    with pytest.raises(Denied, match=f"{object_id}: ruled_landed by bob at"):
        rule(desk, intent_id)


def test_what_a_worker_is_sending_is_left_to_it(desk: Desk) -> None:
    intent_id = desk.enqueue()
    desk.claim()
    with pytest.raises(Denied, match="a worker is sending it"):
        rule(desk, intent_id)


def test_a_dry_run_looks_and_changes_nothing(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    desk.quiet()
    before = desk.row(intent_id)
    assert rule(desk, intent_id, dry_run=True).dry_run
    assert desk.row(intent_id) == before


def test_a_person_rules_alone_where_the_vendor_cannot_be_read_but_not_before_quiescence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTRACTS, "stripe", replace(STRIPE, can_look_up=False))
    intent_id, _ = desk.lost()
    with pytest.raises(Denied):
        rule(desk, intent_id)
    desk.quiet()
    assert rule(desk, intent_id).changed


def raced(
    desk: Desk, intent_id: UUID, *verdicts: Callable[[], triage.Ruling]
) -> list[triage.Ruling | Denied]:
    """Every verdict at once: all have read the row before the first of them writes it."""
    results: list[triage.Ruling | Denied] = []

    def judge(verdict: Callable[[], triage.Ruling]) -> None:
        try:
            results.append(verdict())
        except Denied as refused:
            results.append(refused)

    threads = [threading.Thread(target=judge, args=(v,)) for v in verdicts]
    with desk.held("intents", intent_id) as until_waiting:
        for thread in threads:
            thread.start()
        until_waiting(len(threads))
    for thread in threads:
        thread.join()
    return results


def test_of_two_opposite_verdicts_at_once_one_wins_and_the_other_is_told_who_and_when(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12(b): one approves, one rejects; only the winner's verdict has an effect."""
    monkeypatch.setitem(CONTRACTS, "stripe", replace(STRIPE, can_look_up=False))
    intent_id, _ = desk.lost()
    desk.quiet()
    results = raced(
        desk,
        intent_id,
        lambda: rule(desk, intent_id),
        lambda: triage.landed(desk.store, desk.directory, str(intent_id), by="bob", reason="seen"),
    )
    (won,) = [r for r in results if isinstance(r, triage.Ruling)]
    (lost,) = [r for r in results if isinstance(r, Denied)]
    winner = {"landed": "bob", "not-landed": "alice"}[won.verb]
    assert f"by {winner} at " in str(lost)
    assert desk.row(intent_id).status == won.status
    assert len(desk.settlements(intent_id)) == 1


def test_of_two_people_with_the_same_verdict_at_once_one_has_ruled(desk: Desk) -> None:
    """B12(a): both approve; it happens once, and the second is told who was first."""
    intent_id, object_id = desk.lost(landed=True)
    results = raced(
        desk,
        intent_id,
        *(
            lambda name=name: triage.landed(
                desk.store, desk.directory, str(intent_id), object_id, by=name, reason="seen"
            )
            for name in ("alice", "bob")
        ),
    )
    assert sorted(type(r).__name__ for r in results) == ["Denied", "Ruling"]
    (event,) = desk.events(intent_id, "ruled_landed")
    (lost,) = [r for r in results if isinstance(r, Denied)]
    assert f"ruled_landed by {event['actor']} at" in str(lost)


def test_a_look_up_in_between_does_not_cost_a_person_the_verdict(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    desk.quiet()
    case = triage.read_case(desk.store, str(intent_id))
    desk.sql("UPDATE outbox.intents SET version = version + 1, looks = looks + 1")
    ruling = triage.not_landed(desk.store, desk.directory, case, by="alice", reason="nothing")
    assert ruling.changed


def test_a_late_answer_between_the_question_and_the_verdict_refuses_the_verdict(
    desk: Desk,
) -> None:
    intent_id = desk.enqueue()
    (row,) = desk.claim()
    desk.record(row, Lost("no reply"))
    desk.quiet()
    case = triage.read_case(desk.store, str(intent_id))
    desk.record(row, desk.perform(row))
    with pytest.raises(Denied):
        triage.not_landed(desk.store, desk.directory, case, by="alice", reason="nothing")
    assert desk.row(intent_id).status == "succeeded"


@pytest.mark.parametrize("word", ["requires_confirmation", "requires_payment_method"])
def test_a_write_whose_object_is_still_open_is_not_ruled_away_and_can_still_land(
    desk: Desk, word: str
) -> None:
    intent_id, object_id = desk.lost(landed=True)
    desk.quiet()
    desk.sandbox.move(object_id, word)
    before = desk.row(intent_id)
    with pytest.raises(Denied, match=rf"{object_id} \({word}\)") as refused:
        rule(desk, intent_id)
    assert refused.value.code == "open"
    assert desk.row(intent_id) == before
    desk.sandbox.move(object_id, "succeeded")
    triage.landed(desk.store, desk.directory, str(intent_id), object_id, by="bob", reason="seen")
    assert desk.settlements(intent_id) == [("settled", "succeeded", "settled")]

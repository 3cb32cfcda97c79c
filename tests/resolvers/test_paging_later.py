"""A question that was asked while nobody could be paged reaches a person later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outbox.policy import Policy
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Answer, Target, file_pager, pagers_of

HOUR_S = 3600.0


@pytest.fixture
def ledger_policy() -> Policy:
    """Real periods and thresholds."""
    return Policy()


def test_a_question_asked_while_there_was_no_pager_is_paged_once_there_is_one(
    ledger: Ledger, first: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    for _ in range(3):
        page_once(ledger.store, (), ledger.settings)
        ledger.forward(HOUR_S)
    for _ in range(3):
        page_once(ledger.store, pagers_of(first), ledger.settings)
        ledger.forward(HOUR_S)
    assert first.seen == [("trigger", f"outbox:{escalation}:ttl")]
    ledger.close(escalation)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert first.seen[1:] == [("resolve", f"outbox:{escalation}:ttl")]


def test_many_questions_asked_while_there_was_no_pager_are_one_page_and_closed_ones_are_none(
    ledger: Ledger, first: Target
) -> None:
    asked = [ledger.escalate(ledger.intent()) for _ in range(70)]
    page_once(ledger.store, (), ledger.settings)
    page_once(ledger.store, (), ledger.settings)
    assert {page["state"] for page in ledger.pages()} == {"dropped"}
    late = [ledger.escalate(ledger.intent()) for _ in range(2)]
    page_once(ledger.store, (), ledger.settings)
    states = [(page["state"], page["detail"]) for page in ledger.pages()[-len(late) :]]
    assert states == [("dropped", "no pager")] * 2
    for each in asked[:10]:
        ledger.close(each)
    page_once(ledger.store, (), ledger.settings)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [body["payload"]["custom_details"]["count"] for body in first.bodies] == [62]


def test_a_group_told_before_is_told_of_what_was_asked_while_there_was_no_pager(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for _ in range(5):
        ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    for _ in range(6):
        ledger.escalate(ledger.intent())
    page_once(ledger.store, (), ledger.settings)
    page_once(ledger.store, pagers, ledger.settings)
    assert [body["payload"]["custom_details"]["count"] for body in first.bodies] == [5, 11]


def test_a_process_without_a_pager_does_not_swallow_the_resolve_of_a_page_that_was_shown(
    ledger: Ledger, first: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.close(escalation)
    page_once(ledger.store, (), ledger.settings)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve"]


def test_a_page_that_failed_before_the_pager_was_taken_away_is_resolved_where_it_may_be_shown(
    ledger: Ledger, first: Target
) -> None:
    first.answers = [Answer(202, drop=True)]
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.forward(30)
    page_once(ledger.store, (), ledger.settings)
    ledger.close(escalation)
    page_once(ledger.store, (), ledger.settings)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve"]


def test_an_open_question_whose_target_is_gone_is_told_at_the_present_one(
    ledger: Ledger, first: Target, tmp_path: Path
) -> None:
    before, seen = file_pager(tmp_path)
    for amount in (1200, 1300, 1400, 1500):
        ledger.escalate(ledger.intent(amount=amount))
    page_once(ledger.store, before, ledger.settings)
    ledger.escalate(ledger.intent())
    page_once(ledger.store, before, ledger.settings)
    told = len(seen())
    pagers = pagers_of(first)
    page_once(ledger.store, pagers, ledger.settings)
    assert first.seen == [], "it was told of a moment ago"
    for _ in range(3):
        ledger.forward(1800)
        page_once(ledger.store, pagers, ledger.settings)
    (body,) = first.bodies
    assert body["payload"]["custom_details"]["count"] == 5
    assert len(seen()) == told
    lines = (tmp_path / "pages.jsonl").read_text().splitlines()
    assert body["dedup_key"] == json.loads(lines[-1])["dedup_key"]


def test_two_processes_with_two_settings_do_not_tell_each_others_pages_without_end(
    ledger: Ledger, first: Target, second: Target
) -> None:
    one, other = pagers_of(first, second)
    ledger.escalate(ledger.intent())
    for _ in range(24):
        for pager in (one, other):
            page_once(ledger.store, [pager], ledger.settings)
        ledger.forward(300)
    assert 2 <= len(first.seen) + len(second.seen) <= 5

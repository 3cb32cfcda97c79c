"""A group of questions swallows none that comes later, and pages nobody per question."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outbox import Settings
from outbox.policy import Policy
from outbox.store import vitals
from resolvers import grouping
from resolvers.pagers import parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Answer, Target, file_pager, pagers_of
from tests.resolvers.questions import LEAST, ask, groups, page, triggers

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def ledger_policy() -> Policy:
    """Real periods and thresholds."""
    return Policy()


def test_a_larger_amount_is_told_at_once_although_its_group_was_shown(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    (group,) = groups(ledger)
    key = f"outbox:{group['id']}:ttl"
    (large,) = ask(ledger, amount=99_999_900)
    page(ledger, pagers)
    assert triggers(first)[1][:2] == (f"{key}:2", LEAST + 1)
    assert triggers(first)[1][2].startswith(str(large))
    assert "largest 99999900 usd (minor units)" in first.bodies[1]["payload"]["summary"]
    ask(ledger, amount=99_999_900)
    ask(ledger, amount=500)
    page(ledger, pagers)
    assert len(triggers(first)) == 2, "no larger than what was told"
    ask(ledger, amount=100, currency="eur")
    page(ledger, pagers)
    assert [k for k, _, _ in triggers(first)] == [key, f"{key}:2", f"{key}:3"], "another currency"


def test_what_was_found_counts_as_an_amount_like_what_was_asked_for(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for _ in range(LEAST):
        ledger.escalate(ledger.intent(), "contradiction")
    page(ledger, pagers)
    late = ledger.intent()
    found = ledger.escalate(late, "contradiction")
    ledger.sql(
        "UPDATE outbox.escalations SET detail = detail || "
        """'{"found": [{"object": "pi_1", "amount_minor": 99999900, "currency": "usd"}]}' """
        "WHERE id = %(id)s",
        {"id": found},
    )
    page(ledger, pagers)
    assert len(triggers(first)) == 2


def test_one_question_left_open_of_a_group_swallows_no_later_one(
    ledger: Ledger, first: Target
) -> None:
    """Six equal charges over a day, at a target that is not paged again by us."""
    pagers = pagers_of(first)
    asked = ask(ledger, LEAST)
    page(ledger, pagers)
    for each in asked[1:]:
        ledger.close(each)
    late = []
    for _ in range(6):
        late += ask(ledger, amount=99_999_900)
        page(ledger, pagers, 4 * HOUR_S)
    page(ledger, pagers, DAY_S)
    alone = [key for key, count, _ in triggers(first) if count is None]
    assert alone == [f"outbox:{each}:ttl" for each in late[:3]], "too few for a group"
    grouped = [(key, count) for key, count, _ in triggers(first) if count]
    assert grouped[-1][1] == 7, "and the last of them is told of"
    assert len(grouped) == 3
    states = ledger.sql("SELECT state FROM outbox.pages WHERE action = 'trigger'")
    assert "due" not in {row["state"] for row in states}


def test_a_question_that_waits_for_its_group_is_told_by_itself_when_the_group_shrinks(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    asked = ask(ledger, LEAST)
    page(ledger, pagers)
    (late,) = ask(ledger)
    page(ledger, pagers)
    assert len(triggers(first)) == 1
    for each in asked[1:]:
        ledger.close(each)
    page(ledger, pagers)
    assert [key for key, _, _ in triggers(first)[1:]] == [f"outbox:{late}:ttl"]


def test_what_trickles_in_costs_pages_by_its_logarithm_and_ends_told(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    for _ in range(75):
        ask(ledger)
        page(ledger, pagers, 1.0)
    assert [count for _, count, _ in triggers(first)] == [5, 10, 20, 40, 80]
    ask(ledger)
    page(ledger, pagers)
    for after_s, wanted in ((1500, 5), (400, 6), (DAY_S, 6)):
        page(ledger, pagers, after_s)
        assert len(triggers(first)) == wanted, "the last one waits for a quiet while, and no more"
    assert triggers(first)[-1][1] == 81
    assert len({key for key, _, _ in triggers(first)}) == 6


def test_questions_over_days_wait_a_day_at_the_most(ledger: Ledger, first: Target) -> None:
    pagers = pagers_of(first)
    ask(ledger, 60)
    page(ledger, pagers)
    ask(ledger)
    page(ledger, pagers, 9 * DAY_S)
    assert triggers(first)[-1][1] == 61
    ask(ledger)
    page(ledger, pagers)
    told = len(triggers(first))
    page(ledger, pagers, DAY_S + 1)
    assert len(triggers(first)) == told + 1
    assert triggers(first)[-1][1] == 62


def test_a_storm_after_a_group_was_shown_is_one_more_page(ledger: Ledger, first: Target) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    ask(ledger, 200)
    page(ledger, pagers)
    page(ledger, pagers, HOUR_S)
    assert [count for _, count, _ in triggers(first)] == [LEAST, LEAST + 200]


def test_what_is_asked_while_the_others_are_grouped_is_not_told_of_by_itself(
    ledger: Ledger, first: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm is committed in pieces, beside the paging: dozens were paged one by one."""
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    left = [3, 2, 1]

    def group(*given: Any) -> None:
        grouping.group(*given)
        if left:
            ask(ledger, left.pop())

    monkeypatch.setattr("resolvers.paging.group", group)
    page(ledger, pagers)
    assert not left
    (of_all,) = groups(ledger)
    assert {k.split(":")[1] for k, _, _ in triggers(first)} == {str(of_all["id"])}


def test_a_target_without_a_policy_is_told_of_news_under_the_same_key(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    ask(ledger, LEAST)
    page(ledger, pagers)
    (large,) = ask(ledger, amount=99_999_900)
    page(ledger, pagers)
    ask(ledger)
    page(ledger, pagers)
    assert len(seen()) == 2
    page(ledger, pagers, 1800)
    assert len(seen()) == 3
    assert len(set(seen())) == 1
    told = [json.loads(line) for line in (tmp_path / "pages.jsonl").read_text().splitlines()]
    assert [each["details"]["count"] for each in told] == [LEAST, LEAST + 1, LEAST + 2]
    assert str(large) in told[1]["details"]["sample_escalations"]
    waiting = ledger.sql("SELECT id FROM outbox.pages WHERE state = 'due'")
    assert waiting == [], "what was told again told of the last one too"


def test_an_alert_that_is_only_kept_alive_does_not_count_as_news_told(
    ledger: Ledger, first: Target
) -> None:
    first.last = Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    ask(ledger, 4 * LEAST)
    page(ledger, pagers)
    for _ in range(4):
        page(ledger, pagers, 1800)
    ask(ledger)
    page(ledger, pagers)
    keys = {alert["labels"]["outbox_key"] for (alert,) in first.bodies}
    assert len(keys) == 2, "quiet for two hours: a new alert tells of it"


def test_a_page_that_may_have_been_shown_does_not_stand_for_what_came_after_it(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    first.answers = [Answer(202, drop=True)]
    ask(ledger, LEAST)
    page(ledger, pagers)
    ask(ledger, amount=99_999_900)
    page(ledger, pagers)
    page(ledger, pagers, 30)
    page(ledger, pagers)
    (group,) = groups(ledger)
    key = f"outbox:{group['id']}:ttl"
    assert [k for k, _, _ in triggers(first)] == [key, key, f"{key}:2"]


def test_a_question_settled_while_it_waits_is_told_to_nobody_and_keeps_nothing_due(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    (late,) = ask(ledger)
    page(ledger, pagers)
    ledger.close(late)
    page(ledger, pagers)
    assert len(first.seen) == 1
    assert ledger.sql("SELECT id FROM outbox.pages WHERE state = 'due'") == []


def test_health_does_not_call_a_page_late_that_waits_for_its_group(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    ask(ledger, 3 * LEAST)
    page(ledger, pagers)
    ask(ledger)
    page(ledger, pagers)
    ledger.forward(1200)
    with ledger.store.transaction() as tx:
        assert vitals.gauges(tx)["oldest_page_s"] is None


def test_a_setting_that_never_pages_again_still_tells_of_a_later_question(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    never = replace(ledger.settings, policy=replace(Policy(), repage_s=10**9))
    ask(ledger, LEAST)
    page_once(ledger.store, pagers, never)
    ask(ledger, LEAST)
    page_once(ledger.store, pagers, never)
    assert [count for _, count, _ in triggers(first)] == [LEAST, 2 * LEAST]

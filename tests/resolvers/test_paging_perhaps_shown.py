"""A page that a target may show although no answer said so: a hold is told there, what forgets is
reminded, and the question does not fall silent afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from outbox.settings import Settings
from resolvers.page import Pager
from resolvers.pagers import parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import (
    Answer,
    Died,
    DiesAfterSending,
    Target,
    file_pager,
    pagers_of,
)
from tests.resolvers.questions import hold, page

HOUR_S = 3600.0


def pages_for(ledger: Ledger, pagers: Sequence[Pager], *waits_s: float) -> None:
    for wait_s in waits_s:
        page(ledger, pagers, wait_s)


@pytest.mark.parametrize("verb", ["ack", "mute"])
@pytest.mark.parametrize("lost", [Answer(202, drop=True), Answer(503)], ids=["no answer", "503"])
def test_a_policy_that_took_a_page_and_did_not_say_so_is_told_to_rest_and_told_anew_afterwards(
    ledger: Ledger, first: Target, verb: str, lost: Answer
) -> None:
    first.answers = [lost]
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    pages_for(ledger, pagers_of(first), 0)
    hold(ledger, verb, escalation, 10 * HOUR_S)
    pages_for(ledger, pagers_of(first), *[HOUR_S] * 9)
    assert first.seen == [("trigger", key), ("acknowledge", key)]
    # The old key rests there, if it is shown at all: only another one wakes somebody.
    pages_for(ledger, pagers_of(first), *[HOUR_S] * 3)
    assert first.seen[2:] == [("trigger", f"{key}:2")]
    ledger.close(escalation)
    pages_for(ledger, pagers_of(first), 0)
    assert sorted(first.seen[3:]) == [("resolve", key), ("resolve", f"{key}:2")]


def test_a_page_that_was_refused_has_nothing_to_rest_and_waits_for_the_end_of_the_hold(
    ledger: Ledger, first: Target
) -> None:
    first.answers = [Answer(429)]
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    pages_for(ledger, pagers_of(first), 0)
    hold(ledger, "ack", escalation, HOUR_S)
    pages_for(ledger, pagers_of(first), 0, 1800, 1900)
    assert first.seen == [("trigger", key)] * 2


def test_what_a_sender_died_with_is_told_to_rest_too(ledger: Ledger, first: Target) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    with pytest.raises(Died):
        page_once(ledger.store, [DiesAfterSending(pagers[0])], ledger.settings)
    hold(ledger, "ack", escalation, 10 * HOUR_S)
    pages_for(ledger, pagers, 0, 61, 61)
    assert first.seen == [("trigger", key), ("acknowledge", key)]


def test_a_target_without_a_policy_is_told_again_under_the_same_key_after_the_hold(
    ledger: Ledger, first: Target
) -> None:
    pagers = parse(Settings(pagers=(f"webhook:{first.url}",), pager_secret="s"))
    first.answers = [Answer(202, drop=True)]
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    pages_for(ledger, pagers, 0)
    hold(ledger, "ack", escalation, HOUR_S)
    pages_for(ledger, pagers, 0, 1800)
    assert first.seen == [("trigger", key), ("acknowledge", key)]
    pages_for(ledger, pagers, 1900)
    assert first.seen[2:] == [("trigger", key)]


def test_a_question_that_rests_where_nobody_pages_any_more_is_told_elsewhere(
    ledger: Ledger, first: Target, second: Target
) -> None:
    one, other = pagers_of(first, second)
    first.answers = [Answer(202, drop=True)]
    escalation = ledger.escalate(ledger.intent())
    pages_for(ledger, [one], 0)
    hold(ledger, "ack", escalation, HOUR_S)
    pages_for(ledger, [one], 0)
    pages_for(ledger, [other], 60)
    assert second.seen == []
    pages_for(ledger, [other], HOUR_S)
    assert second.seen == [("trigger", f"outbox:{escalation}:ttl")]


# -- Alertmanager, which forgets -----------------------------------------------------------------


def posted_in_time(target: Target) -> bool:
    """Whether each post came before the one before it would have ended by itself."""
    posts = [alert for (alert,) in target.bodies]
    return all(b["startsAt"] < a["endsAt"] <= b["endsAt"] for a, b in itertools.pairwise(posts))


@pytest.mark.parametrize("verb", ["ack", "mute"])
@pytest.mark.parametrize("lost", [Answer(200, drop=True), Answer(503)], ids=["no answer", "503"])
def test_an_alert_that_may_be_shown_does_not_end_by_itself_while_a_person_holds_it(
    ledger: Ledger, first: Target, verb: str, lost: Answer
) -> None:
    first.answers, first.last = [lost], Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    escalation = ledger.escalate(ledger.intent())
    pages_for(ledger, pagers, 0)
    hold(ledger, verb, escalation, 24 * HOUR_S)
    pages_for(ledger, pagers, *[900.0] * 40)
    assert len(first.requests) >= 20, "every half an hour"
    assert posted_in_time(first)


def test_an_alert_that_a_sender_died_with_does_not_end_by_itself_while_it_is_held(
    ledger: Ledger, first: Target
) -> None:
    first.last = Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    escalation = ledger.escalate(ledger.intent())
    with pytest.raises(Died):
        page_once(ledger.store, [DiesAfterSending(pagers[0])], ledger.settings)
    hold(ledger, "mute", escalation, 24 * HOUR_S)
    pages_for(ledger, pagers, *[900.0] * 20)
    assert len(first.requests) >= 10
    assert posted_in_time(first)


def test_an_alert_that_moved_on_before_the_hold_is_kept_where_it_may_be_shown_and_wakes_nobody(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = second.last = Answer(503)
    pagers = (*parse(Settings(pagers=(f"alertmanager:{first.url}",))), *pagers_of(second))
    escalation = ledger.escalate(ledger.intent())
    pages_for(ledger, pagers, 0, 31, 91, 1)
    woken = len(second.requests)
    assert woken
    hold(ledger, "mute", escalation, 24 * HOUR_S)
    first.last = Answer(200)
    pages_for(ledger, pagers, *[900.0] * 20)
    assert [action for action, _ in second.seen[woken:]].count("trigger") == 0
    assert len(first.requests) >= 10
    assert posted_in_time(first)


@pytest.mark.parametrize("held", [True, False], ids=["held", "not held"])
@pytest.mark.parametrize("after", ["pagerduty", "file"])
def test_an_alert_is_kept_where_it_may_be_shown_although_another_target_took_the_page(
    ledger: Ledger, first: Target, second: Target, tmp_path: Path, after: str, held: bool
) -> None:
    """PagerDuty is told once, a file as often as ever; the first would say that it is over."""
    in_file, seen_in_file = file_pager(tmp_path)
    taking = pagers_of(second) if after == "pagerduty" else in_file

    def seen() -> list[tuple[str, str]]:
        return second.seen if after == "pagerduty" else seen_in_file()

    first.answers, first.last = [Answer(503)] * 3, Answer(200)
    pagers = (*parse(Settings(pagers=(f"alertmanager:{first.url}",))), *taking)
    escalation = ledger.escalate(ledger.intent())
    pages_for(ledger, pagers, 0, 31, 91, 1)
    key = f"outbox:{escalation}:ttl"
    assert seen() == [("trigger", key)]
    if held:
        hold(ledger, "mute", escalation, 24 * HOUR_S)
    pages_for(ledger, pagers, *[910.0] * 20)
    assert len(first.requests) >= 3 + 9
    assert posted_in_time(first)
    told = [action for action, _ in seen()].count("trigger")
    assert told == 1 if after == "pagerduty" or held else told >= 9
    ledger.close(escalation)
    pages_for(ledger, pagers, 0)
    (ended,) = first.bodies[-1]
    assert ended["startsAt"] == ended["endsAt"]
    assert seen()[-1] == ("resolve", key)

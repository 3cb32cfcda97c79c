"""Paging against real targets and a real database: one notice, to somebody, never lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import (
    KEYS,
    Answer,
    Died,
    DiesAfterSending,
    Target,
    pagers_of,
)

HOLD_S = 60.0


def test_a_row_past_its_ttl_is_paged_once_however_often_and_however_many_look(
    ledger: Ledger, first: Target
) -> None:
    """B20: 50 runs over five hours, two of them always at once, one dying after its page was sent
    and before that was recorded."""
    intent = ledger.intent()
    escalation = ledger.escalate(intent)
    pagers = pagers_of(first)
    with pytest.raises(Died):
        page_once(ledger.store, [DiesAfterSending(pagers[0])], ledger.settings)
    for _ in range(25):
        ledger.forward(720)
        assert ledger.escalate(intent) == escalation
        both = [
            threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
            for _ in range(2)
        ]
        for each in both:
            each.start()
        for each in both:
            each.join()
    # The one that died and the one that took over: the same key, so the target shows one page.
    assert first.seen == [("trigger", f"outbox:{escalation}:ttl")] * 2
    assert [page["state"] for page in ledger.pages()] == ["sent"]


def test_a_sender_killed_between_send_and_record_leaves_the_page_to_the_next_with_the_same_key(
    ledger: Ledger, first: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    program = (
        "import sys; from outbox.settings import Settings; from resolvers.pagers import parse\n"
        "from outbox.store.connection import Store; from resolvers.paging import page_once\n"
        "settings = Settings(database_url=sys.argv[1], pagers=(sys.argv[2],))\n"
        "page_once(Store(settings), parse(settings), settings)\n"
    )
    spec = f"pagerduty:{KEYS[0]}@{first.url}"
    sender = subprocess.Popen(
        [sys.executable, "-c", program, ledger.settings.database_url, spec], cwd=os.getcwd()
    )
    first.before = sender.kill
    assert sender.wait() == -9
    first.before = None
    assert page_once(ledger.store, pagers_of(first), ledger.settings) == 0, "still held"
    ledger.forward(HOLD_S)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert first.seen == [("trigger", f"outbox:{escalation}:ttl")] * 2
    assert [page["state"] for page in ledger.pages()] == ["sent"]


def test_a_page_whose_sender_died_is_resolved_where_it_may_be_shown(
    ledger: Ledger, first: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    pagers = pagers_of(first)
    with pytest.raises(Died):
        page_once(ledger.store, [DiesAfterSending(pagers[0])], ledger.settings)
    ledger.close(escalation)
    ledger.forward(HOLD_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve"]


def test_a_target_that_kills_its_senders_is_left_for_the_next_one(
    ledger: Ledger, first: Target, second: Target
) -> None:
    ledger.escalate(ledger.intent())
    deadly, sound = pagers_of(first, second)
    pagers = [DiesAfterSending(deadly), sound]
    for _ in range(3):
        with pytest.raises(Died):
            page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(HOLD_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in second.seen] == ["trigger"]


def test_two_senders_at_once_send_every_page_once(ledger: Ledger, first: Target) -> None:
    wanted = [f"outbox:{ledger.escalate(ledger.intent())}:ttl" for _ in range(12)]
    pagers = pagers_of(first)
    together = threading.Barrier(3)

    def run() -> None:
        together.wait()
        page_once(ledger.store, pagers, ledger.settings)

    senders = [threading.Thread(target=run) for _ in range(3)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert sorted(key for _, key in first.seen) == sorted(wanted)


def test_three_failures_go_to_the_second_pager_and_a_resolve_to_both_that_may_show_it(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = Answer(503)
    escalation = ledger.escalate(ledger.intent())
    pagers = pagers_of(first, second)
    for wait_s in (0, 29, 1, 89, 1):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
    assert len(first.seen) == 3, "at 0, 30 and 120 s"
    assert len(second.seen) == 1, "and then the second pager at once"
    assert [page["pager"] for page in ledger.pages()] == [pagers[1].name]
    first.last = Answer(202)
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    key = f"outbox:{escalation}:ttl"
    assert first.seen[3:] == [("resolve", key)], "a 503 does not say that nothing was shown"
    assert second.seen[1:] == [("resolve", key)]


def test_a_pager_that_refuses_is_left_at_once_and_hears_no_resolve(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = Answer(400)
    escalation = ledger.escalate(ledger.intent())
    pagers = pagers_of(first, second)
    page_once(ledger.store, pagers, ledger.settings)
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger"]
    assert [action for action, _ in second.seen] == ["trigger", "resolve"]


def test_when_every_pager_fails_the_page_keeps_going_round_and_is_not_lost(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = second.last = Answer(500)
    ledger.escalate(ledger.intent())
    pagers = pagers_of(first, second)
    for _ in range(12):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(120)
    assert len(first.seen) > 3
    assert len(second.seen) > 3
    assert [page["state"] for page in ledger.pages()] == ["due"]
    first.last = Answer(202)
    for _ in range(2):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(120)
    assert [page["state"] for page in ledger.pages()] == ["sent"]


def test_one_pager_that_refuses_for_good_is_asked_again_since_nobody_else_is_there(
    ledger: Ledger, first: Target
) -> None:
    first.last = Answer(400)
    ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert page_once(ledger.store, pagers_of(first), ledger.settings) == 0
    first.last = Answer(202)
    ledger.forward(120)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [page["state"] for page in ledger.pages()] == ["sent"]


def test_a_target_that_says_when_to_come_back_is_left_alone_until_then(
    ledger: Ledger, first: Target
) -> None:
    first.answers = [Answer(429, {"Retry-After": "300"})]
    ledger.escalate(ledger.intent())
    for wait_s in (0, 299, 1):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers_of(first), ledger.settings)
        assert len(first.seen) == (2 if wait_s == 1 else 1)


def test_a_question_closed_before_its_page_went_out_is_told_to_nobody(
    ledger: Ledger, first: Target
) -> None:
    ledger.close(ledger.escalate(ledger.intent()))
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert first.seen == []
    assert {page["state"] for page in ledger.pages()} == {"dropped"}
    assert len(ledger.pages()) == 2


def test_a_page_that_may_have_been_shown_is_resolved_although_no_answer_said_so(
    ledger: Ledger, first: Target
) -> None:
    first.answers = [Answer(202, drop=True)]
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.close(escalation)
    ledger.forward(30)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve"]


def test_a_resolve_waits_for_a_trigger_that_is_still_to_be_repeated_and_is_repeated_itself(
    ledger: Ledger, first: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.close(escalation)
    first.answers = [Answer(503)]
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.forward(30)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve", "resolve"]
    assert {page["state"] for page in ledger.pages()} == {"sent"}


def test_a_resolve_for_a_pager_that_is_gone_from_the_settings_does_not_go_elsewhere(
    ledger: Ledger, first: Target, second: Target
) -> None:
    escalation = ledger.escalate(ledger.intent())
    one, other = pagers_of(first, second)
    page_once(ledger.store, [one], ledger.settings)
    ledger.close(escalation)
    page_once(ledger.store, [other], ledger.settings)
    assert second.seen == []
    assert [page["state"] for page in ledger.pages()] == ["sent", "dropped"]


def test_a_new_reason_is_a_page_of_its_own_and_one_that_comes_back_too(
    ledger: Ledger, first: Target
) -> None:
    intent = ledger.intent()
    escalation = ledger.escalate(intent)
    ledger.escalate(intent, "ttl", "window")
    page_once(ledger.store, pagers_of(first), ledger.settings)
    ledger.sql("UPDATE outbox.escalations SET reasons = '{window}'")
    ledger.escalate(intent, "ttl")
    page_once(ledger.store, pagers_of(first), ledger.settings)
    key = f"outbox:{escalation}:"
    assert [k for _, k in first.seen] == [f"{key}ttl", f"{key}window", f"{key}ttl:2"]
    ledger.close(escalation)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    resolved = sorted(k for action, k in first.seen if action == "resolve")
    assert resolved == [f"{key}ttl", f"{key}ttl:2", f"{key}window"]


def test_without_a_pager_pages_are_dropped_and_say_so(ledger: Ledger) -> None:
    ledger.escalate(ledger.intent())
    page_once(ledger.store, (), ledger.settings)
    assert [(p["state"], p["detail"]) for p in ledger.pages()] == [("dropped", "no pager")]

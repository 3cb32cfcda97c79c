"""Paging against real targets and a real database: one notice, to somebody, never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.policy import Policy
from outbox.settings import Settings
from resolvers.pagers import Page, Pager, Sent, parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger, open_ledger
from tests.resolvers.page_target import Answer, Target, page_target

KEYS = ("R0123456789abcdefghijklmnopqrstu", "S0123456789abcdefghijklmnopqrstu")
HOLD_S = 60.0


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with open_ledger(database) as found:
        yield found


@pytest.fixture
def first() -> Iterator[Target]:
    with page_target() as found:
        yield found


@pytest.fixture
def second() -> Iterator[Target]:
    with page_target() as found:
        yield found


def pagers_of(*targets: Target) -> tuple[Pager, ...]:
    specs = (f"pagerduty:{key}@{target.url}" for key, target in zip(KEYS, targets, strict=False))
    return parse(Settings(pagers=tuple(specs)))


def file_pager(tmp_path: Path) -> tuple[tuple[Pager, ...], Callable[[], list[tuple[str, str]]]]:
    """A pager without a policy of its own, and what it was told."""
    path = tmp_path / "pages.jsonl"

    def seen() -> list[tuple[str, str]]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [(page["action"], page["dedup_key"]) for page in map(json.loads, lines)]

    return parse(Settings(pagers=(f"file:{path}",))), seen


class Died(BaseException):
    """The process ended here."""


class DiesAfterSending:
    """The target was told and its sender died before it could write that down."""

    repages = True

    def __init__(self, pager: Pager) -> None:
        self.name = pager.name
        self._pager = pager

    def send(self, page: Page) -> Sent:
        self._pager.send(page)
        raise Died


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


@pytest.mark.parametrize("column", ["muted_until", "acked_until"])
def test_a_muted_or_acknowledged_question_is_paged_when_that_ends_and_not_before(
    ledger: Ledger, first: Target, column: str
) -> None:
    escalation = ledger.escalate(ledger.intent())
    ledger.sql(f"UPDATE outbox.escalations SET {column} = outbox.clock() + INTERVAL '1 hour'")
    for wait_s, wanted in ((0, 0), (3500, 0), (200, 1)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers_of(first), ledger.settings)
        assert len(first.seen) == wanted
    assert first.seen == [("trigger", f"outbox:{escalation}:ttl")]


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


def test_a_target_without_a_policy_of_its_own_is_told_again_until_somebody_looks(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    escalation = ledger.escalate(ledger.intent())
    for wait_s, wanted in ((0, 1), (1700, 1), (100, 2), (1800, 3)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
        assert len(seen()) == wanted
    ledger.sql("UPDATE outbox.escalations SET acked_until = outbox.clock() + INTERVAL '2 hours'")
    ledger.forward(3600)
    page_once(ledger.store, pagers, ledger.settings)
    assert len(seen()) == 3
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    assert seen()[3:] == [("resolve", f"outbox:{escalation}:ttl")]


def test_a_question_closed_while_it_was_due_to_be_told_again_is_still_resolved(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    ledger.forward(1800)
    page_once(ledger.store, pagers, ledger.settings, limit=0)
    assert [page["state"] for page in ledger.pages()] == ["due"]
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in seen()] == ["trigger", "resolve"]


def test_an_outage_of_one_account_is_one_page_with_a_count_until_its_last_question_is_closed(
    database: str, first: Target
) -> None:
    """B20: 500 rows past their TTL at once."""
    with open_ledger(database, Policy()) as ledger:
        asked = [ledger.escalate(ledger.intent()) for _ in range(40)]
        pagers = pagers_of(first)
        both = [
            threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
            for _ in range(2)
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        (page,) = first.bodies
        details = page["payload"]["custom_details"]
        assert details["count"] == 40
        assert details["sample_escalations"].split(", ") == [str(each) for each in asked[:5]]
        assert page["payload"]["summary"].startswith("40 writes: ")
        late = ledger.escalate(ledger.intent())
        page_once(ledger.store, pagers, ledger.settings)
        assert len(first.seen) == 1, "one more of the same is no news"
        for each in asked:
            ledger.close(each)
        page_once(ledger.store, pagers, ledger.settings)
        assert len(first.seen) == 1
        ledger.close(late)
        page_once(ledger.store, pagers, ledger.settings)
        assert first.seen[1:] == [("resolve", page["dedup_key"])]


def test_a_few_questions_are_paged_one_by_one(database: str, first: Target) -> None:
    with open_ledger(database, Policy()) as ledger:
        for _ in range(4):
            ledger.escalate(ledger.intent())
        page_once(ledger.store, pagers_of(first), ledger.settings)
        assert len(first.seen) == 4


def test_a_page_says_whose_and_what_to_type_and_nothing_personal(
    ledger: Ledger, first: Target
) -> None:
    intent = ledger.intent()
    ledger.sql(
        "UPDATE outbox.intents SET status = 'unknown', doubt = 1, first_sent_at = outbox.clock(), "
        "window_ends_at = outbox.clock() + INTERVAL '22 hours'"
    )
    ledger.forward(4 * 3600)
    escalation = ledger.escalate(intent)
    page_once(ledger.store, pagers_of(first), replace(ledger.settings, environment="staging"))
    (page,) = first.bodies
    payload = page["payload"]
    command = f"outbox escalation show {escalation}"
    assert command in payload["summary"]
    details = payload["custom_details"]
    assert details == {
        "first_command": command,
        "escalation": str(escalation),
        "intent": str(intent),
        "environment": "staging",
        "reason": "ttl",
        "outcome": "unknown",
        "age": "4 h",
        "window_left": details["window_left"],
        "tenant": "acme",
        "vendor": "stripe",
        "account": "default",
        "tool": "charge_invoice",
        "amount_minor": 1200,
        "currency": "usd",
    }
    assert details["window_left"].startswith("17 h 59 min") or details["window_left"] == "18 h"
    assert payload["severity"] == "error"
    text = first.requests[0][2].decode()
    for secret in ("Jane", "Elm", "cus_jane", "failed", "sk_test"):
        assert secret not in text


def test_a_page_about_a_contradiction_says_unknown_and_is_critical(
    ledger: Ledger, first: Target
) -> None:
    ledger.escalate(ledger.intent(), "contradiction")
    page_once(ledger.store, pagers_of(first), ledger.settings)
    (page,) = first.bodies
    assert page["payload"]["severity"] == "critical"
    assert page["payload"]["custom_details"]["outcome"] == "unknown"

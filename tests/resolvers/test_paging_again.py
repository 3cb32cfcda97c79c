"""An open question does not fall silent: it is told again, and whatever holds a page has an end."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from outbox.settings import Settings
from resolvers.doctoring import findings
from resolvers.pagers import parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Answer, Target, file_pager, pagers_of
from tests.resolvers.questions import hold

HOUR_S = 3600.0


@pytest.mark.parametrize("verb", ["ack", "mute"])
def test_a_muted_or_acknowledged_question_is_paged_when_that_ends_and_not_before(
    ledger: Ledger, first: Target, verb: str
) -> None:
    escalation = ledger.escalate(ledger.intent())
    hold(ledger, verb, escalation, HOUR_S)
    for wait_s, wanted in ((0, 0), (3500, 0), (200, 1)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers_of(first), ledger.settings)
        assert [k for a, k in first.seen if a == "trigger"] == [f"outbox:{escalation}:ttl"] * wanted


def test_a_target_without_a_policy_of_its_own_is_told_again_until_somebody_looks(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    escalation = ledger.escalate(ledger.intent())
    for wait_s, wanted in ((0, 1), (1700, 1), (100, 2), (1800, 3)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
        assert len(seen()) == wanted
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    assert seen()[3:] == [("resolve", f"outbox:{escalation}:ttl")]


@pytest.mark.parametrize("verb", ["ack", "mute"])
def test_re_paging_starts_again_when_an_acknowledgement_or_a_mute_has_ended(
    ledger: Ledger, tmp_path: Path, verb: str
) -> None:
    pagers, seen = file_pager(tmp_path)
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, verb, escalation, 2 * HOUR_S)
    for wait_s, wanted in ((0, 1), (HOUR_S, 1), (HOUR_S - 60, 1), (120, 2), (1700, 2), (200, 3)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
        assert len([1 for action, _ in seen() if action == "trigger"]) == wanted
    assert {key for _, key in seen()} == {f"outbox:{escalation}:ttl"}


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


def test_a_policy_that_was_told_to_rest_is_told_under_a_new_key_when_the_acknowledgement_ends(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "ack", escalation, HOUR_S)
    for wait_s in (0, HOUR_S - 10):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
    assert first.seen == [("trigger", key), ("acknowledge", key)]
    assert len(ledger.pages()) == 2, "nothing is written before it has ended"
    for wait_s in (20, HOUR_S, HOUR_S):
        ledger.forward(wait_s)
        both = [
            threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
            for _ in range(2)
        ]
        for sender in both:
            sender.start()
        for sender in both:
            sender.join()
    assert first.seen[2:] == [("trigger", f"{key}:2")], "once: from here it has its own policy"
    hold(ledger, "ack", escalation, HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert first.seen[3:] == [("acknowledge", f"{key}:2")]
    ledger.close(escalation)
    ledger.forward(2 * HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert sorted(first.seen[4:]) == [("resolve", key), ("resolve", f"{key}:2")]
    assert {page["state"] for page in ledger.pages()} == {"sent"}


def test_a_short_acknowledgement_is_told_again_at_the_re_page_and_not_at_once(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "ack", escalation, 60.0)
    for wait_s, wanted in ((0, 2), (120, 2), (1600, 2), (100, 3)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
        assert len(first.seen) == wanted


def test_a_mute_tells_a_policy_to_rest_and_pages_again_when_it_ends(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    key = f"outbox:{escalation}:ttl"
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "mute", escalation, 24 * HOUR_S)
    for wait_s in (0, HOUR_S, 22 * HOUR_S):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
    assert first.seen == [("trigger", key), ("acknowledge", key)]
    for _ in range(3):
        ledger.forward(2 * HOUR_S)
        page_once(ledger.store, pagers, ledger.settings)
    assert first.seen[2:] == [("trigger", f"{key}:2")]


def test_a_question_muted_before_it_was_shown_is_not_silenced_once_the_mute_has_ended(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    hold(ledger, "mute", escalation, HOUR_S)
    for _ in range(3):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(HOUR_S)
    assert [action for action, _ in first.seen] == ["trigger"]
    hold(ledger, "ack", escalation, HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "acknowledge"], "this one holds"


def test_a_policy_that_may_have_been_told_to_rest_is_told_again_too(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    first.answers = [Answer(202, drop=True)]
    hold(ledger, "ack", escalation, 20.0)
    for _ in range(4):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(HOUR_S)
    assert [action for action, _ in first.seen] == ["trigger", "acknowledge", "trigger"]
    assert first.seen[2][1] == f"outbox:{escalation}:ttl:2"


def test_a_page_told_again_day_after_day_is_not_said_to_be_going_nowhere(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    ledger.escalate(ledger.intent())

    def going_nowhere() -> list[str]:
        found = findings(ledger.store, ledger.directory)
        return [e.check for e in found if e.check == "page_not_going_out" and not e.ok]

    for _ in range(5):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(1800)
        page_once(ledger.store, pagers, ledger.settings, limit=0)
        assert [page["state"] for page in ledger.pages()] == ["due"]
        assert going_nowhere() == []
    assert len(seen()) == 5
    (tmp_path / "pages.jsonl").unlink()
    (tmp_path / "pages.jsonl").mkdir()
    for _ in range(3):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(120)
    assert going_nowhere() == ["page_not_going_out"]


def test_nothing_is_told_again_that_was_closed_during_its_acknowledgement(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "ack", escalation, HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    ledger.close(escalation)
    ledger.forward(2 * HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "acknowledge", "resolve"]


def test_a_target_that_takes_no_acknowledge_hears_none_and_goes_on_by_its_own_policy(
    ledger: Ledger, first: Target
) -> None:
    spec = f"incidentio:01GW2G3V0S59R238FAHPDS1R66:tokentoken@{first.url}"
    pagers = parse(Settings(pagers=(spec,)))
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "ack", escalation, HOUR_S)
    for _ in range(3):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(HOUR_S)
    assert [body["status"] for body in first.bodies] == ["firing"]
    states = [(page["action"], page["state"], page["detail"]) for page in ledger.pages()]
    assert states[1] == ("acknowledge", "dropped", "takes no acknowledge")


# -- Alertmanager, which forgets -----------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "mute", ""])
def test_an_alert_that_would_end_by_itself_is_posted_again_in_time_held_or_not(
    ledger: Ledger, first: Target, verb: str
) -> None:
    first.last = Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    if verb:
        hold(ledger, verb, escalation, 24 * HOUR_S)
    for _ in range(20):
        ledger.forward(900)
        page_once(ledger.store, pagers, ledger.settings)
    posts = [alert for (alert,) in first.bodies]
    assert len(posts) == 11, "every half an hour"
    assert all(post["labels"] == posts[0]["labels"] for post in posts)
    for before, after in itertools.pairwise(posts):
        assert after["startsAt"] < before["endsAt"] < after["endsAt"]
    ledger.close(escalation)
    page_once(ledger.store, pagers, ledger.settings)
    ledger.forward(HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    ((ended,),) = first.bodies[11:]
    assert ended["labels"] == posts[0]["labels"]
    assert ended["startsAt"] == ended["endsAt"]


def test_an_alert_is_posted_in_time_however_long_the_re_page_is(
    ledger: Ledger, first: Target
) -> None:
    first.last = Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    slow = Settings(
        database_url=ledger.settings.database_url,
        accounts=ledger.settings.accounts,
        policy=type(ledger.settings.policy)(repage_s=10**9, page_group_from=10**6),
    )
    ledger.escalate(ledger.intent())
    for _ in range(9):
        page_once(ledger.store, pagers, slow)
        ledger.forward(1800)
    assert len(first.requests) == 5


def test_a_question_muted_after_a_try_that_was_refused_is_not_posted_as_if_it_had_been_shown(
    ledger: Ledger, first: Target
) -> None:
    first.answers = [Answer(429)]
    first.last = Answer(200)
    pagers = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    escalation = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    hold(ledger, "mute", escalation, HOUR_S)
    for wait_s, wanted in ((1800, 1), (1700, 1), (200, 2)):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
        assert len(first.requests) == wanted


def test_a_muted_question_is_not_posted_first_and_not_moved_to_a_pager_that_would_wake_somebody(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = Answer(200)
    (calm,) = parse(Settings(pagers=(f"alertmanager:{first.url}",)))
    pagers = (calm, *pagers_of(second))
    early = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    late = ledger.escalate(ledger.intent())
    for escalation in (early, late):
        hold(ledger, "mute", escalation, 24 * HOUR_S)
    first.last = Answer(503)
    for _ in range(40):
        ledger.forward(120)
        page_once(ledger.store, pagers, ledger.settings)
    assert {alert["labels"]["outbox_key"] for (alert,) in first.bodies} == {f"outbox:{early}:ttl"}
    assert second.seen == []
    ledger.forward(24 * HOUR_S)
    page_once(ledger.store, pagers, ledger.settings)
    assert second.seen == [("trigger", f"outbox:{early}:ttl")], "its mute has ended"

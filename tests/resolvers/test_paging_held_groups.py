"""A mute or an acknowledgement of a group covers what was asked by then, and nothing later."""

from __future__ import annotations

import pytest

from outbox import Denied
from outbox.policy import Policy
from resolvers import holding
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Target, pagers_of
from tests.resolvers.questions import LEAST, ask, groups, hold, page, triggers

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def ledger_policy() -> Policy:
    """Real periods and thresholds."""
    return Policy()


@pytest.mark.parametrize("verb", ["mute", "ack"])
def test_a_question_that_comes_after_its_group_was_muted_pages_by_itself(
    ledger: Ledger, first: Target, verb: str
) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    (group,) = groups(ledger)
    hold(ledger, verb, group["id"], DAY_S)
    (late,) = ask(ledger, amount=99_999_900)
    page(ledger, pagers, 5.0)
    assert triggers(first)[1:] == [(f"outbox:{late}:ttl", None, "")]
    page(ledger, pagers, 4.5 * HOUR_S)
    assert len(triggers(first)) == 2, "the mute holds for those that it was said of"


def test_many_questions_that_come_after_a_mute_are_one_page_of_a_group_of_their_own(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    known = ask(ledger, LEAST)
    page(ledger, pagers)
    (group,) = groups(ledger)
    hold(ledger, "mute", group["id"], DAY_S)
    ledger.forward(60)
    late = ask(ledger, 40)
    page(ledger, pagers)
    _, other = groups(ledger)
    assert other["holder"] != group["holder"]
    assert [(key, count) for key, count, _ in triggers(first)[1:]] == [
        (f"outbox:{other['id']}:ttl", 40)
    ]
    for each in late:
        ledger.close(each)
    page(ledger, pagers)
    assert first.seen[-1] == ("resolve", f"outbox:{other['id']}:ttl")
    for _ in range(3):
        page(ledger, pagers, DAY_S / 2)
    key, count, _ = triggers(first)[-1]
    assert (key, count) == (f"outbox:{group['id']}:ttl:2", len(known)), "its mute has ended"
    for each in known:
        ledger.close(each)
    page(ledger, pagers)
    assert {row["closed_at"] is None for row in groups(ledger)} == {False}


def test_a_muted_group_tells_of_its_own_questions_when_that_ends_and_closes_with_them(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    known = ask(ledger, LEAST)
    page(ledger, pagers)
    (group,) = groups(ledger)
    hold(ledger, "mute", group["id"], HOUR_S)
    ledger.forward(60)
    ask(ledger, 9)
    page(ledger, pagers)
    page(ledger, pagers, HOUR_S)
    assert [count for _, count, _ in triggers(first)] == [LEAST, 9, LEAST]
    for each in known:
        ledger.close(each)
    page(ledger, pagers)
    closed, still = groups(ledger)
    assert (closed["id"], closed["closed_by"], still["closed_at"]) == (group["id"], "paging", None)


def test_a_second_mute_does_not_swallow_what_comes_after_it_either(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for number in range(3):
        ask(ledger, LEAST + number)
        page(ledger, pagers, 60)
        hold(ledger, "mute", groups(ledger)[-1]["id"], DAY_S)
        ledger.forward(60)
    assert [count for _, count, _ in triggers(first)] == [LEAST, LEAST + 1, LEAST + 2]
    assert len({row["holder"] for row in groups(ledger)}) == 3


def test_a_mute_covers_a_question_that_was_open_and_waited_and_tells_of_it_when_it_ends(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    ask(ledger)
    page(ledger, pagers)
    hold(ledger, "mute", groups(ledger)[0]["id"], 2 * HOUR_S)
    page(ledger, pagers, 2 * HOUR_S - 60)
    assert len(triggers(first)) == 1
    page(ledger, pagers, 120)
    assert [count for _, count, _ in triggers(first)[1:]] == [LEAST + 1]


def test_a_group_with_open_questions_is_not_closed_by_hand(ledger: Ledger, first: Target) -> None:
    pagers = pagers_of(first)
    ask(ledger, LEAST)
    page(ledger, pagers)
    (group,) = groups(ledger)
    with pytest.raises(Denied, match="5 of its questions are open"):
        holding.close(ledger.store, str(group["id"]), by="ann", reason="tired")
    # However it was closed, its questions are open.
    ledger.close(group["id"])
    page(ledger, pagers)
    assert [count for _, count, _ in triggers(first)] == [LEAST, LEAST]

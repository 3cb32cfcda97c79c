"""A target that hangs is waited for once a round, and no page is lost by that."""

from __future__ import annotations

import pytest

from resolvers import page_post
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Answer, Target, pagers_of


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that an answer on a busy machine is none that hung.
    monkeypatch.setattr(page_post, "SEND_TIMEOUT_S", 2.0)


def test_twenty_pages_wait_once_for_a_target_that_hangs(ledger: Ledger, first: Target) -> None:
    """Each waited for it in turn, for minutes, and nothing else was done meanwhile."""
    first.last = Answer(202, hang=True)
    for _ in range(20):
        ledger.escalate(ledger.intent())
    assert page_once(ledger.store, pagers_of(first), ledger.settings) == 20
    assert len(first.requests) == 1
    first.last = Answer(202)
    ledger.forward(31)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert len({key for _, key in first.seen}) == 20
    assert {page["state"] for page in ledger.pages()} == {"sent"}


def test_pages_for_a_target_that_hangs_go_to_the_next_one_after_their_tries(
    ledger: Ledger, first: Target, second: Target
) -> None:
    first.last = Answer(202, hang=True)
    for _ in range(20):
        ledger.escalate(ledger.intent())
    pagers = pagers_of(first, second)
    for wait_s in (0, 31, 91, 1):
        ledger.forward(wait_s)
        page_once(ledger.store, pagers, ledger.settings)
    assert len(first.requests) == 3
    assert len({key for _, key in second.seen}) == 20


def test_a_target_that_refuses_is_asked_for_each_page(ledger: Ledger, first: Target) -> None:
    first.last = Answer(503)
    for _ in range(3):
        ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert len(first.requests) == 3


def test_a_resolve_is_not_lost_where_its_target_hangs(ledger: Ledger, first: Target) -> None:
    asked = [ledger.escalate(ledger.intent()) for _ in range(3)]
    page_once(ledger.store, pagers_of(first), ledger.settings)
    for each in asked:
        ledger.close(each)
    first.last = Answer(202, hang=True)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    first.last = Answer(202)
    ledger.forward(31)
    page_once(ledger.store, pagers_of(first), ledger.settings)
    resolved = {key for action, key in first.seen if action == "resolve"}
    assert resolved == {f"outbox:{each}:ttl" for each in asked}

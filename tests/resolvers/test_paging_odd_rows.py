"""An odd row among the questions and their groups silences no other, and is told of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox.errors import Busy
from outbox.policy import Policy
from outbox.store import page_groups
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Target, pagers_of

GROUP_FROM = 3


@pytest.fixture
def ledger_policy() -> Policy:
    return replace(Policy(), page_group_from=GROUP_FROM)


def _ask(ledger: Ledger, count: int, *, account: str = "default") -> list[UUID]:
    asked = [ledger.intent() for _ in range(count)]
    ledger.sql(
        "UPDATE outbox.intents SET account = %(account)s WHERE id = ANY(%(ids)s)",
        {"account": account, "ids": asked},
    )
    return [ledger.escalate(intent, "ttl") for intent in asked]


def _page(ledger: Ledger, target: Target) -> None:
    page_once(ledger.store, pagers_of(target), ledger.settings)


def _holders(ledger: Ledger) -> list[str]:
    rows = ledger.sql(
        "SELECT holder FROM outbox.escalations WHERE holder IS NOT NULL AND closed_at IS NULL "
        "ORDER BY holder"
    )
    return [row["holder"] for row in rows]


def _own(asked: list[UUID], target: Target) -> set[UUID]:
    told = {key for action, key in target.seen if action == "trigger"}
    return {one for one in asked if f"outbox:{one}:ttl" in told}


def test_a_group_that_cannot_be_read_leaves_other_accounts_their_groups(
    ledger: Ledger, first: Target
) -> None:
    """Its detail holds no time where one belongs; the one reading of all questions failed."""
    _ask(ledger, GROUP_FROM, account="broken")
    _page(ledger, first)
    assert _holders(ledger) == ["group:stripe/broken/ttl"]
    ledger.sql(
        'UPDATE outbox.escalations SET detail = detail || \'{"since": "soon"}\' '
        "WHERE holder IS NOT NULL"
    )
    ledger.forward(1)
    broken = _ask(ledger, 1, account="broken")
    sound = _ask(ledger, GROUP_FROM, account="sound")
    _page(ledger, first)
    assert "group:stripe/sound/ttl" in _holders(ledger)
    assert _own(sound, first) == set(), "they are told of by their group"
    assert _own(broken, first) == set(broken), "and this one by itself"


def test_a_question_that_cannot_be_placed_holds_up_no_other(
    ledger: Ledger, first: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = _ask(ledger, GROUP_FROM, account="odd")
    sound = _ask(ledger, GROUP_FROM, account="sound")
    take = page_groups.take

    def refuses(tx: Any, ids: Any, holder: str) -> None:
        take(tx, ids, holder)
        if "odd" in holder:
            tx.run("SELECT 1 / 0")

    monkeypatch.setattr(page_groups, "take", refuses)
    _page(ledger, first)
    assert _holders(ledger) == ["group:stripe/sound/ttl"], "what the odd one wrote is taken back"
    assert _own(sound, first) == set()
    assert _own(odd, first) == set(odd)


def test_an_odd_value_in_python_is_the_same_as_one_in_the_database(
    ledger: Ledger, first: Target
) -> None:
    """The group's largest amount is a text that somebody wrote there."""
    _ask(ledger, GROUP_FROM, account="odd")
    _page(ledger, first)
    ledger.sql(
        'UPDATE outbox.escalations SET detail = detail || \'{"largest": {"usd": "much"}}\' '
        "WHERE holder IS NOT NULL"
    )
    ledger.forward(1)
    odd = _ask(ledger, 1, account="odd")
    sound = _ask(ledger, GROUP_FROM, account="sound")
    _page(ledger, first)
    assert "group:stripe/sound/ttl" in _holders(ledger)
    assert _own(odd, first) == set(odd)
    assert _own(sound, first) == set()


def test_a_reading_that_took_too_long_is_no_odd_row(
    ledger: Ledger, first: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy database would have every question told of by itself."""
    asked = _ask(ledger, GROUP_FROM)

    def slow(tx: Any, **_: Any) -> list[dict[str, Any]]:
        tx.run("SET LOCAL statement_timeout = 1")
        rows: list[dict[str, Any]] = tx.all("SELECT pg_sleep(5)")
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(page_groups, "waiting", slow)
        with pytest.raises(Busy):
            _page(ledger, first)
    assert first.seen == []
    _page(ledger, first)
    assert _holders(ledger) == ["group:stripe/default/ttl"]
    assert _own(asked, first) == set()

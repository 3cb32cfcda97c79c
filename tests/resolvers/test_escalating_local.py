"""Rows that fail here, before any byte leaves: no vendor that comes back helps them, so none waits
behind the question about a closed account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from outbox.store import switches
from outbox.store.invariants import OF_INTENTS
from resolvers import holding
from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox

HOLDER = "vendor:stripe/default"


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened
        sandbox.accept_connections(True)


def _unreadable(floor: Floor) -> UUID:
    """A row whose request is none any more; it was tried once."""
    row = floor.one()
    floor.sql("UPDATE outbox.intents SET request = '[]' WHERE id = %(id)s", {"id": row})
    floor.drain()
    assert floor.outcomes(row) == ["not_sent"]
    return row


def _trip(floor: Floor) -> None:
    with floor.store.transaction() as tx:
        assert switches.trip_breaker(
            tx, "stripe", "default", reason="most calls fail", probe_s=10**6
        )


def _pause(floor: Floor) -> None:
    holding.pause(floor.store, floor.directory, "stripe", "default", by="jane", reason="incident")


def _asked(floor: Floor) -> dict[Any, list[str]]:
    found = [e for e in floor.escalations() if e["closed_at"] is None]
    return {e["holder"] or e["intent_id"]: e["reasons"] for e in found}


@pytest.mark.parametrize("close", [_trip, _pause])
def test_a_row_that_fails_here_asks_at_its_own_ttl_though_its_account_is_closed(
    floor: Floor, close: Any
) -> None:
    bad, good = _unreadable(floor), floor.enqueue(5)
    close(floor)
    floor.advance(floor.settings.policy.ttl_max_s - 60)
    floor.escalate()
    assert bad not in _asked(floor)
    floor.advance(70)
    for _ in range(3):
        floor.escalate()
        floor.advance(61)
    asked = _asked(floor)
    assert set(asked) == {bad, HOLDER}
    assert asked[bad] == ["ttl"]
    assert [floor.status(row) for row in good] == ["pending"] * 5


def test_the_question_says_what_is_wrong_with_the_row(floor: Floor) -> None:
    bad = _unreadable(floor)
    _trip(floor)
    floor.advance(floor.settings.policy.ttl_max_s + 1)
    floor.escalate()
    (question,) = [e for e in floor.escalations() if e["intent_id"] == bad]
    assert question["detail"]["why"].startswith("never sent: the request cannot be read: ")
    triggers = [p for p in floor.pages() if p["dedup_key"].startswith(f"outbox:{question['id']}")]
    assert [p["action"] for p in triggers] == ["trigger"]


def test_a_row_whose_vendor_is_away_still_shares_the_question_about_it(floor: Floor) -> None:
    """It failed on the way, which the vendor's return mends."""
    floor.sandbox.accept_connections(False)
    rows = floor.enqueue(3)
    floor.drain()
    assert {outcome for row in rows for outcome in floor.outcomes(row)} == {"not_sent"}
    _trip(floor)
    floor.advance(floor.settings.policy.ttl_max_s + 1)
    floor.escalate()
    assert set(_asked(floor)) == {HOLDER}


def test_a_row_that_was_mended_waits_like_any_other_from_its_next_try_on(floor: Floor) -> None:
    bad = _unreadable(floor)
    floor.sql(
        "UPDATE outbox.intents i SET request = o.request, request_sha256 = o.request_sha256 "
        "FROM outbox.intents o WHERE i.id = %(id)s AND o.id = %(other)s",
        {"id": bad, "other": floor.one()},
    )
    floor.sandbox.accept_connections(False)
    floor.jump(bad)
    floor.drain()
    assert floor.outcomes(bad) == ["not_sent"] * 2
    _trip(floor)
    floor.advance(floor.settings.policy.ttl_max_s + 1)
    floor.escalate()
    assert set(_asked(floor)) == {HOLDER}


def test_a_row_that_fails_here_and_was_asked_about_by_nobody_breaks_rule_9(floor: Floor) -> None:
    """The question about its closed account is not its own; `doctor` sees the difference."""
    bad = _unreadable(floor)
    floor.one()
    _trip(floor)
    floor.advance(floor.settings.policy.ttl_max_s + 120)
    floor.escalate()
    floor.sql(
        "UPDATE outbox.escalations SET closed_at = outbox.clock() WHERE intent_id IS NOT NULL"
    )
    (rule,) = [i for i in OF_INTENTS if i.check == "overdue_without_escalation"]
    policy = floor.settings.policy
    with floor.store.transaction() as tx:
        found = tx.all(rule.broken, {"tick_escalate_s": policy.tick_escalate_s})
    assert [row["id"] for row in found] == [str(bad)]

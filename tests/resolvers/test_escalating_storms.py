"""Escalation beside backlogs, races and callers that hold rows: every question in its time."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox.store import escalations, switches
from resolvers import holding, parts
from resolvers.escalating import escalate_once
from tests.statements import copied
from tests.workers.floor import READS, Floor, in_lane, wait_until

HOUR = 3600.0


def _many(floor: Floor, count: int, *, of: UUID) -> None:
    """Rows like that one, never sent."""
    made = {
        "key": "sha256(gen_random_uuid()::text::bytea)",
        "fingerprint": "sha256(gen_random_uuid()::text::bytea)",
    }
    copied(floor.sql, count, made, of=of)


def _pause(floor: Floor) -> None:
    holding.pause(floor.store, floor.directory, "stripe", "default", by="jane", reason="incident")


def _resume(floor: Floor) -> None:
    holding.resume(floor.store, floor.directory, "stripe", "default", by="jane", reason="over")


def _open(floor: Floor) -> list[tuple[Any, list[str]]]:
    return [(e["holder"], e["reasons"]) for e in floor.escalations() if e["closed_at"] is None]


def _times(floor: Floor) -> list[dict[str, Any]]:
    return floor.sql("SELECT id, escalate_at, xmin::text AS wrote FROM outbox.intents ORDER BY id")


def test_a_paused_backlog_past_its_ttl_is_not_touched_and_the_other_questions_are_asked(
    floor: Floor,
) -> None:
    """With 48,000 such rows the job never ended: they came due again before it was through."""
    _many(floor, 3000, of=floor.one())
    _pause(floor)
    floor.advance(4 * HOUR + 60)
    before = _times(floor)
    for _ in range(3):
        assert escalate_once(floor.store, floor.directory) == 0
        floor.advance(61)
    assert _times(floor) == before
    assert _open(floor) == [("vendor:stripe/default", ["paused"])]


def test_rows_behind_a_head_in_doubt_are_put_off_together(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account)
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    head = floor.one(tool=in_lane(), customer="cus_lane")
    floor.drain()
    waiting = floor.one(tool=in_lane(), customer="cus_lane")
    _many(floor, 200, of=waiting)
    floor.until(5 * HOUR, head)
    floor.escalate()
    due = floor.sql("SELECT 1 FROM outbox.intents WHERE escalate_at <= outbox.clock()")
    assert due == []
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (head, ["lane_held", "ttl"])


def test_a_storm_of_one_kind_is_worked_off_in_pieces() -> None:
    """Bounded by time: what is left is the next tick's, and the job ends."""
    done: list[int] = []

    def piece() -> int:
        done.append(1)
        return 10

    assert parts.in_pieces(piece, 10, 0.0) == 10
    assert len(done) == 1
    assert parts.in_pieces(lambda: 3, 10, 60.0) == 3


def test_a_resume_while_the_question_is_asked_leaves_no_question_about_an_open_account(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch went between the job's reading and its question, which then stayed for ever."""
    floor.one()
    with floor.store.transaction() as tx:
        switches.trip_breaker(tx, "stripe", "default", reason="most calls fail", probe_s=10**6)
    floor.advance(5 * HOUR)
    asking = escalations.open_for_holder
    resuming = threading.Thread(target=_resume, args=(floor,))

    def resumed_meanwhile(*args: Any) -> Any:
        resuming.start()
        wait_until(
            lambda: floor.sql(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database()"
            )
        )
        return asking(*args)

    monkeypatch.setattr(escalations, "open_for_holder", resumed_meanwhile)
    floor.escalate()
    resuming.join()
    assert floor.sql("SELECT 1 FROM outbox.switches") == []
    assert [(e["reasons"], e["verdict"]) for e in floor.escalations()] == [(["breaker"], "resumed")]


def test_a_resume_before_the_question_is_asked_makes_none(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor.one()
    with floor.store.transaction() as tx:
        switches.trip_breaker(tx, "stripe", "default", reason="most calls fail", probe_s=10**6)
    floor.advance(5 * HOUR)
    hold = switches.hold

    def resumed_before(*args: Any) -> Any:
        _resume(floor)
        return hold(*args)

    monkeypatch.setattr(switches, "hold", resumed_before)
    floor.escalate()
    assert [e for e in floor.escalations() if e["holder"]] == []


def _orphan(floor: Floor) -> None:
    """A question about an account that is open, as an older release could leave one."""
    with floor.store.transaction() as tx:
        escalations.open_for_holder(tx, "vendor:stripe/default", ["paused"], {"why": "incident"})


def test_a_question_about_an_account_that_is_open_is_closed_by_the_next_tick(floor: Floor) -> None:
    _orphan(floor)
    floor.escalate()
    assert _open(floor) == []
    assert [p["action"] for p in floor.pages()] == ["trigger", "resolve"]


def test_a_pause_by_refused_credentials_pages_although_an_old_question_was_left_open(
    floor: Floor,
) -> None:
    """Three days later a 401 stopped the account, and nobody was paged."""
    _orphan(floor)
    floor.advance(3 * 86_400)
    floor.sandbox.fault("unauthorized_401", account=floor.account)
    floor.one()
    floor.drain()
    assert len(floor.sql("SELECT 1 FROM outbox.switches")) == 1
    asked = [(e["episode"], e["closed_at"] is None) for e in floor.escalations()]
    assert asked == [(1, False), (2, True)]
    triggers = [p["dedup_key"] for p in floor.pages() if p["action"] == "trigger"]
    assert len(set(triggers)) == 2


def test_a_caller_who_is_being_told_of_a_settled_row_keeps_no_question_from_being_asked(
    floor: Floor,
) -> None:
    """Closing a settled doubt waited for the caller's lock, and took the whole job along."""
    settled, other = floor.enqueue(2)
    floor.sql(
        "UPDATE outbox.intents SET status = 'cancelled', settled_at = outbox.clock(), "
        "settled_by = 'epoch', escalate_at = NULL WHERE id = %(id)s",
        {"id": settled},
    )
    floor.sql(
        "INSERT INTO outbox.escalations (id, intent_id, reasons, opened_at, changed_at) "
        "VALUES (gen_random_uuid(), %(id)s, ARRAY['ttl'], now(), now())",
        {"id": settled},
    )
    floor.advance(5 * HOUR)
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as caller:
        caller.execute("SELECT id FROM outbox.intents WHERE id = %s FOR UPDATE", (settled,))
        floor.escalate()
        asked = {e["intent_id"] for e in floor.escalations() if e["closed_at"] is None}
        assert asked == {settled, other}
    floor.escalate()
    assert {e["intent_id"] for e in floor.escalations() if e["closed_at"] is None} == {other}

"""A worker's own round by OUTBOX_RETENTION: never without the setting, once a day with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox import Outbox
from outbox.store import switches
from resolvers import pruning
from resolvers.health import health
from tests.retention.attic import DAY_S, Attic
from tests.workers.floor import wait_until
from workers import process
from workers.poller import Poller
from workers.runtime import Runtime, Slots

SIXTY_S = 60 * DAY_S


@contextmanager
def runtime(
    attic: Attic,
    retention_s: float | None = SIXTY_S,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Runtime]:
    settings = replace(attic.desk.settings, retention_s=retention_s)
    made = Runtime(settings, slots=Slots(2), stopping=stopping)
    yield made
    made.close()


def test_without_the_setting_nothing_is_pruned_by_itself(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(5000)
    with runtime(attic, None) as worker:
        assert "prune" not in worker.roles
        for role in worker.roles:
            worker.run(role)
    assert not attic.is_empty(intent_id)
    assert "prune" not in process.build_app(attic.desk.settings).conf.beat_schedule
    assert "prune" not in health(attic.desk.store, attic.desk.directory)["heartbeats"]


def test_with_it_a_worker_prunes_once_a_day_and_says_who_it_was(attic: Attic) -> None:
    first = attic.landed()
    attic.days(61)
    second = attic.landed()
    with runtime(attic) as worker:
        assert worker.run("prune") == 1
        assert attic.is_empty(first)
        (said,) = attic.desk.events(first, "pruned")
        assert (said["actor"], said["reason"]) == ("retention", "settled more than 60 d ago")
        attic.desk.sql(
            "UPDATE outbox.intents SET settled_at = settled_at - INTERVAL '70 d' WHERE id = %(id)s",
            {"id": second},
        )
        attic.days(0.9)
        assert worker.run("prune") == 0
        attic.days(0.2)
        assert worker.run("prune") == 1
    assert attic.is_empty(second)


def test_a_turn_from_before_the_clock_was_set_back_keeps_nobody_from_the_next(attic: Attic) -> None:
    attic.days(1000)
    with runtime(attic) as worker:
        worker.run("prune")
        attic.days(-500)
        attic.landed()
        attic.days(61)
        assert worker.run("prune") == 1


def test_of_many_processes_one_takes_the_turn(attic: Attic) -> None:
    attic.landed()
    attic.days(61)
    with runtime(attic) as one, runtime(attic) as other:
        assert (one.run("prune"), other.run("prune")) == (1, 0)
        rows = attic.desk.sql("SELECT instance FROM outbox.heartbeats WHERE role = 'prune'")
    assert {row["instance"] for row in rows} == {"turn", one.instance}


def test_a_process_without_a_broker_comes_to_it_by_itself(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(61)
    with runtime(attic) as worker:
        poller = Poller(worker, lambda: False)
        poller.start()
        wait_until(lambda: attic.is_empty(intent_id))
        poller.stop()


def test_a_worker_that_is_told_to_end_stops_between_two_pieces(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 1)
    ids = [attic.landed() for _ in range(3)]
    attic.days(61)
    with runtime(attic, stopping=lambda: True) as worker:
        assert worker.run("prune") == 1
    assert [attic.is_empty(i) for i in ids] == [True, False, False]
    attic.days(1)
    with runtime(attic) as worker:
        assert worker.run("prune") == 2


def test_a_round_that_takes_too_long_leaves_the_rest_to_the_next_day(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 1)
    monkeypatch.setattr(pruning, "BUDGET_S", 0.0)
    ids = [attic.landed() for _ in range(2)]
    attic.days(61)
    with runtime(attic) as worker:
        assert worker.run("prune") == 1
        attic.days(1)
        assert worker.run("prune") == 1
    assert all(attic.is_empty(i) for i in ids)


def test_by_a_clock_in_doubt_the_round_does_nothing_and_still_beats(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(61)
    attic.doubt_clock()
    with runtime(attic) as worker:
        assert worker.run("prune") == 0
    assert not attic.is_empty(intent_id)
    with attic.desk.store.transaction() as tx:
        assert "prune" in switches.beat_ages_s(tx)


def test_health_and_doctor_name_a_retention_that_nobody_runs(attic: Attic) -> None:
    wanted = {"OUTBOX_RETENTION": "60d"}
    found = attic.desk.invoke("health", "--json", **wanted).json
    assert "heartbeat: prune has never run" in found["problems"]
    items = attic.desk.invoke("doctor", "--json", **wanted).json["items"]
    (stale,) = [f for f in items if f["check"] == "heartbeat_stale"]
    assert "prune" in stale["sample"]


def test_a_beat_that_knows_of_it_does_no_harm_to_a_worker_that_does_not(attic: Attic) -> None:
    settings = replace(attic.desk.settings, retention_s=SIXTY_S)
    assert process.build_app(settings).conf.beat_schedule["prune"]["task"] == "outbox.prune"
    begun: list[str] = []
    rounds = SimpleNamespace(begin=lambda role, job: begun.append(role))
    for retention_s in (None, SIXTY_S):
        with runtime(attic, retention_s) as worker:
            child = SimpleNamespace(runtime=worker, rounds=rounds)
            process._job(cast(Any, child), "prune")()
    assert begun == ["prune"]


def test_an_agent_in_the_middle_of_its_wait_is_answered_while_rows_are_emptied(
    attic: Attic,
) -> None:
    intent_id = attic.landed()
    attic.days(61)
    with attic.held("intents", intent_id):
        answer = Outbox(attic.desk.settings).wait(intent_id, timeout_s=0)
    assert answer.told == "settled"
    assert attic.prune(older_than_s=SIXTY_S)["intents"].done == 1
    again = Outbox(attic.desk.settings).wait(intent_id, timeout_s=0)
    assert replace(again, xid="") == replace(answer, xid="")

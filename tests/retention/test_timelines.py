"""Pruning after whatever the simulator makes happen: every rule of the ledger holds that held
before, nobody is answered otherwise, and what is not over is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outbox.answers import answer_of
from outbox.errors import OutboxError
from outbox.store.connection import Store
from resolvers.pruning import Order, prune
from tests.retention.attic import DAY_S
from tests.sim.explore import Job, run
from tests.sim.ground import Ground, open_ground
from tests.sim.scenarios import NAMES, Scenario, scenarios

WALKS = 6
# What may not be emptied, said once more and otherwise than by the pruning itself.
UNTOUCHABLE = """
SELECT i.id, i.request IS NOT NULL AND i.args IS NOT NULL AS whole FROM outbox.intents i
WHERE i.settled_at IS NULL OR i.contradicted_at IS NOT NULL
OR i.id IN (SELECT intent_id FROM outbox.escalations WHERE closed_at IS NULL)
OR i.id IN (SELECT s.intent_id FROM outbox.settlements s, outbox.consumers c
    WHERE (c.name, s.id) NOT IN (SELECT consumer, settlement_id FROM outbox.deliveries
        WHERE consumed_at IS NOT NULL))
OR (i.once_per = 'epoch' AND i.told_at IS NULL)
"""


@pytest.fixture
def ground(database: str) -> Iterator[Ground]:
    with open_ground(database) as opened:
        yield opened


def told(ground: Ground, scenario: Scenario) -> list[Any]:
    """The word on each intent, its results, and what a repeat of each ask is answered, which is
    taken back."""
    rows = ground.rows("SELECT * FROM outbox.intents ORDER BY seq")
    found: list[Any] = [answer_of(row) for row in rows]
    found += ground.rows("SELECT * FROM outbox.settlements ORDER BY id")
    for scope, args in scenario.asks:
        try:
            answer = ground.outbox.enqueue(ground.agent, scenario.tool, scope, args)
            found.append(replace(answer, notes=(), xid="", recorded_at=None))
        except OutboxError as error:
            found.append((type(error), str(error)))
        finally:
            ground.agent.rollback()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_year_after_any_timeline_what_is_over_is_emptied_and_nothing_else_changes(
    ground: Ground, name: str
) -> None:
    (scenario,) = [one for one in scenarios() if one.name == name]
    store = Store(ground.settings, size=1)
    emptied = 0
    for seed in range(WALKS):
        ran = run(ground, Job(name, seed=seed))
        assert ran.problem == "", str(ran.job)
        if seed % 2:  # else an untold outcome stays whole where it guards its twin
            for row in ground.rows("SELECT id FROM outbox.intents WHERE settled_at IS NOT NULL"):
                ground.outbox.wait(row["id"], 0)
        ground.step_clock(401 * DAY_S)
        ground.rows("DELETE FROM outbox.switches WHERE kind = 'clock' RETURNING holder")
        before, broken = told(ground, scenario), ground.broken()
        emptied += prune(store, Order(older_than_s=400 * DAY_S, by="retention"))[0].done
        assert ground.broken() == broken, str(ran.job)
        assert told(ground, scenario) == before, str(ran.job)
        wrong = [row["id"] for row in ground.rows(UNTOUCHABLE) if not row["whole"]]
        assert wrong == [], str(ran.job)
    store.close()
    assert emptied > 0

"""``outbox drill staging``: six mishaps of agents, harnesses and vendors, and one effect each.

Each scenario is played on an outbox of its own; what the agent was told is in the order in which it
asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from outbox import Answer
from workers.cli_output import Column
from workers.drills.parts import Parts, open_parts, posts, row_of
from workers.drills.report import Progress, Row, Value
from workers.drills.staging_scenarios import SCENARIOS, Scenario, Scene
from workers.testing import OutboxBox
from workers.testing_effects import Effects

COLUMNS = (
    Column("scenario", folds=True),
    Column("effects", right=True),
    Column("requests", right=True),
    Column("told", folds=True),
    Column("status", rank=1),
    Column("settled_by", rank=2),
    Column("problem", rank=3, folds=True),
)
LEGEND = (
    "effects: in the vendor's own ledger; requests: writes that we sent; told: what the",
    "agent was told, each time it asked. conflict: IntentMismatch, and nothing is sent.",
)


def run(progress: Progress) -> Iterable[Row]:
    """The six scenarios, one after the other."""
    rows = []
    with open_parts(progress) as parts:
        for scenario in SCENARIOS:
            progress.say(scenario.name)
            rows.append(row(parts, scenario))
    return rows


def row(parts: Parts, scenario: Scenario) -> Row:
    """Plays one scenario on an outbox of its own."""
    with parts.box(scenario.settings(parts)) as box:
        scene = Scene(box)
        answer = scenario.play(scene)
        intent, effects = row_of(box, answer), effects_at(box, answer)
        sent = len(posts(box.sandbox, box.account))
        scene.expects(tuple(scene.told) == scenario.told, "told something else")
        scene.expects(sent == scenario.requests, "another number of requests")
        problems = [*scene.problems, effects.not_one()]
        problems += [v["check"] for v in box.sandbox.oracle(box.account)["violations"]]
    problem = "; ".join(filter(None, problems))
    values: dict[str, Value] = {
        "scenario": scenario.name,
        "effects": len(effects.applied),
        "requests": sent,
        "told": ", ".join(scene.told),
        "status": intent.status,
        "settled_by": intent.settled_by,
        "problem": problem,
    }
    return Row(values, not problem)


def effects_at(box: OutboxBox, answer: Answer) -> Effects:
    """All that the vendor did for the scenario's account, beside the one row that it may be of."""
    sandbox, account = box.sandbox, box.account
    return Effects("", row_of(box, answer), sandbox.effects(account), [], [])

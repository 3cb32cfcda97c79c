"""One faulty product, in a process of its own: `python -m tests.mutants.child NAME URL SECONDS`.

Prints one JSON object: the timeline that found the fault, the rule that was broken, and how many
timelines it took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from tests.mutants.faults import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.mutate import install

if TYPE_CHECKING:
    from tests.sim.explore import Ran
    from tests.sim.ground import Ground


def main(name: str, database_url: str, seconds: float) -> int:
    """The exit code."""
    mutant = next(one for one in MUTANTS if one.name == name)
    install(mutant.edits)
    from tests.sim.ground import open_ground

    with open_ground(database_url) as ground:
        found = _found(mutant, ground, time.monotonic() + seconds)
    print(json.dumps(found))
    return 0


def _found(mutant: Mutant, ground: Ground, give_up: float) -> dict[str, object]:
    count = 0
    for ran in _searched(mutant, ground):
        count += 1
        if ran.problem:
            return {"by": str(ran.job), "why": ran.problem, "timelines": count}
        if time.monotonic() > give_up:
            break
    return {"by": "", "why": "", "timelines": count}


def _searched(mutant: Mutant, ground: Ground) -> Iterator[Ran]:
    """The timelines that are known to find it; then every deviation of the world by itself, then
    pairs of them, in an order that is always the same."""
    from tests.sim.explore import Job, children, run

    for text in mutant.timelines:
        yield run(ground, Job.of(text))
    level = [run(ground, Job(scenario)) for scenario in mutant.scenarios]
    yield from level
    while level:
        jobs = [job for job, is_of_world in children(level) if is_of_world]
        Random(len(jobs)).shuffle(jobs)
        level = []
        for job in jobs:
            level.append(run(ground, job))
            yield level[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

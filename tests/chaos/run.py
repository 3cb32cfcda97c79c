"""One run: agents enqueue, servers and workers are killed, answers are lost; then calm, and the
verdict."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psycopg

from tests.chaos.kills import Killer, Pace, counted, killers
from tests.chaos.load import Agent
from tests.chaos.scene import Scene, running
from tests.chaos.verdict import Verdict, judge

LOST_SHARE = 0.01
_AGENTS = 2
# So many intents wait at the most: agents go on as fast as they are settled.
_FULL = 300
_LOOK_S = 0.5
# Calm, and nothing has moved for so long: what is open now stays open.
_STILL_S = 90.0
_OPEN = """
SELECT count(*) FILTER (WHERE settled_at IS NULL AND NOT EXISTS (
        SELECT FROM outbox.escalations e WHERE e.intent_id = i.id AND e.closed_at IS NULL)) AS open,
    (SELECT count(*) FROM outbox.pages WHERE state = 'due') AS due
FROM outbox.intents i WHERE settled_at IS NULL
"""


@dataclass(frozen=True)
class Progress:
    """How far it is, for whoever watches."""

    left_s: float
    enqueued: int
    waiting: int
    kills: Counter[str]


@dataclass(frozen=True)
class Result:
    """The verdict, what was killed, how many answers were lost, and what did not go as a run
    should (``broken``, of the verdict and of the run itself)."""

    verdict: Verdict
    kills: Counter[str]
    lost_answers: int
    refused: int
    broken: list[str]

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.broken


def run(
    seconds: float, seed: int, pace: Pace, show: Callable[[Progress], None] = lambda progress: None
) -> Result:
    """Everything on this machine, for so long and until all is settled after it. The same seed
    gives the same kills at the same times; what they meet is the machine's own chance."""
    random = Random(seed)
    chaos, losses = threading.Event(), Random(random.random())
    with (
        tempfile.TemporaryDirectory(prefix="obc") as folder,
        running(Path(folder), lambda: chaos.is_set() and losses.random() < LOST_SHARE) as scene,
    ):
        watch = _Watch(scene)
        agents = [Agent(scene, n, Random(random.random()), watch.is_full) for n in range(_AGENTS)]
        made = killers(scene, random, pace)
        chaos.set()
        for thread in (*agents, *made):
            thread.start()
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            watch.look()
            show(Progress(left_s, sum(len(a.kept) for a in agents), watch.open, counted(made)))
            watch.patience.wait(_LOOK_S)
        _end(agents, made)
        chaos.clear()
        enqueued = sum(len(a.kept) for a in agents)
        watch.until_still(lambda: show(Progress(0.0, enqueued, watch.open, counted(made))))
        kept = [intent_id for agent in agents for intent_id in agent.kept]
        unsure = [intent_id for agent in agents for intent_id in agent.unsure]
        verdict = judge(scene, kept, unsure)
        failed = [(t.name, t.error) for t in agents] + [(t.name, t.error) for t in made]
        errors = [f"{name} could not go on: {error!r}" for name, error in failed if error]
        refused = sum(agent.refused for agent in agents)
        broken = [*verdict.broken, *scene.ended, *errors]
        return Result(verdict, counted(made), scene.network.lost, refused, broken)


def _end(agents: list[Agent], made: list[Killer]) -> None:
    for agent in agents:
        agent.end()
    for killer in made:
        killer.end()


class _Watch:
    """Counts what waits, as far as Postgres answers."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.patience = threading.Event()
        self.open = 0
        self.due = 0

    def is_full(self) -> bool:
        return self.open > _FULL

    def look(self) -> bool:
        try:
            (row,) = self._scene.sql(_OPEN)
        except psycopg.OperationalError:
            return False
        self.open, self.due = row["open"], row["due"]
        return True

    def until_still(self, show: Callable[[], None]) -> None:
        """Until nothing waits any more, or nothing has moved for long."""
        last, moved_at = -1, time.monotonic()
        while time.monotonic() - moved_at < _STILL_S:
            if self.look():
                waiting = self.open + self.due
                if waiting == 0:
                    return
                if waiting != last:
                    last, moved_at = waiting, time.monotonic()
            show()
            self.patience.wait(_LOOK_S)

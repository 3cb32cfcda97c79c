"""What is killed, and when: each server and each worker by a thread of its own, at random."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.chaos.scene import Scene, bring_up
from workers.stack import Stack

_LOOK_S = 0.5


@dataclass(frozen=True)
class Pace:
    """Seconds between two kills of one kind, and how long it stays away at the most."""

    least_s: float = 5.0
    most_s: float = 40.0
    away_s: float = 3.0


class Killer(threading.Thread):
    """``kill`` and ``start`` of one thing, in turns; ``tend`` looks after it meanwhile. ``error``
    is what kept it from going on."""

    def __init__(
        self,
        name: str,
        kill: Callable[[], None],
        start: Callable[[], None],
        tend: Callable[[], None],
        random: Random,
        pace: Pace,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._kill, self._start_again, self._tend = kill, start, tend
        self._random, self._pace = random, pace
        self._ended = threading.Event()
        self.kills = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._pauses():
                self._kill()
                self.kills += 1
                self._ended.wait(self._random.uniform(0, self._pace.away_s))
                self._start_again()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Kills nothing any more; returns once everything of its kind runs."""
        self._ended.set()
        self.join()

    def _pauses(self) -> bool:
        """Waits for the next kill; True once there is none any more."""
        left_s = self._random.uniform(self._pace.least_s, self._pace.most_s)
        while left_s > 0:
            if self._ended.wait(min(left_s, _LOOK_S)):
                return True
            left_s -= _LOOK_S
            self._tend()
        return False


def killers(scene: Scene, random: Random, pace: Pace) -> list[Killer]:
    """One for Postgres, one for Valkey and one for each worker."""
    servers = scene.servers

    def tend_front() -> None:
        scene.tend(scene.front)

    made = [
        Killer("postgres", servers.kill_postgres, servers.start_postgres, lambda: None,
               Random(random.random()), pace),
        Killer("valkey", servers.kill_valkey, servers.start_valkey, tend_front,
               Random(random.random()), pace),
    ]  # fmt: skip
    return made + [
        _of_worker(scene, stack, Random(random.random()), pace) for stack in scene.workers
    ]


def _of_worker(scene: Scene, stack: Stack, random: Random, pace: Pace) -> Killer:
    def kill() -> None:
        scene.tend(stack)
        stack.kill("worker")

    return Killer(
        "worker", kill, lambda: bring_up(stack, "worker"), lambda: scene.tend(stack), random, pace
    )


def counted(made: list[Killer]) -> Counter[str]:
    """How often each kind was killed."""
    kills: Counter[str] = Counter()
    for killer in made:
        kills[killer.name] += killer.kills
    return kills

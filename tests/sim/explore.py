"""Running many timelines: all with one deviation from a good day, then those with two, then at
random; over all cores, each with a database of its own in one server."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random

from outbox.testing import Databases
from tests.sim.choices import Choices, Plan, parsed, printed
from tests.sim.ground import Ground, open_ground
from tests.sim.history import problems, recorded
from tests.sim.scenarios import LONG, NAMES, scenarios
from tests.sim.sends import Violation
from tests.sim.timeline import Timeline
from workers.testing import open_servers

# How often the world goes another way in a walk: each walk has a rate of its own.
_RATES = (0.05, 0.1, 0.2, 0.4)
# Of pairs of deviations, so many are of two that are about the world.
_OF_WORLD = 0.75
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Job:
    """One timeline to run: a plan of a scenario; with ``seed`` the rest is at random. ``wanted``
    are answers by name, which stand when the points before them have changed."""

    scenario: str
    plan: Plan = ()
    seed: int | None = None
    wanted: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.scenario}: {printed(self.plan)}"

    @classmethod
    def of(cls, text: str) -> Job:
        """As ``str`` writes it, or by name: ``keys: wire of A#1=lost_ack; time#1=a_minute``.
        Raises ``ValueError``."""
        name, _, plan = text.partition(":")
        known = (*NAMES, LONG)
        if name.strip() not in known:
            raise ValueError(f"there is no scenario {name!r}; there are {', '.join(known)}")
        if "#" in plan:
            pairs = [pair.strip().rpartition("=") for pair in plan.split(";")]
            return cls(name.strip(), wanted=tuple((at, answer) for at, _, answer in pairs))
        return cls(name.strip(), parsed(plan.replace("-", "")))


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it. ``answers`` is how many answers each of its points had, and ``of_world``
    which of them were about the world; ``problem`` the rule that was broken, or the bug that was
    met; empty where all held."""

    job: Job
    answers: tuple[int, ...]
    of_world: tuple[bool, ...]
    verdict: str
    problem: str = ""
    told: tuple[str, ...] = ()


@dataclass(slots=True)
class Summary:
    """Counts over timelines."""

    count: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    broken: list[Ran] = field(default_factory=list)

    def add(self, ran: Ran) -> None:
        """One more."""
        self.count += 1
        self.verdicts[ran.verdict] += 1
        if ran.problem:
            self.broken.append(ran)


def run(ground: Ground, job: Job) -> Ran:
    """One timeline to its end."""
    scenario = next(one for one in scenarios() if one.name == job.scenario)
    chance = None if job.seed is None else Random(f"{job.scenario} {job.seed}")
    rate = 0.0 if chance is None else chance.choice(_RATES)
    choices = Choices(dict(job.plan), dict(job.wanted), chance=chance, rate=rate)
    timeline = Timeline(ground, scenario, choices)
    problem = ""
    try:
        timeline.run()
        if job.scenario == LONG:
            problem = "; ".join(problems(recorded(timeline)))
    except Violation as violation:
        problem = str(violation)
    except Exception as error:  # a bug, of the product or of the simulator: found either way
        problem = f"{type(error).__name__}: {error}"
        if os.environ.get("SIM_TRACE"):
            problem += "\n" + traceback.format_exc()
    if timeline.watch.found is not None:
        problem = str(timeline.watch.found)  # whoever was on the wire may have swallowed it
    made = Job(job.scenario, choices.timeline)
    answers = tuple(point.answers for point in choices.points)
    verdict = "broken" if problem else timeline.verdict()
    of_world = tuple(point.of_world for point in choices.points)
    return Ran(made, answers, of_world, verdict, problem, tuple(choices.told()) if problem else ())


# -- many at once ----------------------------------------------------------------------------------

# One a process, for as long as that lives.
_grounds: list[Ground] = []
_closing = ExitStack()


def _open(urls: multiprocessing.SimpleQueue[str]) -> None:
    _grounds.append(_closing.enter_context(open_ground(urls.get())))


def _run(job: Job) -> Ran:
    return run(_grounds[0], job)


@contextmanager
def open_grounds(processes: int) -> Iterator[Explorer]:
    """So many processes with a ground each."""
    with ExitStack() as closing:
        servers = closing.enter_context(open_servers())
        databases = Databases(servers.database_url)
        closing.callback(databases.close)
        template = databases.template()
        context = multiprocessing.get_context("spawn")
        urls = context.SimpleQueue()
        for _ in range(processes):
            urls.put(closing.enter_context(databases.fresh(template)))
        pool = closing.enter_context(context.Pool(processes, _open, (urls,)))
        yield Explorer(pool)


class Explorer:
    """Hands out timelines, in an order that is always the same."""

    def __init__(self, pool: multiprocessing.pool.Pool) -> None:
        self._pool = pool

    def enumerated(self, least: int) -> Iterator[Ran]:
        """Good days, every single deviation from each, and then pairs of deviations, spread evenly
        over all there are, until ``least`` timelines were run."""
        done = 0
        level: list[Ran] = []
        for ran in self._each(Job(name) for name in NAMES):
            level.append(ran)
            done += 1
            yield ran
        while level and done < least:
            jobs = spread(list(children(level)), least - done)
            level = []
            for ran in self._each(jobs):
                level.append(ran)
                done += 1
                yield ran

    def walks(self, seed: int, seconds: float, scenarios: Sequence[str] = NAMES) -> Iterator[Ran]:
        """Random timelines until so many seconds have passed."""
        give_up = time.monotonic() + seconds

        def jobs() -> Iterator[Job]:
            number = 0
            while time.monotonic() < give_up:
                yield Job(scenarios[number % len(scenarios)], seed=seed * 1_000_003 + number)
                number += 1

        # Not all at once: the pool reads its input ahead.
        chunk: list[Job] = []
        for job in jobs():
            chunk.append(job)
            if len(chunk) == _CHUNK:
                yield from self._each(chunk)
                chunk = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Ran]:
        """These."""
        return self._each(jobs)

    def shrunk(self, ran: Ran) -> Ran:
        """The same kind of failure with as few deviations as can be."""
        kind = ran.problem[:12]
        smaller = True
        while smaller:
            smaller = False
            plan = ran.job.plan
            fewer = [Job(ran.job.scenario, plan[:n] + plan[n + 1 :]) for n in range(len(plan))]
            for one in self._each(fewer):
                if one.problem[:12] == kind and len(one.job.plan) < len(ran.job.plan):
                    ran, smaller = one, True
        return ran

    def _each(self, jobs: Iterable[Job]) -> Iterator[Ran]:
        return self._pool.imap(_run, jobs, chunksize=4)


def children(level: Sequence[Ran]) -> Iterator[tuple[Job, bool]]:
    """Each with one deviation more, behind the last; and whether all of them are of the world."""
    for ran in level:
        first = ran.job.plan[-1][0] + 1 if ran.job.plan else 0
        before = all(ran.of_world[at] for at, _ in ran.job.plan)
        for at in range(first, len(ran.answers)):
            for answer in range(1, ran.answers[at]):
                job = Job(ran.job.scenario, (*ran.job.plan, (at, answer)))
                yield job, before and ran.of_world[at]


def spread(children: Sequence[tuple[Job, bool]], most: int) -> list[Job]:
    """All of them, or as many as there is room for: as many of each scenario, as far as it has so
    many, and always the same ones."""
    if len(children) <= most:
        return [job for job, _ in children]
    chance = Random(len(children))
    by_scenario: dict[str, list[tuple[Job, bool]]] = defaultdict(list)
    for job, is_of_world in children:
        by_scenario[job.scenario].append((job, is_of_world))
    found: list[Job] = []
    smallest_first = sorted(by_scenario.values(), key=len)
    for number, some in enumerate(smallest_first):
        share = (most - len(found)) // (len(smallest_first) - number)
        found += _sampled(chance, some, min(share, len(some)))
    return found


def _sampled(chance: Random, children: Sequence[tuple[Job, bool]], many: int) -> list[Job]:
    of_world = [job for job, is_of_world in children if is_of_world]
    others = [job for job, is_of_world in children if not is_of_world]
    world = min(len(of_world), max(int(many * _OF_WORLD), many - len(others)))
    return chance.sample(of_world, world) + chance.sample(others, many - world)

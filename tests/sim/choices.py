"""The generator of choices: every point where something may go wrong asks here, in order.

A timeline is the points at which the answer was not the quiet one, as pairs of numbers
(point, answer); the same pairs make the same timeline again. Exhaustive search goes by the number
of such pairs: all timelines with one, then those with two, and so on; so what is found first is
as short as it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

_OF_OURS = 40
Plan = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One question that was asked: ``label`` of what it is about, and how many answers it has.
    ``of_world``: it is about the world and not about one statement of ours, of which there are
    many more."""

    label: str
    answers: int
    of_world: bool


@dataclass(slots=True)
class Choices:
    """Answers by a plan, and beyond it quietly (0), or at random where ``chance`` is given: then
    ``rate`` of the questions about the world are answered otherwise than on a good day, and a
    fortieth of that of the others."""

    plan: Mapping[int, int] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)
    chance: Random | None = None
    rate: float = 0.0
    points: list[Point] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    quiet: bool = False

    def pick(
        self,
        label: str,
        answers: int,
        *,
        of_world: bool = False,
        names: Sequence[str] | None = None,
    ) -> int:
        """A number below ``answers``; 0 is the answer of a good day. Once ``quiet`` is set all are
        0, and no point is counted. ``wanted`` says it as ``A commits#2`` for the second question of
        that label: the number, or its name."""
        if self.quiet:
            return 0
        at = len(self.points)
        self.points.append(Point(label, answers, of_world))
        self.asked[label] += 1
        wanted = self.wanted.get(f"{label}#{self.asked[label]}")
        if wanted is not None:
            self.plan = {**self.plan, at: int(wanted) if names is None else names.index(wanted)}
        answer = self.plan.get(at, 0)
        if self.chance is not None and at not in self.plan:
            rate = self.rate if of_world else self.rate / _OF_OURS
            if self.chance.random() < rate:
                answer = self.chance.randrange(answers)
        answer %= answers
        if answer:
            self.taken[at] = answer
        return answer

    def among(self, label: str, names: Sequence[str]) -> str:
        """What the world does: one of the names, the first on a good day."""
        return names[self.pick(label, len(names), of_world=True, names=names)]

    @property
    def timeline(self) -> Plan:
        """The pairs that make this timeline again."""
        return tuple(sorted(self.taken.items()))

    def told(self) -> Iterator[str]:
        """What was answered otherwise than on a good day, in words."""
        for at, answer in self.timeline:
            yield f"{at}={answer} {self.points[at].label}"


def parsed(text: str) -> Plan:
    """A plan as it is printed: ``12=3 40=1``. Raises ``ValueError``."""
    pairs = [pair.split("=") for pair in text.replace(",", " ").split()]
    return tuple(sorted((int(at), int(answer)) for at, answer in pairs))


def printed(plan: Plan) -> str:
    """A plan as ``parsed`` takes it."""
    return " ".join(f"{at}={answer}" for at, answer in plan) or "-"

"""Repetitions: each measures ours and the references one after the other, between two calibrations;
one during which the machine changed is void and done again, so many times at the most."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.bench.calibration import MOST_MOVED, Calibration, moved
from tests.bench.programs import Stuck, TimeIsUp, left_s
from tests.bench.rows import BY_NAME, Pair, Result
from tests.bench.sizes import Sizes
from tests.bench.stage import Place, Stage

T = TypeVar("T")


@dataclass
class Run:
    """What a measurement is given: where, how much, and until when (``end``, by the monotonic
    clock). ``faults`` are what must not be in any run, ``faults_of`` those of one row alone;
    ``told`` is what it says beside the rows."""

    stage: Stage
    sizes: Sizes
    end: float = float("inf")
    faults: list[str] = field(default_factory=list)
    faults_of: dict[str, list[str]] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    only: frozenset[str] = frozenset(BY_NAME)
    kept: dict[str, object] = field(default_factory=dict)
    exits: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def wants(self, *names: str) -> bool:
        """Whether any of these rows was asked for."""
        return not self.only.isdisjoint(names)

    def limit_s(self, most_s: float) -> float:
        """How long one wait may take. Raises ``TimeIsUp`` where no time is left."""
        return left_s(self.end, most_s)

    def take(self, place: Place) -> None:
        """Takes over what was wrong in a place."""
        self.faults += place.faults
        place.faults.clear()

    def fault(self, said: str, row: str) -> None:
        """What must not be, of one row."""
        self.faults_of.setdefault(row, []).append(said)

    def keep(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """What all repetitions of a group share, made when first asked for."""
        if name not in self.kept:
            self.kept[name] = self.exits.enter_context(make())
        found: T = self.kept[name]  # type: ignore[assignment] # by its name
        return found


Measure = Callable[[Run], Mapping[str, Pair]]


@dataclass(frozen=True)
class Group:
    """Rows that one repetition measures together, so that they share what is measured of ours."""

    rows: tuple[str, ...]
    measure: Measure


def repeated(
    group: Group,
    run: Run,
    repetitions: int,
    calibrate: Callable[[], Calibration],
    done: Callable[[bool], None] = lambda void: None,
) -> list[Result]:
    """A group's results. As many void repetitions as were asked for are done again; ``done`` is
    told of each."""
    pairs: dict[str, list[Pair]] = defaultdict(list)
    faults: list[str] = []
    count = void = 0
    try:
        while count < repetitions and void <= repetitions:
            run.limit_s(0.0)
            before = calibrate()
            measured = group.measure(run)
            if moved(before, calibrate()) > MOST_MOVED:
                void += 1
                done(True)
                continue
            count += 1
            for name, pair in measured.items():
                pairs[name].append(pair)
            done(False)
    except TimeIsUp:
        faults.append("no time was left")
    except Stuck as stuck:
        faults.append(str(stuck))
    finally:
        # What a void repetition broke is broken all the same.
        faults += run.faults
        run.faults.clear()
        of_row, run.faults_of = run.faults_of, {}
        run.exits.close()
        run.kept.clear()
    names = [name for name in group.rows if name in run.only]
    said = {name: tuple(dict.fromkeys(faults + of_row.get(name, []))) for name in names}
    return [Result(BY_NAME[n], tuple(pairs[n]), repetitions, void, said[n]) for n in names]

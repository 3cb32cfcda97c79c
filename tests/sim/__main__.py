"""``python -m tests.sim``: timelines enumerated, then walked at random, over all cores.

    python -m tests.sim --least 20000 --seconds 600      # make sim
    python -m tests.sim --replay "keys: 12=3 40=1"       # one timeline again, in words

The last line says timelines, violations and seed. Exit code 1 where a rule was broken.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.sim.explore import Explorer, Job, Ran, Summary, open_grounds
from tests.sim.history import long_histories

_SHOWN = 5
_LONG_SHARE = 0.1
_LINE_EVERY_S = 20.0


def main() -> int:
    """The exit code."""
    asked = _arguments()
    with open_grounds(asked.processes) as explorer:
        if asked.replay:
            return _replay(explorer, asked.replay)
        summary = Summary()
        began = time.monotonic()
        with _Shown() as shown:
            for ran in shown.each("enumerated", explorer.enumerated(asked.least), asked.least):
                summary.add(ran)
            if asked.seconds:
                walked_s = asked.seconds * (1 - _LONG_SHARE)
                for ran in shown.each("walked at random", explorer.walks(asked.seed, walked_s)):
                    summary.add(ran)
                left_s = asked.seconds - walked_s
                long = long_histories(explorer, asked.seed, left_s)
                for ran in shown.each("long histories", long):
                    summary.add(ran)
        _tell(explorer, summary, asked.seed, time.monotonic() - began)
    return 1 if summary.broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--least", type=int, default=5000, help="how many are enumerated")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to walk at random")
    parser.add_argument("--seed", type=int, default=None, help="of the walks; printed")
    parser.add_argument("--replay", default="", help="one timeline, as it was printed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.seed is None:
        asked.seed = secrets.randbelow(10**6)
    return asked


class _Shown:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._lines = not console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console, disable=self._lines,
        )  # fmt: skip
        self._said_at = time.monotonic()

    def __enter__(self) -> _Shown:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def each(self, what: str, found: Iterator[Ran], total: int | None = None) -> Iterator[Ran]:
        """Each of them; those that were broken are counted too."""
        bar = self._bars.add_task(what, total=total)
        broken = 0
        for number, ran in enumerate(found, start=1):
            broken += bool(ran.problem)
            self._bars.update(bar, completed=number)
            if self._lines and time.monotonic() - self._said_at >= _LINE_EVERY_S:
                self._said_at = time.monotonic()
                of = f" of {total}" if total else ""
                print(f"{what}: {number}{of}, {broken} broken", file=sys.stderr, flush=True)
            yield ran


def _replay(explorer: Explorer, text: str) -> int:
    ran = next(explorer.run([Job.of(text)]))
    for line in _story(ran):
        print(line)
    return 1 if ran.problem else 0


def _story(ran: Ran) -> Iterator[str]:
    yield f"{ran.job}"
    yield from (f"    {line}" for line in ran.told)
    yield f"    {ran.problem or ran.verdict}"


def _tell(explorer: Explorer, summary: Summary, seed: int, took_s: float) -> None:
    for verdict, count in sorted(summary.verdicts.items(), key=lambda pair: -pair[1]):
        print(f"{count:>8}  {verdict}")
    for ran in summary.broken[:_SHOWN]:
        for line in _story(explorer.shrunk(ran)):
            print(line, file=sys.stderr)
    if not summary.broken and summary.count:
        bound = 3 / summary.count
        print(
            f"none broken in {summary.count}: of timelines drawn like these fewer than "
            f"{bound:.2g} are broken (95 %, 3/N)"
        )
    print(
        f"timelines {summary.count}, violations {len(summary.broken)}, seed {seed} ({took_s:.0f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())

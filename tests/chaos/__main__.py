"""`make chaos`: real processes for CHAOS_SECONDS (300) while Postgres, Valkey and the workers are
killed every 5 to 40 s and 1 % of the vendor's answers are lost. CHAOS_SEED repeats the kills."""

from __future__ import annotations

import os
import random
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.chaos import run as chaos
from tests.chaos.kills import Pace

_LINE_EVERY_S = 10.0


def main() -> int:
    """0: every promise was kept; 1: one was not; 2: a setting is wrong."""
    try:
        seconds = _number("CHAOS_SECONDS", 300)
        seed = _number("CHAOS_SEED", random.randrange(1, 10**9))
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    print(f"chaos for {seconds} s; seed {seed}", file=sys.stderr, flush=True)
    with _Shown(seconds) as shown:
        result = chaos.run(seconds, seed, Pace(), shown.update)
    for problem in result.broken:
        print(f"broken: {problem}")
    verdict = result.verdict
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(result.kills.items()))
    kills = sum(result.kills.values())
    print(f"{verdict.intents} intents; {result.lost_answers} answers lost; {result.refused} tries "
          f"to enqueue refused; {verdict.asked} open questions; killed: {kinds}")  # fmt: skip
    print(f"sends {verdict.sends}  kills {kills}  doubled {verdict.doubled}  lost {verdict.lost}  "
          f"unsettled without question {verdict.unseen}  seed {seed}")  # fmt: skip
    return 0 if result.ok else 1


def _number(name: str, default: int) -> int:
    """A setting of the environment. Raises ``ValueError``, which names it."""
    given = os.environ.get(name, "")
    if given and not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ValueError(f"{name}: must be a whole number above 0, not {given!r}")
    return int(given or default)


class _Shown:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, seconds: float) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("chaos"), BarColumn(), TextColumn("{task.description}"),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=seconds)
        self._seconds = seconds
        self._lines = not console.is_terminal
        self._said_at = float("-inf")

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, progress: chaos.Progress) -> None:
        """What has happened so far."""
        kills = sum(progress.kills.values())
        said = f"{progress.enqueued} enqueued, {progress.waiting} waiting, {kills} kills"
        self._bar.update(self._task, completed=self._seconds - progress.left_s, description=said)
        now = time.monotonic()
        if self._lines and now - self._said_at >= _LINE_EVERY_S:
            self._said_at = now
            print(f"{progress.left_s:.0f} s left: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

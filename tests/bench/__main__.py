"""`make bench` and `make bench-short`: the product beside its references, in one run.

Exit code 0: every goal is met; 1: one is missed, or could not be measured; 2: a setting is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import report
from tests.bench.calibration import calibrate
from tests.bench.groups import ASKED, GROUPS, LONG, OF_PEERS
from tests.bench.harness import Run, repeated
from tests.bench.peers import PYTHON
from tests.bench.programs import ROOT
from tests.bench.rows import ROWS, Result
from tests.bench.sizes import FULL, SHORT
from tests.bench.stage import open_stage

_FOLDER = ROOT / ".bench"
_REPETITIONS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the rows that are asked for; the exit code."""
    given = _given(arguments)
    names = frozenset(given.only) or frozenset(row.name for row in ROWS) - (
        LONG | ASKED if given.short else frozenset()
    )
    beside: dict[str, Any] = {}
    machine = {"short": given.short, "cores": os.cpu_count()}

    def keep(results: Sequence[Result]) -> None:
        report.kept(report.as_json(results, machine, beside, whole=False), _FOLDER)

    results = _measured(names, given.repeat, keep, short=given.short, beside=beside)
    told = report.as_json(results, machine, beside)
    path, picture = report.written(told, _FOLDER)
    if given.json:
        print(json.dumps(told))
    else:
        report.show(told, Console(width=None if sys.stdout.isatty() else 160))
    print(f"written: {path}" + (f", {picture}" if picture else ""), file=sys.stderr)
    return 0 if told["ok"] else 1


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.bench", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=names,
        help="a row, and may be said again; one of " + ", ".join(names),
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="smaller, and ends in five minutes")
    parser.add_argument("--repeat", type=int, default=_REPETITIONS, metavar="N",
                        help=f"how many repetitions shall count ({_REPETITIONS})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    given = parser.parse_args(arguments)
    if given.repeat < 1:
        parser.error("argument --repeat: must be at least 1")
    if given.short and LONG.intersection(given.only):
        parser.error(f"argument --only: {', '.join(sorted(LONG))} is not in the short form")
    if not PYTHON.exists() and (not given.only or OF_PEERS.intersection(given.only)):
        parser.error("the peers are not installed: `make bench-peers`")
    return given


def _measured(
    names: frozenset[str],
    repetitions: int,
    keep: Callable[[Sequence[Result]], None],
    *,
    short: bool,
    beside: dict[str, Any],
) -> list[Result]:
    """The rows' results; ``keep`` is told what there is, after each group."""
    sizes = SHORT if short else FULL
    groups = [group for group in GROUPS if not names.isdisjoint(group.rows)]
    results: list[Result] = []
    # Drawn when something has ended and never by itself: it would take part in what is measured.
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:>14}"), BarColumn(),
        TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(),
        console=console, auto_refresh=False, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("servers", total=len(groups) * repetitions)
        bar.refresh()
        end = time.monotonic() + sizes.limit_s
        with open_stage(end) as stage:
            run = Run(stage, sizes, end, only=names, told=beside)
            for number, group in enumerate(groups):
                name = next(row for row in group.rows if row in names)
                bar.update(task, description=name, refresh=True)

                def done(void: bool, name: str = name) -> None:
                    _tell(console, bar, task, name, void)

                results += repeated(group, run, repetitions, partial(calibrate, stage.folder), done)
                keep(results)
                bar.update(task, completed=(number + 1) * repetitions, refresh=True)
    return results


def _tell(console: Console, bar: Progress, task: Any, name: str, void: bool) -> None:
    """A bar on a terminal, a line elsewhere."""
    if not void:
        bar.advance(task)
    bar.refresh()
    if not console.is_terminal:
        said = "void, the machine changed meanwhile" if void else "done"
        print(f"{name}: a repetition is {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

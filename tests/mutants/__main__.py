"""``python -m tests.mutants``: every seeded fault must be found (`make mutants`).

    python -m tests.mutants "a new key for each attempt" --seconds 60

Each is searched for so many seconds at the most. The last line says how many were found; exit code
1 where one was not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from outbox.testing import Databases
from tests.mutants.faults import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.mutate import ROOT
from workers.testing import open_servers

_PYTEST = ("-m", "pytest", "-p", "tests.mutants.plugin", "-x", "-q", "-p", "no:cacheprovider")
_START_S = 60.0  # beside the search: a process starts, imports and connects
_FAILED = 1  # pytest's code for a test that failed; any other is no finding


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one: ``by`` is the timeline, or the test."""

    mutant: Mutant
    by: str
    why: str
    took_s: float


def main() -> int:
    """The exit code."""
    asked = _arguments()
    chosen = [one for one in MUTANTS if not asked.names or one.name in asked.names]
    problems = [edit.problem() for one in chosen for edit in one.edits if edit.problem()]
    for problem in problems:
        print(f"cannot be put in: {problem}", file=sys.stderr)
    if problems:
        return 1
    missed = 0
    for found in _all(chosen, asked.seconds, asked.processes):
        missed += not found.by
        print(f"{'found' if found.by else 'MISSED':>6} {found.took_s:5.1f} s  {found.mutant.name}")
        print(f"               {found.by or 'by nothing'}  {found.why}".rstrip(), flush=True)
    print(f"mutants {len(chosen)}, found {len(chosen) - missed}, missed {missed}")
    return 1 if missed or not chosen else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each is searched")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _all(chosen: list[Mutant], seconds: float, processes: int) -> Iterator[Found]:
    with ExitStack() as closing:
        servers = closing.enter_context(open_servers())
        databases = Databases(servers.database_url)
        closing.callback(databases.close)
        template = databases.template()
        urls = [closing.enter_context(databases.fresh(template)) for _ in chosen]
        pool = closing.enter_context(ThreadPoolExecutor(processes))
        yield from pool.map(lambda one, url: _one(one, url, seconds), chosen, urls)


def _one(mutant: Mutant, url: str, seconds: float) -> Found:
    began = time.monotonic()
    by, why = _tested(mutant) if mutant.test else _simulated(mutant, url, seconds)
    return Found(mutant, by, why, time.monotonic() - began)


def _simulated(mutant: Mutant, url: str, seconds: float) -> tuple[str, str]:
    command = [sys.executable, "-m", "tests.mutants.child", mutant.name, url, str(seconds)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + _START_S, check=False
    )
    if ended.returncode:
        # The product does not even start with it: that is found too, and not by a timeline.
        return "its own start", ended.stderr.strip().splitlines()[-1]
    said = json.loads(ended.stdout.splitlines()[-1])
    return said["by"], said["why"] or f"{said['timelines']} timelines"


def _tested(mutant: Mutant) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, *_PYTEST, mutant.test], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OUTBOX_MUTANT": mutant.name}, timeout=300, check=False,
    )  # fmt: skip
    if ended.returncode == _FAILED:
        return mutant.test, ""
    return "", f"pytest ended with {ended.returncode}: {ended.stdout.strip()[-200:]}"


if __name__ == "__main__":
    sys.exit(main())

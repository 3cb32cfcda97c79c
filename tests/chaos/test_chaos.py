"""The short form of `make chaos`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.kills import Pace
from tests.chaos.run import run

_SECONDS = 20.0
# Each kind is killed more than once in so short a time.
_QUICK = Pace(least_s=3.0, most_s=8.0, away_s=1.5)


@pytest.mark.heavy
def test_in_twenty_seconds_of_kills_and_lost_answers_nothing_is_doubled_lost_or_hidden() -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    result = run(_SECONDS, seed, _QUICK)
    assert result.broken == []
    assert result.ok
    assert result.verdict.sends >= result.verdict.intents > 0
    assert set(result.kills) == {"postgres", "valkey", "worker"}
    assert min(result.kills.values()) > 0, "nothing was killed: this shows nothing"


@pytest.mark.parametrize("name", ["CHAOS_SECONDS", "CHAOS_SEED"])
@pytest.mark.parametrize("value", ["soon", "0", "-5", "1.5"])
def test_a_setting_that_is_no_number_is_named_and_nothing_starts(name: str, value: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.chaos"],
        env={**os.environ, name: value}, cwd=Path(__file__).parents[2],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert name in ran.stderr

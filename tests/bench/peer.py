"""What the programs of all peers share: their settings, their pace, and the vendor they call.

Of the standard library alone: they run in an environment without the product.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.effects import Ledger

SETTINGS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("peers.toml").read_text())
# As long as what the product's intents carry.
REQUEST = json.dumps({"amount": 4900, "text": "some hundred bytes of a request of an agent's " * 5})
_ledger = Ledger(os.environ.get("BENCH_LEDGER", os.devnull))
_latency_s = float(os.environ.get("BENCH_LATENCY_MS", "0")) / 1000


def database_url() -> str:
    """The address in libpq's form."""
    return os.environ["DATABASE_URL"].replace("postgresql+psycopg", "postgresql", 1)


def key_of(number: int) -> bytes:
    """The key that a caller of these peers would make for itself."""
    return hashlib.sha256(str(number).encode()).digest()


def arrive(number: int) -> None:
    """The call reached the vendor; for jobs that are coroutines, which wait by themselves."""
    _ledger.add(key_of(number), number.to_bytes(16, "big"), number)


def call(number: int) -> str:
    """The one POST: writes the call down and answers after the latency. The object's id."""
    arrive(number)
    if _latency_s:
        time.sleep(_latency_s)
    return f"wr_{number}"


def arguments() -> argparse.Namespace:
    """`VERB [COUNT] [--per-second N] [--kind NAME]`; VERB is setup, enqueue or work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("setup", "enqueue", "work"))
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--kind", default="")
    return parser.parse_args()


def enqueue_each(given: argparse.Namespace, enqueue: Callable[[int], int]) -> None:
    """Calls ``enqueue`` for each number at the pace, and prints when; it returns when its commit
    was confirmed, in ns of CLOCK_MONOTONIC."""
    committed = []
    began = time.monotonic_ns()
    for number in range(given.count):
        if given.per_second:
            left_s = began / 1e9 + number / given.per_second - time.monotonic()
            time.sleep(max(left_s, 0.0))
        at = enqueue(number)
        committed.append([number.to_bytes(16, "big").hex(), at])
    ended = time.monotonic_ns()
    told = committed if given.per_second else []
    print(json.dumps({"began_ns": began, "ended_ns": ended, "committed": told}))

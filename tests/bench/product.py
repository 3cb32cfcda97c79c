"""The product as people run it: `outbox worker`, an agent's process, the zero-cost vendor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench.harness import Run
from tests.bench.peers import waits_ms
from tests.bench.programs import wait_until
from tests.bench.stage import Place

_LIMIT_S = 300.0
_ENQUEUER = "tests.bench.enqueuer"


@dataclass(frozen=True)
class Done:
    """What a run of ours did: intents per second, commits and WAL bytes for each."""

    rate: float
    commits: float
    wal: float


def drained(
    run: Run,
    count: int,
    *,
    latency_ms: int = 0,
    settings: Mapping[str, str] | None = None,
    workers: int = 1,
    lanes: int = 0,
) -> Done:
    """A backlog that becomes visible in one commit, to workers that are up: from that commit until
    all is settled. ``commits`` counts one for the enqueue of each, as where each is its own."""
    run.limit_s(0.0)
    with run.stage.place(settings, latency_ms=latency_ms) as place, place.workers(workers):
        wal, commits = place.wal_bytes(), place.commits()
        told = place.run(_ENQUEUER, str(count), "--backlog", "--lanes", str(lanes))
        ended = _settled(run, place)
        wal, commits = place.wal_bytes() - wal, place.commits() - commits
        place.check(count)
        run.take(place)
        rate = count / (ended - told["began_ns"] / 1e9)
        return Done(rate, 1 + commits / count, wal / count)


def lived(run: Run, count: int) -> Done:
    """One enqueuer as fast as it can, each write its own commit, and a worker beside it."""
    run.limit_s(0.0)
    with run.stage.place() as place, place.workers():
        wal, commits = place.wal_bytes(), place.commits()
        told = place.run(_ENQUEUER, str(count))
        ended = _settled(run, place)
        wal, commits = place.wal_bytes() - wal, place.commits() - commits
        place.check(count)
        run.take(place)
        return Done(count / (ended - told["began_ns"] / 1e9), commits / count, wal / count)


def enqueued_per_s(run: Run, count: int) -> float:
    """One client that enqueues, each write its own commit, and no worker."""
    run.limit_s(0.0)
    with run.stage.place() as place:
        told = place.run(_ENQUEUER, str(count))
        if place.unsettled() != count:
            run.faults.append(f"{place.unsettled()} of {count} enqueued intents are there")
        run.faults += place.doctor_without_worker()
        return float(count / (told["ended_ns"] - told["began_ns"]) * 1e9)


def woken_ms(run: Run, count: int, per_second: float) -> list[float]:
    """From each commit to the first byte at the vendor, in ms."""
    run.limit_s(0.0)
    with run.stage.place() as place, place.workers():
        told = place.run(_ENQUEUER, str(count), "--per-second", str(per_second))
        _settled(run, place)
        place.check(count)
        run.take(place)
        return waits_ms(place, told["committed"])


def _settled(run: Run, place: Place) -> float:
    wait_until(place.is_settled, run.limit_s(_LIMIT_S), "all intents settled")
    return time.monotonic()

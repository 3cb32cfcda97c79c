"""How long an agent waits until its write is recorded, beside a bare insert by the same driver:
alone, and while workers drain a backlog at full speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tests.bench.backlog import pile_up
from tests.bench.fairness import p99
from tests.bench.harness import Run
from tests.bench.pgbench import SCHEMA
from tests.bench.programs import wait_until
from tests.bench.rows import Pair
from tests.bench.stage import Place

_LIMIT_S = 300.0


def alone(run: Run) -> Mapping[str, Pair]:
    """One agent and nobody else."""
    run.limit_s(0.0)
    with run.stage.place() as place:
        found = _measured(run, place)
        run.faults += place.doctor_without_worker()
    return {f"enqueue-{name}": pair for name, pair in found.items()}


def beside(run: Run) -> Mapping[str, Pair]:
    """One agent, and a backlog that does not end before."""
    run.limit_s(0.0)
    count = run.sizes.beside
    with run.stage.place() as place, place.workers():
        pile_up(place, count)
        wait_until(lambda: len(place.ledger) > 0, run.limit_s(_LIMIT_S), "a drain")
        found = _measured(run, place)
        if len(place.ledger) >= count:
            place.faults.append("the backlog was gone before the last write")
        count += run.sizes.waits
        wait_until(lambda: place.is_settled(count), run.limit_s(_LIMIT_S), "all intents settled")
        place.check(count)
        run.take(place)
    return {f"enqueue-{name}-beside": pair for name, pair in found.items()}


def _measured(run: Run, place: Place) -> dict[str, Pair]:
    place.sql(SCHEMA)
    count = str(run.sizes.waits)
    ours = _ms(place.run("tests.bench.enqueuer", count, "--timed")["took_ns"])
    bare = _ms(place.run("tests.bench.bare_insert", count)["took_ns"])
    return {"p50": Pair(median(ours), median(bare)), "p99": Pair(p99(ours), p99(bare))}


def _ms(took_ns: Sequence[int]) -> list[float]:
    return [ns / 1e6 for ns in took_ns]

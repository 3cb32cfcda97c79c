"""A drain at full speed while one answer of a hundred is lost and workers are killed one by one,
beside the same drain without."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from tests.bench import vendor
from tests.bench.backlog import pile_up
from tests.bench.effects import changed_bodies
from tests.bench.harness import Run
from tests.bench.programs import Child, wait_until
from tests.bench.rows import Pair
from tests.bench.stage import Place

_LIMIT_S = 600.0
_WORKERS = 2
_KILL_EVERY_S = 10.0
_LOST_EVERY = 100
# The demo's lease of three seconds, its ticks and its looks; the threads and batches of production,
# and time enough for the backlog to wait its turn.
_SETTINGS = {
    "OUTBOX_PROFILE": "demo",
    "OUTBOX_THREADS": "64",
    "OUTBOX_BATCH": "64",
    "OUTBOX_TTL_OVERRIDE_S": "1200",
    "OUTBOX_WINDOW_OVERRIDE_S": "3600",
    "OUTBOX_MARGIN_OVERRIDE_S": "600",
}
_FAULTS = {vendor.LOST_EVERY: str(_LOST_EVERY)}


def faulty(run: Run) -> Mapping[str, Pair]:
    """With faults and without, in turn."""
    return {"faulty": Pair(_drained_per_s(run, kill=True), _drained_per_s(run, kill=False))}


def _drained_per_s(run: Run, *, kill: bool) -> float:
    count = run.sizes.faulty
    run.limit_s(0.0)
    settings = {**_SETTINGS, **(_FAULTS if kill else {})}
    with (
        run.stage.place(settings, latency_ms=run.sizes.faulty_latency_ms) as place,
        place.workers(_WORKERS) as workers,
    ):
        pile_up(place, count)
        began = time.monotonic()
        killed = _kill_until_settled(run, place, workers) if kill else 0
        wait_until(lambda: place.is_settled(count), run.limit_s(_LIMIT_S), "all intents settled")
        rate = count / (time.monotonic() - began)
        if kill and not killed:
            place.faults.append("all was settled before the first kill: nothing was measured")
        place.check(count, resends=kill)
        if changed := changed_bodies(place.ledger):
            place.faults.append(f"{changed} keys came with two bodies")
        run.take(place)
        return rate


def _kill_until_settled(run: Run, place: Place, workers: list[Child]) -> int:
    """Kills the one and then the other, and starts another in its stead; how often."""
    for killed in itertools.count():
        next_kill = time.monotonic() + _KILL_EVERY_S

        def is_over(next_kill: float = next_kill) -> bool:
            return time.monotonic() >= next_kill or place.is_settled(run.sizes.faulty)

        wait_until(is_over, run.limit_s(_LIMIT_S), "the next kill")
        if place.is_settled(run.sizes.faulty):
            return killed
        workers[killed % _WORKERS].kill()
        workers[killed % _WORKERS] = place.worker()
    raise AssertionError("counting does not end")

"""A worker is killed in mid-run: how long until everything is settled, and what the vendor saw."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread

from tests.bench.effects import changed_bodies
from tests.bench.harness import Run
from tests.bench.programs import wait_until
from tests.bench.rows import Pair

_LIMIT_S = 120.0
_LATENCY_MS = 50
# The demo's lease of three seconds and its ticks; everything else as it comes.
_SETTINGS = {"OUTBOX_PROFILE": "demo"}
_AFTER_LEASE_S = 2.0


def killed(run: Run) -> Mapping[str, Pair]:
    """Two workers over a backlog, one of them killed with a quarter of it done."""
    count = run.sizes.killed
    run.limit_s(0.0)
    with (
        run.stage.place(_SETTINGS, latency_ms=_LATENCY_MS) as place,
        place.workers(2) as workers,
    ):
        # Its process ends some time after its commit: the workers do not wait for that.
        enqueuing = Thread(target=place.run, args=("tests.bench.enqueuer", str(count), "--backlog"))
        enqueuing.start()
        wait_until(lambda: len(place.ledger) > count / 4, run.limit_s(_LIMIT_S), "a mid-run")
        began = time.monotonic()
        workers[0].kill()
        if not place.unsettled():
            place.faults.append("all was settled before the kill: nothing was measured")
        wait_until(place.is_settled, run.limit_s(_LIMIT_S), "all intents settled")
        took_s = time.monotonic() - began
        enqueuing.join()
        place.check(count, resends=True)
        if changed := changed_bodies(place.ledger):
            place.faults.append(f"{changed} keys came with two bodies")
        run.take(place)
        return {"killed": Pair(took_s, place.settings.policy.lease_s + _AFTER_LEASE_S)}

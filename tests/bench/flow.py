"""The rows about how fast writes flow: enqueue, drain, live, wake, lanes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from tests.bench import peers, pgbench, product
from tests.bench.harness import Run
from tests.bench.product import Done
from tests.bench.rows import Pair

_LATENCY_MS = 50
_PER_SECOND = 20.0
_LANES = 10
# One sender of 64 threads; two of 200 each.
AT_64 = {"OUTBOX_CHILDREN": "2", "OUTBOX_THREADS": "64"}
AT_400 = {"OUTBOX_CHILDREN": "3", "OUTBOX_THREADS": "200"}


def enqueue(run: Run) -> Mapping[str, Pair]:
    """One client that only enqueues, beside one that only inserts."""
    count = run.sizes.enqueued
    ours = product.enqueued_per_s(run, count)
    return {"enqueue": Pair(ours, pgbench.inserts(run.stage, count).rate)}


def drain(run: Run) -> Mapping[str, Pair]:
    """Ours before each reference, or in the short form once for all of them."""
    sizes, found = run.sizes, {}
    known: Done | None = None

    def ours() -> Done:
        nonlocal known
        if known is None or sizes.again:
            known = product.drained(run, sizes.backlog)
        return known

    if run.wants("drain-limit", "drain-commits", "drain-wal"):
        done = ours()
        limit = pgbench.life_cycles(run.stage, sizes.backlog, 16)
        found["drain-limit"] = Pair(done.rate, limit.rate)
        found["drain-commits"] = Pair(done.commits, 1.0)
        found["drain-wal"] = Pair(done.wal, limit.wal)
    for name, peer, count in (
        ("drain-celery", peers.THREADS, sizes.celery),
        ("drain-pgqueuer", peers.PGQUEUER, sizes.backlog),
        ("drain-dbos", peers.DBOS, sizes.dbos),
    ):
        if run.wants(name) and count:
            done = ours()
            found[name] = Pair(done.rate, peers.drained_per_s(run, peer, count))
    return found


def drain_64(run: Run) -> Mapping[str, Pair]:
    """64 calls of 50 ms in the air are 1,280 a second."""
    done = product.drained(run, run.sizes.in_flight_64, latency_ms=_LATENCY_MS, settings=AT_64)
    return {"drain-64": Pair(done.rate, 64 * 1000 / _LATENCY_MS)}


def drain_400(run: Run) -> Mapping[str, Pair]:
    """400 calls of 50 ms in the air are 8,000 a second."""
    done = product.drained(run, run.sizes.in_flight_400, latency_ms=_LATENCY_MS, settings=AT_400)
    return {"drain-400": Pair(done.rate, 400 * 1000 / _LATENCY_MS)}


def live(run: Run) -> Mapping[str, Pair]:
    """Enqueue and drain at once."""
    sizes, found = run.sizes, {}
    done = product.lived(run, sizes.live)
    found["live-commits"] = Pair(done.commits, 1.0)
    if run.wants("live-limit"):
        limit = pgbench.life_cycles(run.stage, sizes.live, 1)
        found["live-limit"] = Pair(done.rate, limit.rate)
    if run.wants("live-celery"):
        if sizes.again and run.wants("live-limit"):
            done = product.lived(run, sizes.live)
        theirs = peers.lived_per_s(run, peers.THREADS, sizes.live_celery)
        found["live-celery"] = Pair(done.rate, theirs)
    return found


def wake(run: Run) -> Mapping[str, Pair]:
    """A worker that rests between one write and the next."""
    count = run.sizes.wakes
    ours = product.woken_ms(run, count, _PER_SECOND)
    theirs = peers.woken_ms(run, peers.PREFORK, count, _PER_SECOND)
    return {"wake": Pair(median(ours), median(theirs))}


def lanes(run: Run) -> Mapping[str, Pair]:
    """Ten lanes, each one call of 50 ms at a time, are 200 a second."""
    done = product.drained(run, run.sizes.lanes, latency_ms=_LATENCY_MS, lanes=_LANES)
    return {"lanes": Pair(done.rate, _LANES * 1000 / _LATENCY_MS)}

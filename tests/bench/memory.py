"""What the worker takes of the machine's memory: the proportional set size (PSS) of all its
processes, in which a page that several share counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench import peers
from tests.bench.backlog import pile_up
from tests.bench.flow import AT_64, AT_400
from tests.bench.harness import Run
from tests.bench.peers import Peer
from tests.bench.programs import Child, wait_until
from tests.bench.rows import Pair

_LIMIT_S = 600.0
_LATENCY_MS = 50
_KIB = 1024
# One look costs the kernel a walk over all pages: so many in one run, spread over it.
_LOOKS = 5


def in_flight(run: Run) -> Mapping[str, Pair]:
    """Ours with 64 and with 400 calls in the air, beside what runs 64 at Celery's."""
    sizes, found = run.sizes, {}
    threads = 0.0
    if run.wants("memory-64", "memory-400"):
        threads = _of_peer(run, peers.THREADS, sizes.celery)
    if run.wants("memory-64", "memory-prefork"):
        ours = _of_ours(run, sizes.in_flight_64, AT_64)
        found["memory-64"] = Pair(ours, threads)
        if run.wants("memory-prefork"):
            found["memory-prefork"] = Pair(ours, _of_peer(run, peers.PREFORK_64, sizes.celery))
    if run.wants("memory-400"):
        found["memory-400"] = Pair(_of_ours(run, sizes.in_flight_400, AT_400), threads)
    return {name: pair for name, pair in found.items() if run.wants(name)}


def flat(run: Run) -> Mapping[str, Pair]:
    """One worker through one backlog after the other: after the last beside after the first."""
    sizes = run.sizes
    run.limit_s(0.0)
    with run.stage.place() as place, place.workers() as (worker,):
        taken = []
        for number in range(1, sizes.flat_times + 1):
            pile_up(place, sizes.flat_each, run=f"backlog-{number}")
            settled = partial(place.is_settled, sizes.flat_each * number)
            wait_until(settled, run.limit_s(_LIMIT_S), "all intents settled")
            taken.append(pss_bytes(worker.process.pid))
        place.check(sizes.flat_each * sizes.flat_times)
        run.take(place)
        return {"memory-flat": Pair(taken[-1] / _KIB**2, taken[0] / _KIB**2)}


def _of_ours(run: Run, count: int, settings: Mapping[str, str]) -> float:
    """MiB, with all places taken."""
    run.limit_s(0.0)
    with run.stage.place(settings, latency_ms=_LATENCY_MS) as place, place.workers() as (worker,):
        pile_up(place, count)
        taken = _looked_at(run, worker, lambda: len(place.ledger), count)
        wait_until(lambda: place.is_settled(count), run.limit_s(_LIMIT_S), "all intents settled")
        place.check(count)
        run.take(place)
        return taken


def _of_peer(run: Run, peer: Peer, count: int) -> float:
    """MiB of a peer at the same work."""
    run.limit_s(0.0)
    with run.stage.place(migrated=False, latency_ms=_LATENCY_MS) as place:
        peer.set_up(place)
        peer.enqueue(place, count)
        with peer.at_work(place) as worker:
            taken = _looked_at(run, worker, lambda: len(place.ledger), count)
            peer.finish(run, place, count)
        return taken


def _looked_at(run: Run, worker: Child, sent: Callable[[], int], count: int) -> float:
    """The median of several looks between the first fifth and the last of the work, in MiB."""
    taken = []
    for look in range(1, _LOOKS + 1):
        least = count * look / (_LOOKS + 1)

        def is_there(least: float = least) -> bool:
            return sent() >= least

        wait_until(is_there, run.limit_s(_LIMIT_S), "the middle of the work")
        taken.append(pss_bytes(worker.process.pid))
    return median(taken) / _KIB**2


def pss_bytes(group: int) -> int:
    """Of a program that leads its group, by its process id, and of all that it started."""
    return sum(_pss_bytes(process) for process in _of_group(group))


def _of_group(group: int) -> Iterator[Path]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # What follows the name in brackets: state, parent, group.
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                yield stat.parent
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile


def _pss_bytes(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:"))

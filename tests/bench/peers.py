"""The peers as this run starts them: programs in an environment of their own (`.bench/venv`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.effects import duplicates
from tests.bench.harness import Run
from tests.bench.programs import ROOT, Child, last_line, wait_until
from tests.bench.stage import Place

PYTHON = ROOT / ".bench" / "venv" / "bin" / "python"
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Peer:
    """One peer: its program beside this file, and the statements that say whether any is left and
    count what is durably known of the vendor's answers."""

    name: str
    program: str
    left: str
    receipts: str
    kind: str = ""

    def _command(self, *arguments: str) -> list[str]:
        program = Path(__file__).with_name(self.program)
        kind = ["--kind", self.kind] if self.kind else []
        return [str(PYTHON), str(program), *arguments, *kind]

    def enqueue(self, place: Place, count: int, per_second: float = 0.0) -> dict[str, Any]:
        """So many writes, each its own; ``began_ns`` and ``committed`` as it tells."""
        pace = ["--per-second", str(per_second)] if per_second else []
        return last_line(
            self._command("enqueue", str(count), *pace), place.env, place.limit_s(_LIMIT_S)
        )

    @contextmanager
    def at_work(self, place: Place) -> Iterator[Child]:
        """Its worker, ready, until the block ends."""
        with place.child(self._command("work")) as child:
            yield child

    def set_up(self, place: Place) -> None:
        """Its tables."""
        last_line(self._command("setup"), place.env, place.limit_s(_LIMIT_S))

    def finish(self, run: Run, place: Place, count: int) -> float:
        """Waits until every write has its durable result; the time then, in s of CLOCK_MONOTONIC.
        A peer that called twice for one write, or kept no receipt of it, is no reference."""

        def done() -> bool:
            return len(place.ledger) >= count and not place.sql(self.left)[0]["yes"]

        wait_until(done, run.limit_s(_LIMIT_S), f"{self.name} ends its work")
        ended = time.monotonic()
        if doubled := duplicates(place.ledger):
            place.faults.append(f"{self.name}: {doubled} duplicate upstream calls")
        if (kept := place.sql(self.receipts)[0]["n"]) != count:
            place.faults.append(f"{self.name}: {kept} receipts of {count} writes")
        run.take(place)
        return ended


_WRITES = "SELECT EXISTS (SELECT FROM writes WHERE status <> 'done') AS yes"
_RECEIPTS = "SELECT count(*) AS n FROM writes WHERE receipt IS NOT NULL"
THREADS = Peer("Celery with threads", "peer_celery.py", _WRITES, _RECEIPTS, "threads")
PREFORK = Peer("Celery prefork", "peer_celery.py", _WRITES, _RECEIPTS, "prefork")
PREFORK_64 = Peer("Celery prefork", "peer_celery.py", _WRITES, _RECEIPTS, "prefork_64")
PGQUEUER = Peer(
    "pgqueuer", "peer_pgqueuer.py", "SELECT EXISTS (SELECT FROM pgqueuer) AS yes", _RECEIPTS
)
DBOS = Peer(
    "DBOS", "peer_dbos.py",
    "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status <> 'SUCCESS') AS yes",
    "SELECT count(*) AS n FROM dbos.operation_outputs WHERE output IS NOT NULL",
)  # fmt: skip


def drained_per_s(run: Run, peer: Peer, count: int) -> float:
    """A backlog of a peer's, from its first call to its last result; its start is given to it."""
    run.limit_s(0.0)
    with run.stage.place(migrated=False) as place:
        peer.set_up(place)
        peer.enqueue(place, count)
        with peer.at_work(place):
            ended = peer.finish(run, place, count)
        return count / (ended - min(effect.at_ns for effect in place.ledger) / 1e9)


def lived_per_s(run: Run, peer: Peer, count: int) -> float:
    """One enqueuer as fast as it can, and the worker beside it, until all is done."""
    run.limit_s(0.0)
    with run.stage.place(migrated=False) as place:
        peer.set_up(place)
        with peer.at_work(place):
            told = peer.enqueue(place, count)
            ended = peer.finish(run, place, count)
        return float(count / (ended - told["began_ns"] / 1e9))


def woken_ms(run: Run, peer: Peer, count: int, per_second: float) -> list[float]:
    """From each commit to the first byte at the vendor, in ms."""
    run.limit_s(0.0)
    with run.stage.place(migrated=False) as place:
        peer.set_up(place)
        with peer.at_work(place):
            told = peer.enqueue(place, count, per_second)
            peer.finish(run, place, count)
        return waits_ms(place, told["committed"])


def waits_ms(place: Place, committed: list[tuple[str, int]]) -> list[float]:
    """From each commit to its first byte, in ms: ``committed`` are (owner in hex, ns)."""
    arrived = {effect.owner: effect.at_ns for effect in place.ledger}
    return [(arrived[bytes.fromhex(owner)] - at_ns) / 1e6 for owner, at_ns in committed]

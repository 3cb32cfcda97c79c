"""The rows of the benchmark and their goals; the goals are the project's own, see README.md."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One comparison: ``ratio`` is ours divided by the reference's, in ``unit`` each. ``goal`` is
    the least ratio, or with ``sense`` "at most" the largest."""

    name: str
    title: str
    against: str
    goal: float
    unit: str
    sense: Literal["at least", "at most"] = "at least"

    def meets(self, ratio: float) -> bool:
        """Whether a ratio is as good as it must be."""
        return ratio >= self.goal if self.sense == "at least" else ratio <= self.goal


@dataclass(frozen=True)
class Pair:
    """What one repetition measured, side by side."""

    ours: float
    reference: float

    @property
    def ratio(self) -> float:
        """Ours divided by the reference's."""
        return self.ours / self.reference


@dataclass(frozen=True)
class Result:
    """A row's repetitions that count, how many were void, and what must not have been."""

    row: Row
    pairs: tuple[Pair, ...]
    wanted: int
    void: int = 0
    faults: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The median; None where no repetition counts."""
        return median(pair.ratio for pair in self.pairs) if self.pairs else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the largest ratio."""
        ratios = [pair.ratio for pair in self.pairs]
        return (min(ratios), max(ratios)) if ratios else None

    @property
    def ok(self) -> bool:
        """The goal is met, by as many repetitions as were asked for, and nothing was broken."""
        ratio = self.ratio
        enough = len(self.pairs) >= self.wanted
        return ratio is not None and enough and not self.faults and self.row.meets(ratio)

    @property
    def why_not(self) -> str:
        """What is wrong, in words; empty where nothing is."""
        said = list(self.faults)
        if len(self.pairs) < self.wanted:
            void = f", {self.void} void" if self.void else ""
            said.append(f"{len(self.pairs)} of {self.wanted} repetitions count{void}")
        elif self.ratio is not None and not self.row.meets(self.ratio):
            said.append("the goal is missed")
        return "; ".join(said)


P1, P16 = "pgbench, bare life cycle, 1 client", "pgbench, bare life cycle, 16 clients"
BARE = "a bare insert by the same driver"
EMPTY = "the same on an empty table"
GROWN = "in a grown ledger"
PLAIN = "a plain read of what is unsettled for each question about it"
# What a tenant's ten writes may wait for beside somebody's backlog: against the same ten alone.
FAIR = "twice alone + 1 s"
DOUBLED = "one each time the number of questions doubles"
CALM, PSS = "the same without faults", "MiB, PSS"
ROWS = (
    Row("enqueue", "enqueue, 1 client", "pgbench insert, 1 client", 0.5, "per s"),
    Row("enqueue-p50", "enqueue until committed", BARE, 4.0, "ms, p50", "at most"),
    Row("enqueue-p99", "enqueue until committed", BARE, 4.0, "ms, p99", "at most"),
    Row("enqueue-p50-beside", "the same beside a full drain", BARE, 4.0, "ms, p50", "at most"),
    Row("enqueue-p99-beside", "the same beside a full drain", BARE, 4.0, "ms, p99", "at most"),
    Row("drain-limit", "drain of a backlog, 0 ms", P16, 1.0, "per s"),
    Row("drain-celery", "drain of a backlog, 0 ms", "Celery, 64 threads, ledger", 8.0, "per s"),
    Row("drain-pgqueuer", "drain of a backlog, 0 ms", "pgqueuer", 3.0, "per s"),
    Row("drain-dbos", "drain of a backlog, 0 ms", "DBOS", 1.0, "per s"),
    Row("drain-commits", "commits per intent, draining", "one", 1.2, "commits", "at most"),
    Row("drain-wal", "WAL per intent, draining", P16, 1.3, "bytes", "at most"),
    Row("drain-64", "drain, 50 ms, 64 in flight", "64 / 50 ms", 0.9, "per s"),
    Row("drain-400", "drain, 50 ms, 400 in flight, 2 processes", "400 / 50 ms", 0.75, "per s"),
    Row("live-limit", "live, 0 ms, one enqueuer", P1, 0.8, "per s"),
    Row("live-celery", "live, 0 ms, one enqueuer", "Celery, 64 threads, ledger", 1.9, "per s"),
    Row("live-commits", "commits per intent, live", "one", 2.2, "commits", "at most"),
    Row("wake", "commit to first byte, 20 a second", "Celery prefork", 1.0, "ms, p50", "at most"),
    Row("claim-settled", "claim of 50 beside settled rows", EMPTY, 1.2, "ms, p50", "at most"),
    Row("claim-pending", "claim of 50 out of pending rows", EMPTY, 1.3, "ms, p50", "at most"),
    Row("claim-lane", "claim of 50 beside one long lane", EMPTY, 1.2, "ms, p50", "at most"),
    Row("claim-pinned", "claim of 50 under a pinned snapshot", EMPTY, 1.3, "ms, p50", "at most"),
    Row("growth-claim", f"claim of 50 {GROWN}", EMPTY, 1.3, "ms, p50", "at most"),
    Row("growth-enqueue", f"enqueue {GROWN}", EMPTY, 1.2, "ms, p50", "at most"),
    Row("growth-find", f"enqueue of a recorded key {GROWN}", EMPTY, 1.2, "ms, p50", "at most"),
    Row("growth-escalate", f"a tick's questions {GROWN}", EMPTY, 1.3, "ms, p50", "at most"),
    Row("growth-doctor", f"all of `outbox doctor` {GROWN}", PLAIN, 4.0, "s", "at most"),
    Row("lanes", "10 ordered lanes, 50 ms", "10 / 50 ms", 0.95, "per s"),
    Row("stripe", "drain through the Stripe SDK", "the bare SDK, same threads", 0.85, "per s"),
    Row("fair-tenant", "ten writes beside a tenant's backlog", FAIR, 1.0, "ms, p99", "at most"),
    Row("fair-account", "ten writes beside an account's backlog", FAIR, 1.0, "ms, p99", "at most"),
    Row("fair-vendor", "ten writes beside a vendor of 5 s", FAIR, 1.0, "ms, p99", "at most"),
    Row("fair-breaker", "ten writes beside an open breaker", FAIR, 1.0, "ms, p99", "at most"),
    Row("faulty", "drain, 1 % lost, kill -9 every 10 s, lease 3 s", CALM, 0.67, "per s"),
    Row("memory-64", "worker, 64 in flight", "Celery, 64 threads", 3.0, PSS, "at most"),
    Row("memory-400", "worker, 400 in flight", "Celery, 64 threads", 4.0, PSS, "at most"),
    Row("memory-prefork", "worker, 64 in flight", "Celery, 64 processes", 0.15, PSS, "at most"),
    Row("memory-flat", "worker, after all backlogs", "after the first", 1.1, PSS, "at most"),
    Row(
        "outage-settle",
        "rows in doubt settled by look-ups",
        "the bare SDK reads the same lists",
        40.0,
        "s",
        "at most",
    ),
    Row("outage-reads", "pages read for them", "as many as there are", 6.0, "pages", "at most"),
    Row("outage-page", "pages to people once its time is over", DOUBLED, 1.0, "pages", "at most"),
    Row("outage-beside", "drain of another vendor meanwhile", "without", 0.8, "per s"),
    Row("killed", "a worker killed in mid-run", "lease + 2 s", 1.0, "s", "at most"),
)
BY_NAME = {row.name: row for row in ROWS}

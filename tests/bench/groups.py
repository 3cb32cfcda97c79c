"""Which measurement gives which rows, in the order in which they are run."""

from __future__ import annotations

from tests.bench import (
    claiming,
    fairness,
    faulty,
    flow,
    growing,
    killing,
    memory,
    outage,
    stripe_sdk,
    waits,
)
from tests.bench.harness import Group

GROUPS = (
    Group(("enqueue",), flow.enqueue),
    Group(("enqueue-p50", "enqueue-p99"), waits.alone),
    Group(("enqueue-p50-beside", "enqueue-p99-beside"), waits.beside),
    Group(
        ("drain-limit", "drain-celery", "drain-pgqueuer", "drain-dbos", "drain-commits",
         "drain-wal"),
        flow.drain,
    ),
    Group(("drain-64",), flow.drain_64),
    Group(("drain-400",), flow.drain_400),
    Group(("live-limit", "live-celery", "live-commits"), flow.live),
    Group(("wake",), flow.wake),
    Group(("claim-settled", "claim-pending", "claim-lane", "claim-pinned"), claiming.claims),
    Group(
        ("growth-claim", "growth-enqueue", "growth-find", "growth-escalate", "growth-doctor"),
        growing.growth,
    ),
    Group(("lanes",), flow.lanes),
    Group(("stripe",), stripe_sdk.stripe_sdk),
    Group(("fair-tenant",), fairness.tenant),
    Group(("fair-account",), fairness.account),
    Group(("fair-vendor",), fairness.slow_vendor),
    Group(("fair-breaker",), fairness.open_breaker),
    Group(("faulty",), faulty.faulty),
    Group(("memory-64", "memory-400", "memory-prefork"), memory.in_flight),
    Group(("memory-flat",), memory.flat),
    Group(("outage-settle", "outage-reads", "outage-beside"), outage.outage),
    Group(("outage-page",), outage.asked),
    Group(("killed",), killing.killed),
)  # fmt: skip
# These start programs of the peers' environment.
OF_PEERS = frozenset(
    {
        "drain-celery",
        "drain-pgqueuer",
        "drain-dbos",
        "live-celery",
        "wake",
        "memory-64",
        "memory-400",
        "memory-prefork",
    }
)
# What the short form has no time for.
LONG = frozenset({"drain-dbos"})
# What it has time for only where it is asked for it.
ASKED = frozenset({"enqueue-p50-beside", "enqueue-p99-beside", "fair-tenant", "fair-account",
                   "fair-vendor", "fair-breaker", "faulty", "memory-64", "memory-400",
                   "memory-prefork", "memory-flat"})  # fmt: skip

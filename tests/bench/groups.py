"""Which measurement gives which rows, in the order in which they are run."""

from __future__ import annotations

from tests.bench import claiming, flow, killing, outage, stripe_sdk
from tests.bench.harness import Group

GROUPS = (
    Group(("enqueue",), flow.enqueue),
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
    Group(("lanes",), flow.lanes),
    Group(("stripe",), stripe_sdk.stripe_sdk),
    Group(("outage-settle", "outage-reads", "outage-beside"), outage.outage),
    Group(("killed",), killing.killed),
)  # fmt: skip
# These start programs of the peers' environment.
OF_PEERS = frozenset({"drain-celery", "drain-pgqueuer", "drain-dbos", "live-celery", "wake"})
# What the short form has no time for.
LONG = frozenset({"drain-dbos"})

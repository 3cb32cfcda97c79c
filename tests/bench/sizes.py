"""How much each measurement does, in the full and in the short form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Intents of each measurement; ``dbos`` 0: it is left out. ``again``: ours is measured before
    each reference, and not once a repetition. ``limit_s`` ends the whole run."""

    enqueued: int = 5_000
    waits: int = 3_000
    backlog: int = 12_000
    celery: int = 6_000
    dbos: int = 2_000
    in_flight_64: int = 5_000
    in_flight_400: int = 12_000
    live: int = 6_000
    live_celery: int = 3_000
    wakes: int = 200
    settled: int = 1_000_000
    pending: int = 1_000_000
    lane: int = 100_000
    churn: int = 50_000
    claims: int = 60
    grown: int = 10_000_000
    grown_due: int = 1_000_000
    lanes: int = 1_000
    stripe: int = 6_000
    outage: int = 100_000
    outage_beside: int = 6_000
    killed: int = 2_000
    beside: int = 100_000
    rounds: int = 30
    faulty: int = 200_000
    faulty_latency_ms: int = 50
    flat_each: int = 50_000
    flat_times: int = 20
    again: bool = True
    limit_s: float = float("inf")


FULL = Sizes()
SHORT = Sizes(
    enqueued=1_000,
    waits=400,
    backlog=3_000,
    celery=800,
    dbos=0,
    in_flight_64=900,
    in_flight_400=3_000,
    live=1_200,
    live_celery=600,
    wakes=40,
    settled=40_000,
    pending=40_000,
    lane=10_000,
    churn=2_000,
    claims=25,
    grown=100_000,
    grown_due=10_000,
    lanes=200,
    stripe=800,
    outage=2_000,
    outage_beside=2_000,
    killed=1_500,
    beside=15_000,
    rounds=6,
    faulty=20_000,
    faulty_latency_ms=200,
    flat_each=4_000,
    flat_times=5,
    again=False,
    limit_s=270.0,
)

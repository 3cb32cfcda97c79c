"""What ten writes of one wait for beside a hundred thousand of another: the same rounds first alone
and then beside them, from each commit to the first byte at the vendor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tests.bench import vendor
from tests.bench.backlog import Owner, pile_up
from tests.bench.harness import Run
from tests.bench.peers import waits_ms
from tests.bench.programs import wait_until
from tests.bench.rows import Pair
from tests.bench.stage import Place

_LIMIT_S = 300.0
_LATENCY_MS = 50
_EACH = 10
_ROUNDS_PER_S = 1.0
# What may be lost beside others: as much again as alone, and a second.
_TIMES, _MORE_MS = 2.0, 1000.0
_ENQUEUER = "tests.bench.enqueuer"
# A probe that finds a vendor back comes soon; everything else as it comes.
_SETTINGS = {"OUTBOX_BREAKER_PROBE_S": "3", "OUTBOX_BREAKER_PROBE_MAX_S": "3"}
_LEFT = """
SELECT count(*) AS n FROM outbox.intents
WHERE tenant = %(tenant)s AND run_id = %(run)s AND settled_at IS NULL
"""
_BREAKERS = "SELECT holder FROM outbox.switches WHERE kind = 'breaker'"


_MANY = Owner()
_ILL = Owner(vendor=vendor.PATIENT)


def tenant(run: Run) -> Mapping[str, Pair]:
    """Two tenants of one account."""
    return {"fair-tenant": _beside(run, _MANY, Owner(tenant="small"))}


def account(run: Run) -> Mapping[str, Pair]:
    """Two accounts at one vendor."""
    return {"fair-account": _beside(run, _MANY, Owner(account="other"))}


def slow_vendor(run: Run) -> Mapping[str, Pair]:
    """A vendor whose answers take five seconds, beside one that is well."""
    return {"fair-vendor": _beside(run, _ILL, Owner(), "slow")}


def open_breaker(run: Run) -> Mapping[str, Pair]:
    """A vendor that takes no connection, so that its breaker is open, beside one that is well."""
    return {"fair-breaker": _beside(run, _ILL, Owner(), "down")}


def _beside(run: Run, many: Owner, few: Owner, health: vendor.Health = "well") -> Pair:
    """The p99 of ``few`` beside the backlog of ``many``, against what it may be."""
    run.limit_s(0.0)
    few_count = run.sizes.rounds * _EACH
    accounts = sorted({(owner.vendor, owner.account) for owner in (many, few)})
    with (
        run.stage.place(_SETTINGS, latency_ms=_LATENCY_MS, accounts=accounts) as place,
        place.workers(),
    ):
        alone = p99(_rounds(run, place, few, "alone"))
        _settle(run, place, few_count)
        place.fall(health)
        _pile_up(run, place, many, health)
        beside = p99(_rounds(run, place, few, "beside"))
        if not place.unsettled():
            place.faults.append("the backlog was gone before the last round")
        place.fall("well")
        _settle(run, place, run.sizes.beside + 2 * few_count)
        place.check(run.sizes.beside + 2 * few_count)
        run.take(place)
        return Pair(beside, _TIMES * alone + _MORE_MS)


def _pile_up(run: Run, place: Place, owner: Owner, health: vendor.Health) -> None:
    """The backlog, once it keeps the workers busy: it is sent, or its breaker has opened."""
    arrived = len(place.ledger)
    pile_up(place, run.sizes.beside, owner)

    def keeps_busy() -> object:
        return place.sql(_BREAKERS) if health == "down" else len(place.ledger) > arrived + _EACH

    wait_until(keeps_busy, run.limit_s(_LIMIT_S), "the workers at the backlog")


def _rounds(run: Run, place: Place, owner: Owner, name: str) -> list[float]:
    """Ten writes in one commit, and so many times again; how long each waited, in ms."""
    count = run.sizes.rounds * _EACH
    told = place.run(
        _ENQUEUER, str(count), "--each", str(_EACH), "--per-second", str(_ROUNDS_PER_S * _EACH),
        "--tenant", owner.tenant, "--vendor", owner.vendor, "--account", owner.account,
        "--run", name,
    )  # fmt: skip

    def all_are_settled() -> bool:
        (left,) = place.sql(_LEFT, {"tenant": owner.tenant, "run": name})
        return int(left["n"]) == 0

    wait_until(all_are_settled, run.limit_s(_LIMIT_S), "all of the few settled")
    return waits_ms(place, told["committed"])


def p99(waited_ms: Sequence[float]) -> float:
    """The least of which at most one of a hundred is beyond."""
    return sorted(waited_ms)[math.ceil(0.99 * len(waited_ms)) - 1]


def _settle(run: Run, place: Place, count: int) -> None:
    wait_until(lambda: place.is_settled(count), run.limit_s(_LIMIT_S), "all intents settled")

"""Health, computed from Postgres: what ought to be moving and is not.

Open escalations and closed switches are a person's business and already known to one, so they are
told beside the problems and do not make the system unhealthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from outbox import schema
from outbox.errors import Unreachable
from outbox.settings import Settings
from outbox.store import switches, vitals
from outbox.store.connection import Store, Transaction
from resolvers.directory import Directory

# Below this a busy machine would look dead.
_LEAST_AGE_S = 5.0
_PERIODS = 3
# How long a due row, a stored webhook or a page may wait while everything is alive.
_WAIT_S = 120.0
# A consumer may well run once an hour.
_UNTAKEN_S = 2 * 3600.0
# A transaction this old slows every queue in its database down, ours too.
_SNAPSHOT_S = 900.0


@cache
def release() -> str:
    """The release of this process, which its heartbeats carry; empty where it is not installed."""
    try:
        return version("outbox-resolve")
    except PackageNotFoundError:
        return ""


def periods_s(settings: Settings) -> dict[str, float]:
    """The roles that must beat, and how often. A drain has no beat: what it leaves lying is seen
    in ``oldest_due_s``."""
    policy = settings.policy
    roles = {
        "expire": policy.tick_expire_s,
        "join": policy.tick_join_s,
        "resolve": policy.tick_resolve_s,
        "escalate": policy.tick_escalate_s,
        "page": policy.tick_page_s,
    }
    return roles | ({"prune": policy.tick_prune_s} if settings.retention_s is not None else {})


def limits_s(settings: Settings) -> dict[str, float]:
    """The age from which each role's heartbeat is stale: three periods."""
    return {
        role: max(_PERIODS * period, _LEAST_AGE_S) for role, period in periods_s(settings).items()
    }


def readiness(store: Store) -> dict[str, Any]:
    """``{"ok", "problems", "schema"}``: the store answers and its schema is this release's."""
    try:
        with store.transaction() as tx:
            current = vitals.revision(tx)
    except Unreachable as error:
        return {"ok": False, "problems": [str(error)], "schema": None}
    problems = list(_schema_problems(current))
    return {"ok": not problems, "problems": problems, "schema": current}


def health(store: Store, directory: Directory) -> dict[str, Any]:
    """``{"ok", "problems", "notices", "gauges", "heartbeats", "switches"}``; ages in seconds.

    Never raises for a database that is away: that is a problem like the others.
    """
    found: dict[str, Any] = {"ok": False, "problems": [], "notices": []}
    found |= {"gauges": {}, "heartbeats": {}, "switches": []}
    try:
        with store.transaction() as tx:
            found["problems"] = list(_schema_problems(vitals.revision(tx)))
            if not found["problems"]:
                _read(tx, directory.settings, found)
    except Unreachable as error:
        found["problems"] = [str(error)]
    found["ok"] = not found["problems"]
    return found


def _read(tx: Transaction, settings: Settings, found: dict[str, Any]) -> None:
    found["gauges"] = vitals.gauges(tx)
    found["switches"] = [
        {"holder": s["holder"], "kind": s["kind"], "reason": s["reason"]}
        for s in switches.listed(tx)
    ]
    ages = switches.beat_ages_s(tx)
    found["heartbeats"] = {
        role: {"age_s": ages.get(role), "limit_s": limit_s}
        for role, limit_s in limits_s(settings).items()
    }
    found["problems"] = [*_stale(found["heartbeats"]), *_waiting(found["gauges"])]
    found["notices"] = list(_notices(found))


def _schema_problems(current: str | None) -> Iterator[str]:
    problem = schema.advice(current)
    if problem is not None:
        yield f"schema: it {problem}"


def _stale(heartbeats: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for role, beat in heartbeats.items():
        if beat["age_s"] is None:
            yield f"heartbeat: {role} has never run"
        elif beat["age_s"] > beat["limit_s"]:
            yield f"heartbeat: {role} last ran {beat['age_s']:.0f} s ago"


def _waiting(gauges: Mapping[str, Any]) -> Iterator[str]:
    for name, said in (
        ("oldest_due_s", "sends: a due intent has waited for"),
        ("oldest_webhook_s", "webhooks: a stored event has waited for"),
        ("oldest_page_s", "pages: a page has not gone out for"),
        ("oldest_failing_s", "results: a consumer fails at one that has waited for"),
    ):
        if gauges[name] is not None and gauges[name] > _WAIT_S:
            yield f"{said} {gauges[name]:.0f} s"


def _notices(found: Mapping[str, Any]) -> Iterator[str]:
    if found["gauges"]["escalations_open"]:
        muted = found["gauges"]["escalations_muted"]
        quiet = f" ({muted} muted)" if muted else ""
        yield f"escalations: {found['gauges']['escalations_open']} open{quiet}"
    snapshot_s = found["gauges"]["oldest_snapshot_s"]
    if snapshot_s is not None and snapshot_s > _SNAPSHOT_S:
        yield (
            f"vacuum: a transaction has been open for {snapshot_s:.0f} s and keeps "
            f"{found['gauges']['dead_rows']} dead rows of outbox.intents"
        )
    undelivered_s = found["gauges"]["oldest_undelivered_s"]
    if undelivered_s is not None and undelivered_s > _UNTAKEN_S:
        yield f"results: a consumer has not taken one for {undelivered_s:.0f} s"
    for switch in found["switches"]:
        yield f"switches: {switch['holder']} is closed ({switch['kind']}): {switch['reason']}"

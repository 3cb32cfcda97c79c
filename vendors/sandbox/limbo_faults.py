"""What goes wrong at the LIMBO vendor, call by call: the benchmark's twelve modes, and timelines.

A plan is {"mode": one of MODES, "after_s": of a late one} and strikes the call's first write (an
outage strikes all of it; a drifted schema stays so); or {"fates": [...], "vendor": one of
VENDORS}, which names what happens to the call's requests one after the other, reads included.
After the last of them nothing more is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vendors.sandbox.limbo_world import Json, Said, World, Write

MODES = (
    "timeout_before", "timeout_after", "timeout_late", "timeout_late_tail", "500_before",
    "500_after", "partial_batch", "duplicate_delivery", "503_transient", "429", "outage",
    "schema_drift",
)  # fmt: skip
FATES = ("request_lost", "reply_lost", "delivered")
VENDORS = ("accepts", "refuses", "is_out")
DRIFTED = "_v2"
_AFTER_S = {"503_transient": 2, "429": 30}
# Byte for byte the same, whatever it hides.
_500: Said = (500, {"error": {"code": "internal", "message": "Something went wrong."}}, {})


@dataclass(slots=True)
class Plan:
    """One call's plan, and how many of its requests and writes came so far."""

    mode: str = ""
    after_s: float = 0.0
    fates: tuple[str, ...] = ()
    vendor: str = "accepts"
    requests: int = 0
    writes: int = 0

    def __post_init__(self) -> None:
        if self.mode and self.mode not in MODES:
            raise ValueError(f"mode: no such mode: {self.mode!r}; there are {', '.join(MODES)}")
        if self.vendor not in VENDORS:
            raise ValueError(f"vendor: one of {', '.join(VENDORS)}, not {self.vendor!r}")
        for fate in self.fates:
            if fate not in FATES:
                raise ValueError(f"fates: one of {', '.join(FATES)}, not {fate!r}")


def plan_of(given: dict[str, Any]) -> Plan:
    """A plan out of JSON. Raises ``ValueError`` naming what is wrong in it."""
    unknown = sorted(set(given) - {"mode", "after_s", "fates", "vendor"})
    if unknown:
        raise ValueError(f"{unknown[0]}: a plan has mode, after_s, fates and vendor")
    return Plan(**{**given, "fates": tuple(given.get("fates", ()))})


def written(world: World, plan: Plan, asked: Write) -> Said | None:
    """What the caller sees of a write; None: its connection is lost."""
    number, fate = plan.writes, _next_fate(plan)
    plan.writes += 1
    if plan.mode:
        return _struck(world, plan, asked, number)
    if fate == "request_lost":
        return None
    said = _by_vendor(world, plan, asked)
    return None if fate == "reply_lost" else said


def read(plan: Plan, look: Callable[[], Said]) -> Said | None:
    """What the caller sees of a read; None: its connection is lost."""
    fate = _next_fate(plan)
    if fate != "delivered":
        return None
    return _unavailable(plan.mode) if "outage" in (plan.mode, _out(plan)) else look()


def _out(plan: Plan) -> str:
    return "outage" if plan.vendor == "is_out" else ""


def _next_fate(plan: Plan) -> str:
    number, plan.requests = plan.requests, plan.requests + 1
    return plan.fates[number] if number < len(plan.fates) else "delivered"


def _by_vendor(world: World, plan: Plan, asked: Write) -> Said:
    if plan.vendor == "is_out":
        return _unavailable("outage")
    return world.refuse(asked) if plan.vendor == "refuses" else world.write(asked)


def _struck(world: World, plan: Plan, asked: Write, number: int) -> Said | None:
    if plan.mode == "outage":
        return _unavailable(plan.mode)
    if plan.mode == "schema_drift":
        return _drifted(world, asked)
    if number > 0:
        return world.write(asked)
    match plan.mode:
        case "timeout_before":
            return None
        case "timeout_after":
            world.write(asked)
            return None
        case "timeout_late" | "timeout_late_tail":
            world.hold(plan.after_s, lambda: world.write(asked))
            return None
        case "500_before":
            return _500
        case "500_after":
            world.write(asked)
            return _500
        case "partial_batch":
            assert asked.path.rows, "only a batch is done in part"
            world.write(asked, rows=len(asked.body[asked.path.field]) // 2)
            return None
        case "duplicate_delivery":
            said = world.write(asked)
            world.write(asked)
            return said
        case _:
            return _unavailable(plan.mode)


def _drifted(world: World, asked: Write) -> Said:
    """The vendor has renamed the field; under its new name it is the same."""
    new = asked.path.field + DRIFTED
    if new not in asked.body:
        error = {"code": "unknown_field", "message": f"There is no {asked.path.field}."}
        return 400, {"error": error}, {}
    body: Json = {n: v for n, v in asked.body.items() if n != new}
    body[asked.path.field] = asked.body[new]
    return world.write(Write(asked.path, asked.contract, asked.call, asked.key, body))


def _unavailable(mode: str) -> Said:
    status = 429 if mode == "429" else 503
    headers = {"Retry-After": str(_AFTER_S[mode])} if mode in _AFTER_S else {}
    return status, {"error": {"code": mode or "outage", "message": "Not now."}}, headers

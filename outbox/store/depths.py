"""How many intents of a tenant, a tool or a lane wait to be sent, and whether more may.

Counted is what has not left: ``awaiting_approval`` and ``pending``. What was sent and is not yet
settled (``in_flight``, ``unknown``, ``retryable``) waits for its vendor or a person and not for a
sender: one doubt would have new work refused for days. A lane that a doubt holds fills up all the
same, with the rows behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox.errors import Full, StaleEpoch
from outbox.intent import Draft
from outbox.store import enqueueing
from outbox.store.callers import Params, Steps, retry
from outbox.store.enqueueing_sql import FIND, OVER

TENANT, LANE, TOOL = "OUTBOX_MAX_TENANT_DEPTH", "OUTBOX_MAX_LANE_DEPTH", "tool.max_depth"


@dataclass(frozen=True, slots=True)
class Depths:
    """The limits of a process: how many intents of one tenant, and of one lane, may wait; None:
    any number. Each tool says its own, which is for each tenant. ``retry_after_s`` is what a
    caller is told who was refused."""

    tenant: int | None
    lane: int | None
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class _Place:
    """What one limit counts."""

    limit: str
    most: int
    tenant: str
    tool: str | None = None
    lane: str | None = None


def _counted(where: str) -> str:
    """SQL for how many rows wait there, no further than it matters."""
    return (
        f"(SELECT count(*) FROM (SELECT FROM outbox.intents i WHERE {where} "
        "AND i.status IN ('awaiting_approval', 'pending') LIMIT p.most + 1) d)"
    )


# Of each place by its own index alone.
COUNT = (
    "SELECT p.n, current_setting('transaction_isolation') AS isolation, CASE "
    f"WHEN p.lane IS NOT NULL THEN {_counted('i.lane = p.lane')} "
    f"WHEN p.tool IS NOT NULL THEN {_counted('i.tenant = p.tenant AND i.tool = p.tool')} "
    f"ELSE {_counted('i.tenant = p.tenant')} END AS depth "
    "FROM unnest(CAST(%(tenants)s AS text[]), CAST(%(tools)s AS text[]), "
    "CAST(%(lanes)s AS text[]), CAST(%(mosts)s AS bigint[])) "
    "WITH ORDINALITY AS p (tenant, tool, lane, most, n)"
)


def admit(drafts: Sequence[Draft], depths: Depths, is_committed: Callable[[Params], bool]) -> Steps:
    """Steps before the first INSERT of these drafts; none where nothing is limited. Raises
    ``Full`` unless there is room for all that are not recorded yet (``StaleEpoch`` where room would
    not help), and ``RetryTransaction`` where the caller's snapshot hides one that is."""
    places: dict[_Place, set[UUID]] = {}
    for draft in drafts:
        for place in _places(draft, depths):
            places.setdefault(place, set()).add(draft.id)
    if not places:
        return None
    rows = yield COUNT, _params(list(places))
    depth = {place: row["depth"] for place, row in zip(places, _in_order(rows), strict=True)}
    over = [place for place, ids in places.items() if depth[place] + len(ids) > place.most]
    if not over:
        return None
    asked = set[UUID]().union(*(places[place] for place in over))
    hides = rows[0]["isolation"] != "read committed"
    recorded = yield from _recorded([d for d in drafts if d.id in asked], hides, is_committed)
    for place in over:
        new = len(places[place] - recorded)
        if new and depth[place] + new > place.most:
            yield from _check_epochs(drafts, hides, is_committed)
            raise Full(place.limit, place.most, depth[place], new, depths.retry_after_s)
    return None


def _places(draft: Draft, depths: Depths) -> list[_Place]:
    tenant, tool, lane = draft.scope.tenant, draft.tool, draft.columns["lane"]
    found = []
    if tool.max_depth is not None:
        found.append(_Place(TOOL, tool.max_depth, tenant, tool=tool.name))
    if depths.lane is not None and lane is not None:
        found.append(_Place(LANE, depths.lane, tenant, lane=lane))
    if depths.tenant is not None:
        found.append(_Place(TENANT, depths.tenant, tenant))
    return found


def _params(places: list[_Place]) -> dict[str, Any]:
    return {
        "tenants": [place.tenant for place in places],
        "tools": [place.tool for place in places],
        "lanes": [place.lane for place in places],
        "mosts": [place.most for place in places],
    }


def _in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: row["n"])


def _recorded(
    drafts: Sequence[Draft], hides: bool, is_committed: Callable[[Params], bool]
) -> Steps:
    """The ids of those that are recorded: they need no room."""
    found = set()
    for draft in drafts:
        sought = enqueueing.sought(draft)
        if (yield FIND, sought):
            found.add(draft.id)
        elif hides and is_committed(sought):
            raise retry()
    return found


def _check_epochs(
    drafts: Sequence[Draft], hides: bool, is_committed: Callable[[Params], bool]
) -> Steps:
    """Asked only of who is about to be refused: one of an epoch that is over is never recorded,
    however much room there will be, and whoever is told to ask again would do so for ever."""
    turns: dict[tuple[str, str, str], list[Draft]] = {}
    for draft in drafts:
        scope = draft.scope
        turns.setdefault((scope.tenant, scope.run_id, scope.epoch), []).append(draft)
    for (_, run_id, epoch), of_it in turns.items():
        if epoch and (yield OVER, of_it[0].columns):
            recorded = yield from _recorded(of_it, hides, is_committed)
            if any(draft.id not in recorded for draft in of_it):
                raise StaleEpoch(run_id, epoch)
    return None

"""Whose turn it is to prune: one row of ``heartbeats``. A lease that is renewed after each piece
holds it, so that another takes up the round of a worker that was killed; after a round it rests.

``detail`` of the row: ``holder`` (of the lease), ``over``, ``older_than_s`` (the age by which it
prunes), ``spent_s`` (what the round has taken of its time). A release before wrote none of them:
its row is taken for one of a round that is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from outbox.store.connection import Transaction


@dataclass(frozen=True, slots=True)
class Turn:
    """A round's lease. ``spent_s`` is what the round had taken before, in other hands."""

    holder: str
    spent_s: float


# Locked by a statement of its own: the clock is that of a statement's beginning, and of one that
# waited for the lock it would be from before what the other one wrote.
_LOCK = """
INSERT INTO outbox.heartbeats AS h (role, instance, at) VALUES ('prune', 'turn', to_timestamp(0))
ON CONFLICT (role, instance) DO UPDATE SET instance = h.instance
"""
_TAKE = """
UPDATE outbox.heartbeats h SET at = outbox.clock(), detail = %(detail)s::jsonb
    || jsonb_build_object('holder', gen_random_uuid(), 'over', false,
        'older_than_s', %(older_than_s)s::float8, 'spent_s', COALESCE(h.detail->'spent_s', '0'))
WHERE h.role = 'prune' AND h.instance = 'turn' AND (h.at > outbox.clock()
    OR h.at <= outbox.clock() - INTERVAL '1 second' * CASE
        WHEN COALESCE((h.detail->>'over')::boolean, true) THEN %(rest_s)s ELSE %(lease_s)s END
    OR ((h.detail->>'over')::boolean AND (h.detail->>'older_than_s')::float8 > %(older_than_s)s))
RETURNING h.detail->>'holder' AS holder, (h.detail->>'spent_s')::float8 AS spent_s
"""
_KEEP = """
UPDATE outbox.heartbeats h SET at = outbox.clock(), detail = h.detail || %(said)s
WHERE h.role = 'prune' AND h.instance = 'turn' AND h.detail->>'holder' = %(holder)s
"""


def take(
    tx: Transaction,
    detail: Mapping[str, Any],
    *,
    older_than_s: float,
    rest_s: float,
    lease_s: float,
) -> Turn | None:
    """The caller's turn, if it is the one that prunes now: the last round was over ``rest_s`` ago,
    or was one of a greater age, or nobody has gone on with it for ``lease_s``; or that was at a
    time which has not come, by a clock that was set back since."""
    tx.run(_LOCK)
    span = {"older_than_s": older_than_s, "rest_s": rest_s, "lease_s": lease_s}
    row = tx.one(_TAKE, {**span, "detail": Jsonb(dict(detail))})
    return Turn(row["holder"], row["spent_s"]) if row is not None else None


def renew(tx: Transaction, turn: Turn, spent_s: float) -> bool:
    """Whether the round is still the caller's, from now on for another lease."""
    return _keep(tx, turn, {"spent_s": spent_s})


def end(tx: Transaction, turn: Turn) -> None:
    """The round is over, unless it is another's by now."""
    _keep(tx, turn, {"over": True, "spent_s": 0.0})


def _keep(tx: Transaction, turn: Turn, said: Mapping[str, Any]) -> bool:
    return tx.run(_KEEP, {"holder": turn.holder, "said": Jsonb(dict(said))}) > 0

"""Lanes: which row of a lane is its head. One definition for the claim, the questions and the
gauges, so that none of them waits for a row that another one does not let go."""

from __future__ import annotations

from typing import LiteralString

# Sent and not settled, where others may not pass: one a lane at the most, by a unique index.
_OCCUPIES: LiteralString = """(o.status = 'in_flight'
             OR (o.status IN ('unknown', 'retryable') AND o.on_doubt = 'hold'))"""


def head_of(lane: LiteralString) -> LiteralString:
    """SQL for the id of the head of ``lane``: the row that occupies it, else the oldest unsettled
    one, whatever its status. A row that was enqueued before the occupant and committed after it
    waits. A row whose tool lets others pass is no head while it is in doubt.

    A range and not an equality: that would let the planner walk the rows of all lanes by seq alone.
    """
    return f"""COALESCE(
        (SELECT o.id FROM outbox.intents o WHERE o.lane = {lane} AND {_OCCUPIES} LIMIT 1),
        (SELECT h.id FROM outbox.intents h
         WHERE h.lane >= {lane} AND h.lane <= {lane} AND h.settled_at IS NULL
         AND NOT (h.on_doubt = 'continue' AND (h.status IN ('unknown', 'awaiting_approval')
                  OR (h.status = 'retryable' AND h.due_at > outbox.clock())))
         ORDER BY h.lane, h.seq LIMIT 1))"""

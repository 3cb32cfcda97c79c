"""Sweeps: leases that ended without an answer, epochs that are over, re-sends that may not go."""

from __future__ import annotations

from outbox.states import Event
from outbox.store import doubt
from outbox.store.connection import Store
from outbox.store.moves import Change, apply
from resolvers.directory import Directory

_BATCH = 500


def expire_once(store: Store, directory: Directory) -> int:
    """Puts rows whose lease has ended in doubt, and cancels never-sent rows of ended epochs."""
    moved = 0
    while True:
        with store.transaction() as tx:
            count = doubt.expire_leases(
                tx,
                limit=_BATCH,
                look_in_s=directory.policy.looks_s[0],
                max_crashes=directory.policy.max_crashes,
            )
        moved += count
        if count < _BATCH:
            break
    with store.transaction() as tx:
        for row in doubt.cancel_stale_epochs(tx, _BATCH):
            apply(
                tx,
                row,
                Event.CANCELLED,
                Change(actor="sweep", reason="the epoch is over", settled_by="epoch"),
            )
            moved += 1
    return moved


def withdraw_once(store: Store, directory: Directory) -> int:
    """Takes back approved re-sends whose window closed, whose vendor is paused or whose veto came
    late."""
    with store.transaction() as tx:
        rows = doubt.withdrawable(tx, _BATCH)
        for row in rows:
            apply(
                tx,
                row,
                Event.RESEND_WITHDRAWN,
                Change(
                    actor="sweep",
                    resends=-1,  # it never went out
                    reason=row.veto or "window, pause or person",
                    due_in_s=directory.policy.look_delay_s(row.looks, escalated=False),
                ),
            )
    return len(rows)

"""Sweeps: leases that ended without an answer, epochs that are over, re-sends that may not go."""

from __future__ import annotations

from outbox.states import Event
from outbox.store import doubt
from outbox.store.connection import Store
from outbox.store.moves import Change, apply
from resolvers import parts
from resolvers.directory import Directory

_BATCH = 500


def expire_once(store: Store, directory: Directory) -> int:
    """Puts rows whose lease has ended in doubt, and cancels never-sent rows of ended epochs."""
    budget_s = directory.policy.tick_expire_s
    return parts.each(
        (
            lambda: parts.in_pieces(lambda: _expire(store, directory), _BATCH, budget_s),
            lambda: _cancel(store),
        )
    )


def _expire(store: Store, directory: Directory) -> int:
    with store.transaction() as tx:
        return doubt.expire_leases(
            tx,
            limit=_BATCH,
            look_after_s=directory.policy.look_after_lease_s(),
            max_crashes=directory.policy.max_crashes,
        )


def _cancel(store: Store) -> int:
    with store.transaction() as tx:
        rows = doubt.cancel_stale_epochs(tx, _BATCH)
        for row in rows:
            apply(
                tx,
                row,
                Event.CANCELLED,
                Change(actor="sweep", reason="the epoch is over", settled_by="epoch"),
            )
    return len(rows)


def withdraw_once(store: Store, directory: Directory) -> int:
    """Takes back approved re-sends whose window closed, whose vendor is paused or whose veto came
    late."""
    with store.transaction() as tx:
        rows = doubt.withdrawable(tx, _BATCH, directory.windows())
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

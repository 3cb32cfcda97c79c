"""Escalation: nothing waits unseen. Within a tick after its TTL or window, a person is asked."""

from __future__ import annotations

from typing import Any

from outbox.states import Status
from outbox.store import doubt, escalations, intents
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent, as_intent
from resolvers.decide import reasons_to_escalate
from resolvers.directory import Directory

_BATCH = 500
# After so many ticks a row that is held by a switch is looked at again: not at each one, since
# there may be a hundred thousand, and soon enough once the switch is open.
_HELD_TICKS = 4


def escalate_once(store: Store, directory: Directory) -> int:
    """Opens what is due; returns how many rows were looked at."""
    seen = 0
    while True:
        with store.transaction() as tx:
            rows = doubt.claim_overdue(tx, _BATCH)
            for row in rows:
                _escalate(tx, directory, as_intent(row), row)
        seen += len(rows)
        if len(rows) < _BATCH:
            break
    with store.transaction() as tx:
        for head in doubt.held_lanes(tx, wait_s=directory.policy.lane_wait_s, limit=_BATCH):
            escalations.open_for_intent(
                tx, head, ["lane_held"], {"why": "others wait behind it in their lane"}
            )
            seen += 1
        for intent_id in escalations.settled_intents(tx, _BATCH):
            settled = intents.lock(tx, intent_id)
            assert settled is not None
            escalations.close_doubt(tx, settled, by=settled.settled_by or "sweep")
    return seen


def _escalate(tx: Transaction, directory: Directory, row: Intent, beside: dict[str, Any]) -> None:
    held_s = _HELD_TICKS * directory.policy.tick_escalate_s
    unsendable = (
        row.veto is not None
        and row.contradicted_at is None
        and row.doubt == 0
        and row.state in (Status.PENDING, Status.UNKNOWN)
    )
    waits = row.state is Status.PENDING and not unsendable
    if beside["held_by"] is not None and waits:
        # Never sent, and held: one question about the holder, not one for each row.
        escalations.open_for_holder(
            tx,
            beside["held_by"],
            ["paused" if beside["held_kind"] == "pause" else beside["held_kind"]],
            {"vendor": row.vendor, "account": row.account, "why": beside["held_why"]},
        )
        doubt.arm_escalation(tx, row.id, None, held_s)
        return
    if beside["lane_head"] is not None and waits:
        head = intents.lock(tx, beside["lane_head"])
        if head is not None and head.settled_at is None and head.state is not Status.PENDING:
            escalations.open_for_intent(
                tx, head, ["lane_held"], {"why": "others wait behind it in their lane"}
            )
            doubt.arm_escalation(tx, row.id, None, held_s)
            return
    now = intents.now(tx)
    reasons = reasons_to_escalate(
        ttl_at=row.ttl_at,
        window_ends_at=row.window_ends_at if row.first_sent_at else None,
        crashes=row.crashes,
        policy=directory.policy,
        now=now,
        unsendable=unsendable,
    )
    if reasons:
        why = row.veto or ("never sent" if row.state is Status.PENDING else "outcome not seen")
        escalations.open_for_intent(tx, row, reasons, {"why": why})
    later = [
        at
        for at in (row.ttl_at, row.window_ends_at if row.first_sent_at else None)
        if at is not None and at > now and not unsendable
    ]
    doubt.arm_escalation(tx, row.id, min(later) if later else None, None)

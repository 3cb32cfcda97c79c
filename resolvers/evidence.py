"""Applying evidence about one intent, whoever brought it. One world never gets two words."""

from __future__ import annotations

from outbox.outcomes import Reading, Standing
from outbox.states import Event, Status
from outbox.store.connection import Transaction
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply, contradict, move_business
from resolvers.decide import mismatch


def apply_reading(
    tx: Transaction, row: Intent, reading: Reading, *, actor: str, source: str
) -> str:
    """What an object of ours makes of its intent; returns a word for the caller's log.

    ``row`` was read (or locked) in this transaction. Raises ``Moved`` when it was written since.
    """
    wrong = mismatch(row, reading)
    if wrong is not None and contradict(
        tx, row, wrong.replace(" ", "_"), [reading.receipt_id], f"{source}: {wrong} than asked"
    ):
        return "contradiction"
    if reading.standing is Standing.OPEN:
        return "open"
    if reading.standing is Standing.DECLINED:
        return _declined(tx, row, reading, actor=actor, source=source)
    if row.state is Status.SUCCEEDED and row.receipt_id == reading.receipt_id:
        return "moved" if move_business(tx, row, reading, actor=actor, source=source) else "known"
    _, verdict = apply(
        tx,
        row,
        Event.RECEIPT_FOUND,
        Change(actor=actor, reason=source, reading=reading, settled_by=source),
    )
    return "contradiction" if verdict.contradiction else "settled" if verdict.moved else "known"


def _declined(tx: Transaction, row: Intent, reading: Reading, *, actor: str, source: str) -> str:
    if row.state is Status.SUCCEEDED and row.receipt_id == reading.receipt_id:
        # It landed, and then failed: a business move of the same object, not a contradiction.
        return "moved" if move_business(tx, row, reading, actor=actor, source=source) else "known"
    if row.state in (Status.PENDING, Status.AWAITING_APPROVAL):
        return "known"
    _, verdict = apply(
        tx,
        row,
        Event.REFUSED,
        Change(
            actor=actor,
            reason=source,
            reading=reading,
            covers_key=True,
            failure_code=reading.failure_code or "declined",
            settled_by=source,
        ),
    )
    return "settled" if verdict.moved else "known"

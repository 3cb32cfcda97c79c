"""Contradictions: an object of ours that is not what was asked for, or not what was told. Told as
unknown, a question to a person, and closed by a person only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outbox.outcomes import Reading
from outbox.states import Status
from outbox.store import escalations, settlements
from outbox.store.connection import Transaction
from outbox.store.intents import Intent


def contradict(
    tx: Transaction,
    row: Intent,
    reason: str,
    objects: list[str],
    why: str,
    *,
    found: Iterable[Reading] = (),
) -> bool:
    """Raises a contradiction: told as unknown, a page, and only a person closes it. What is known
    already is told to no consumer again; only what is new about it reaches the person, with what
    was ``found`` of the objects. False where a person has ruled on it."""
    if is_ruled(tx, row, reason, objects):
        return False
    settlements.lock_consumers(tx)
    known = row.contradicted_at is not None
    put(tx, row, reason, objects, why, told=known, found=found)
    return True


def is_ruled(tx: Transaction, row: Intent, reason: str, objects: list[str]) -> bool:
    """Whether a person has ruled that the row landed in spite of it: it is not asked again."""
    return (
        row.state is Status.SUCCEEDED
        and row.contradicted_at is None
        and escalations.was_ruled_on(tx, row.id, reason, objects)
    )


def put(
    tx: Transaction,
    row: Intent,
    reason: str,
    objects: list[str],
    why: str,
    *,
    told: bool,
    found: Iterable[Reading],
) -> None:
    """Writes it: beside the row, for the person, and to consumers unless they know (``told``)."""
    tx.run(
        "UPDATE outbox.intents SET contradicted_at = COALESCE(contradicted_at, outbox.clock()), "
        "retracted_at = CASE WHEN told_at IS NOT NULL AND contradicted_at IS NULL "
        "THEN outbox.clock() ELSE retracted_at END, "
        "veto = COALESCE(veto, 'contradiction'), version = version + 1 WHERE id = %(id)s",
        {"id": row.id},
    )
    known = [row.receipt_id] if row.receipt_id else []
    detail: dict[str, Any] = {"objects": sorted({*known, *objects}), "why": why, "told": "unknown"}
    shown = [_shown(reading) for reading in found if reading.receipt_id in objects]
    if shown:
        detail["found"] = shown
    escalations.open_for_intent(tx, row, [reason], detail)
    if not told:
        settlements.write(tx, row, "contradiction")


def _shown(reading: Reading) -> dict[str, Any]:
    """An object as it was seen, for a person to compare: nothing in it is personal."""
    mode = None if reading.livemode is None else "live" if reading.livemode else "test"
    seen = {
        "object": reading.receipt_id,
        "amount_minor": reading.amount_minor,
        "currency": reading.currency,
        "mode": mode,
        "vendor_account": reading.vendor_account,
        "word": reading.word,
    }
    return {name: value for name, value in seen.items() if value is not None}

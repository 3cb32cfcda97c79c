"""What becomes of a landed object: the business status moves without any contradiction."""

from __future__ import annotations

from outbox.outcomes import Reading
from outbox.store import settlements
from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent
from outbox.store.moves import log

_BUSINESS = f"""
UPDATE outbox.intents SET version = version + 1, business_status = %(business)s,
    business_word = %(word)s,
    business_vendor_time = GREATEST(business_vendor_time, %(vendor_time)s)
WHERE id = %(id)s AND version = %(version)s AND status = 'succeeded'
    AND (business_status, business_word) IS DISTINCT FROM (%(business)s, %(word)s)
RETURNING {COLUMNS}
"""


def move_business(
    tx: Transaction, row: Intent, reading: Reading, *, actor: str, source: str
) -> bool:
    """Moves the business status of a landed object, with its settlement; False where nothing
    changed but when it was last seen so. Which of two readings is newer is for the caller to
    know."""
    settlements.lock_consumers(tx)
    written = tx.one(
        _BUSINESS,
        {
            "id": row.id,
            "version": row.version,
            "business": reading.business.value,
            "word": reading.word,
            "vendor_time": reading.vendor_time,
        },
    )
    if written is None:
        tx.run(
            "UPDATE outbox.intents SET business_vendor_time = %(at)s WHERE id = %(id)s "
            "AND version = %(version)s AND business_vendor_time < %(at)s",
            {"id": row.id, "version": row.version, "at": reading.vendor_time},
        )
        return False
    log(
        tx,
        intent_id=row.id,
        actor=actor,
        kind="business_moved",
        from_status=row.status,
        to_status=row.status,
        reason=source,
        detail={"from": row.business_word, "to": reading.word},
    )
    settlements.write(tx, as_intent(written, tx.codec), "business")
    return True

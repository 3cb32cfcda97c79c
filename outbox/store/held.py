"""Rows that wait because what they repeat or replace may have landed after all.

A run repeats a write after it was told that the first one was refused. When that word is taken
back (the first one landed after all, or its objects contradict each other), what has not left yet
does not leave, and a person is asked. A predecessor is the intent that a row ``supersedes``, or
its twin of another epoch.
"""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS_OF_I, Intent, as_intent

_IS_TWIN: LiteralString = """
    p.tenant = i.tenant AND p.vendor = i.vendor AND p.account = i.account
    AND p.run_id = i.run_id AND p.tool = i.tool AND p.fingerprint = i.fingerprint
    AND p.retracted_at IS NOT NULL AND p.occurrence = 0 AND p.supersedes IS NULL AND p.id <> i.id"""
# Asked for before the run had the present word of a twin that landed: it was to replace it.
_TWIN_LANDED: LiteralString = """(p.contradicted_at IS NOT NULL OR (p.status = 'succeeded'
        AND NOT (p.told_at > p.retracted_at AND p.told_at < i.created_at)))"""
_REPLACED_LANDED: LiteralString = (
    "(p.contradicted_at IS NOT NULL OR p.status NOT IN ('failed_poison', 'cancelled'))"
)

# Of a row ``i`` that may otherwise be claimed. Both indexes are of few rows, and an ordinary row
# asks one of them once. Of an array of one: nothing can be hashed for that by reading all rows.
IS_HELD: LiteralString = f"""(CASE WHEN i.supersedes IS NOT NULL
        THEN EXISTS (SELECT FROM outbox.intents p
                     WHERE p.id = ANY(ARRAY[i.supersedes]) AND {_REPLACED_LANDED})
        ELSE i.occurrence = 0
            AND EXISTS (SELECT FROM outbox.intents p WHERE {_IS_TWIN} AND {_TWIN_LANDED}) END)"""

_CLAIM_HELD: LiteralString = f"""
WITH found AS (
    SELECT i.id, p.id AS predecessor FROM outbox.intents p JOIN outbox.intents i ON {_IS_TWIN}
    WHERE i.told_at IS NULL AND i.occurrence = 0 AND i.supersedes IS NULL
    AND i.status IN ('pending', 'retryable') AND {_TWIN_LANDED}
    UNION ALL
    SELECT i.id, p.id FROM outbox.intents i JOIN outbox.intents p ON p.id = i.supersedes
    WHERE i.supersedes IS NOT NULL AND i.status IN ('pending', 'retryable') AND {_REPLACED_LANDED}
), due AS (
    SELECT i.id, f.predecessor FROM outbox.intents i JOIN found f USING (id)
    WHERE i.status IN ('pending', 'retryable') AND i.due_at <= outbox.clock()
    ORDER BY i.id LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED
)
UPDATE outbox.intents i SET due_at = outbox.clock() + %(hold_s)s * INTERVAL '1 second'
FROM due WHERE i.id = due.id RETURNING {COLUMNS_OF_I}, due.predecessor
"""


def claim_held(tx: Transaction, *, limit: int, hold_s: float) -> list[tuple[Intent, UUID]]:
    """Due rows that are held, locked, each with its predecessor. They are due again ``hold_s``
    later: the person may have ruled by then that nothing landed."""
    rows = tx.all(_CLAIM_HELD, {"limit": limit, "hold_s": hold_s})
    seen = {row["id"]: (as_intent(row, tx.codec), row["predecessor"]) for row in rows}
    return list(seen.values())

"""When something that waits in the ledger falls due: what lets time pass needs to know."""

from __future__ import annotations

from typing import Any, LiteralString

from outbox.store.connection import Transaction

_OF_RESOLVERS: LiteralString = """
    SELECT due_at AS at FROM outbox.intents WHERE status = 'unknown'
    UNION ALL SELECT lease_until FROM outbox.intents WHERE status = 'in_flight'
    UNION ALL SELECT resolver_until FROM outbox.intents WHERE resolver_until IS NOT NULL
    UNION ALL SELECT window_ends_at FROM outbox.intents WHERE status = 'retryable'
    UNION ALL SELECT escalate_at FROM outbox.intents WHERE settled_at IS NULL
    UNION ALL SELECT verify_at FROM outbox.intents WHERE verify_at IS NOT NULL
    UNION ALL SELECT due_at FROM outbox.webhook_inbox WHERE due_at IS NOT NULL
    UNION ALL SELECT due_at FROM outbox.pages WHERE state = 'due'"""
_NEXT_DUE: LiteralString = f"""
SELECT EXTRACT(EPOCH FROM min(at) - outbox.clock())::float8 AS left_s FROM ({_OF_RESOLVERS}
    UNION ALL SELECT due_at FROM outbox.intents
        WHERE status IN ('pending', 'retryable') AND settled_at IS NULL
    -- What a tripped breaker holds waits for its probe, whenever it was due itself.
    UNION ALL SELECT probe_at FROM outbox.switches WHERE probe_at IS NOT NULL
    -- And what an account's rate holds waits for its bucket.
    UNION ALL SELECT full_at FROM outbox.rates
) d WHERE at > outbox.clock()
"""
_RESOLVERS_DUE: LiteralString = (
    f"SELECT EXISTS (SELECT FROM ({_OF_RESOLVERS}) d WHERE at <= outbox.clock()) AS y"
)
# A moment that has just passed is due by every comparison.
_PAST_S = 0.001


def next_due_in_s(tx: Transaction) -> float | None:
    """Seconds until something that waits in the ledger falls due; None where nothing waits."""
    row = tx.one(_NEXT_DUE)
    return None if row is None or row["left_s"] is None else float(row["left_s"]) + _PAST_S


def resolvers_due(tx: Transaction) -> bool:
    """Whether anything that a resolver does by time has fallen due."""
    row = tx.one(_RESOLVERS_DUE)
    return bool(row and row["y"])


# What a resolver acts on at once, other than time: answers but for those that nothing was sent,
# what was decided or asked, what came from the vendor, and what closes an account.
_MARKS: LiteralString = """
SELECT (SELECT max(id) FROM outbox.attempts WHERE outcome <> 'not_sent') AS answered,
    (SELECT max(id) FROM outbox.events) AS moved, (SELECT max(id) FROM outbox.pages) AS told,
    (SELECT max(changed_at) FROM outbox.escalations) AS asked,
    (SELECT max(id) FROM outbox.webhook_inbox) AS came,
    (SELECT array_agg(holder ORDER BY holder) FROM outbox.switches) AS closed
"""


def marks(tx: Transaction) -> dict[str, Any]:
    """Equal marks: since they were read the first time nothing happened that a resolver acts on,
    but that time passed."""
    row = tx.one(_MARKS)
    assert row is not None
    return row

"""Settlements: the rows by which results reach the callers' tables, once per consumer.

Deliveries are rows, fanned out in the transaction that writes the settlement; never a watermark,
because transactions commit out of the order of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.states import Status, told
from outbox.store.connection import CONSUMERS_LOCK, Store, Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from outbox.store.intents import Intent


def lock_consumers(tx: Transaction) -> None:
    """Shares the lock that registering a consumer takes alone. A statement of its own, so that
    the fan-out's snapshot is taken after it."""
    tx.one("SELECT pg_advisory_xact_lock_shared(%(lock)s)", {"lock": CONSUMERS_LOCK})


def register(store: Store, consumer: str) -> None:
    """Makes a consumer known and hands it every settlement there is; a second call does nothing.

    Known first, alone with the lock and in an instant; then the past is handed over in pieces, each
    remembered, so that a ledger of any size takes no long transaction and a death half-way loses
    nothing.
    """
    with store.transaction() as tx:
        tx.one("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": CONSUMERS_LOCK})
        tx.run(
            "INSERT INTO outbox.consumers (name, registered_at) VALUES (%(name)s, outbox.clock()) "
            "ON CONFLICT DO NOTHING",
            {"name": consumer},
        )
    while True:
        with store.transaction() as tx:
            row = tx.one(_FILL, {"name": consumer, "piece": _PIECE})
            if row is None or row["filled_to"] is None:
                return


_PIECE = 10_000
_FILL = """
WITH piece AS (
    SELECT s.id FROM outbox.settlements s, outbox.consumers c
    WHERE c.name = %(name)s AND s.id > c.filled_to ORDER BY s.id LIMIT %(piece)s
), filled AS (
    INSERT INTO outbox.deliveries (consumer, settlement_id)
    SELECT %(name)s, id FROM piece ON CONFLICT DO NOTHING
)
UPDATE outbox.consumers SET filled_to = (SELECT max(id) FROM piece)
WHERE name = %(name)s AND filled_to IS NOT NULL
RETURNING filled_to
"""


def write(tx: Transaction, row: Intent, kind: str) -> None:
    """One settlement of the row as it stands, fanned out to every consumer. What is told as unknown
    carries no receipt and no business status: a consumer must not take it for a result."""
    tx.run(
        "WITH made AS ("
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, business_status, "
        "business_word, receipt_id, failure_code, settled_by, at) "
        "SELECT i.id, i.version, %(kind)s, i.status, %(told)s, k.business_status, k.business_word, "
        "k.receipt_id, k.failure_code, i.settled_by, outbox.clock() FROM outbox.intents i "
        "LEFT JOIN outbox.intents k ON k.id = i.id AND %(told)s <> 'unknown' "
        "WHERE i.id = %(id)s ON CONFLICT DO NOTHING RETURNING id) "
        "INSERT INTO outbox.deliveries (consumer, settlement_id) "
        "SELECT c.name, made.id FROM made CROSS JOIN outbox.consumers c",
        {"id": row.id, "kind": kind, "told": _told(row, kind)},
    )


def _told(row: Intent, kind: str) -> str:
    contradicted = kind == "contradiction" or row.contradicted_at is not None
    return told(Status(row.status), row.doubt, contradicted=contradicted).value


# What ``outbox.settlements`` runs inside the caller's own transaction. A result waits while an
# earlier one of its intent is in another consumer's hands, so that none overtakes.
TAKE = """
WITH due AS (
    SELECT d.settlement_id FROM outbox.deliveries d
    WHERE d.consumer = CAST(%(consumer)s AS text) AND d.consumed_at IS NULL
    ORDER BY d.settlement_id LIMIT CAST(%(limit)s AS integer)
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE outbox.deliveries d SET consumed_at = outbox.clock() FROM due
    WHERE d.consumer = CAST(%(consumer)s AS text) AND d.settlement_id = due.settlement_id
    AND NOT EXISTS (
        SELECT FROM outbox.settlements mine
        JOIN outbox.settlements older ON older.intent_id = mine.intent_id AND older.id < mine.id
        JOIN outbox.deliveries held ON held.consumer = d.consumer AND held.settlement_id = older.id
        WHERE mine.id = d.settlement_id AND held.consumed_at IS NULL
        AND held.settlement_id NOT IN (SELECT settlement_id FROM due))
    RETURNING d.settlement_id
)
SELECT s.id, s.intent_id, s.kind, s.status, s.told, s.business_status, s.business_word,
       s.receipt_id, s.failure_code, s.settled_by, s.at,
       i.tenant, i.vendor, i.account, i.tool, i.run_id, i.epoch, i.identity, i.guard,
       i.amount_minor, i.currency
FROM taken JOIN outbox.settlements s ON s.id = taken.settlement_id
JOIN outbox.intents i ON i.id = s.intent_id
ORDER BY s.id
"""

# Known, and the past handed over to its end.
KNOWN = (
    "SELECT name FROM outbox.consumers WHERE name = CAST(%(consumer)s AS text) "
    "AND filled_to IS NULL"
)


_GIVE_BACK = (
    "UPDATE outbox.deliveries SET consumed_at = NULL "
    "WHERE consumer = %(consumer)s AND settlement_id = %(settlement_id)s"
)


def give_back(session: Session, consumer: str, settlement_id: int) -> None:
    """A result taken in this very transaction is due again: its consumer could not use it."""
    values = {"consumer": consumer, "settlement_id": settlement_id}
    session.connection().exec_driver_sql(_GIVE_BACK, values)

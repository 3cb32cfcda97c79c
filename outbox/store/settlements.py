"""Settlements: the rows by which results reach the callers' tables, once per consumer.

Deliveries are rows, fanned out in the transaction that writes the settlement; never a watermark,
because transactions commit out of the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outbox.states import Status, told
from outbox.store.connection import CONSUMERS_LOCK, Store, Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from outbox.store.intents import Intent


# Shares the lock that registering a consumer takes alone: the table's own, which only our roles
# can take. No row is locked, so nothing is written. A statement of its own, so that the fan-out's
# snapshot is taken after it.
SHARE_CONSUMERS = "SELECT made FROM outbox.registrations WHERE false FOR SHARE"


def lock_consumers(tx: Transaction) -> None:
    """Keeps consumers from being registered until this transaction ends."""
    tx.run(SHARE_CONSUMERS)


def register(store: Store, consumer: str) -> None:
    """Makes a consumer known and hands it every settlement there is; a second call does nothing.

    Known first, alone with the lock and in an instant; then the past is handed over in pieces, each
    remembered, so that a ledger of any size takes no long transaction and a death half-way loses
    nothing.
    """
    with store.transaction() as tx:
        # What writers of the release before share. Whoever else holds it delays nobody but us.
        tx.one("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": CONSUMERS_LOCK})
        # A trigger of the table takes the lock that our own writers share, and counts: snapshots
        # from before this moment hand no results to consumers any more.
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
_FILL = "SELECT outbox.fill_deliveries(%(name)s, %(piece)s) AS filled_to"


def write(tx: Transaction, row: Intent, kind: str) -> None:
    """One settlement of the row as it stands."""
    write_all(tx, [row], kind)


def write_all(tx: Transaction, rows: Sequence[Intent], kind: str) -> None:
    """One settlement of each row as it stands, in their order, fanned out to every consumer. What
    is told as unknown carries no receipt and no business status: a consumer must not take it for a
    result."""
    tx.run(
        "WITH made AS ("
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, business_status, "
        "business_word, receipt_id, failure_code, settled_by, at) "
        "SELECT i.id, i.version, %(kind)s, i.status, n.told, k.business_status, "
        "k.business_word, k.receipt_id, k.failure_code, i.settled_by, outbox.clock() "
        "FROM unnest(%(ids)s::uuid[], %(told)s::text[]) WITH ORDINALITY AS n (id, told, place) "
        "JOIN outbox.intents i ON i.id = n.id "
        "LEFT JOIN outbox.intents k ON k.id = i.id AND n.told <> 'unknown' "
        "ORDER BY n.place ON CONFLICT DO NOTHING RETURNING id) "
        "INSERT INTO outbox.deliveries (consumer, settlement_id) "
        "SELECT c.name, made.id FROM made CROSS JOIN outbox.consumers c",
        {
            "ids": [row.id for row in rows],
            "told": [_told(row, kind) for row in rows],
            "kind": kind,
        },
    )


def _told(row: Intent, kind: str) -> str:
    contradicted = kind == "contradiction" or row.contradicted_at is not None
    return told(Status(row.status), row.doubt, contradicted=contradicted).value


# What ``outbox.settlements`` runs inside the caller's own transaction. A result waits while an
# earlier one of its intent is in other hands or not due, so that none overtakes.
TAKE = """
WITH due AS (
    SELECT d.settlement_id FROM outbox.deliveries d
    WHERE d.consumer = CAST(%(consumer)s AS text) AND d.consumed_at IS NULL
    AND (d.due_at IS NULL OR d.due_at <= outbox.clock())
    AND NOT EXISTS (
        SELECT FROM outbox.settlements mine
        JOIN outbox.settlements older ON older.intent_id = mine.intent_id AND older.id < mine.id
        JOIN outbox.deliveries held ON held.consumer = d.consumer AND held.settlement_id = older.id
        WHERE mine.id = d.settlement_id AND held.consumed_at IS NULL
        AND held.due_at > outbox.clock())
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
       s.receipt_id, s.failure_code, s.settled_by,
       CAST(EXTRACT(EPOCH FROM s.at) * 1000000 AS bigint) AS at,
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


# Whether this very transaction keeps registering away.
FORBIDS_REGISTERING = (
    "SELECT pid FROM pg_locks WHERE locktype = 'relation' AND pid = pg_backend_pid() "
    "AND relation = CAST('outbox.registrations' AS regclass) AND mode = 'RowShareLock' LIMIT 1"
)

# A result that failed comes again after a second, then two, four ... and at last ten minutes. One
# that only waited for it comes with it.
_GIVE_BACK = (
    "UPDATE outbox.deliveries SET consumed_at = NULL, tries = LEAST(tries, 1000000) + %(tried)s, "
    "due_at = CASE WHEN %(tried)s = 0 THEN due_at ELSE outbox.clock() "
    "+ LEAST(power(2, LEAST(tries, 20)), 600) * INTERVAL '1 second' END "
    "WHERE consumer = %(consumer)s AND settlement_id = %(settlement_id)s"
)
_HURRY = (
    "UPDATE outbox.deliveries d SET due_at = outbox.clock() FROM (SELECT settlement_id "
    "FROM outbox.deliveries WHERE consumer = %(consumer)s AND consumed_at IS NULL AND tries > 0 "
    "AND due_at > outbox.clock() FOR UPDATE SKIP LOCKED) waiting "
    "WHERE d.consumer = %(consumer)s AND d.settlement_id = waiting.settlement_id"
)


def give_back(session: Session, consumer: str, settlement_id: int, *, failed: bool) -> None:
    """A result taken in this very transaction comes again: its consumer could not use it, or one
    before it of the same intent."""
    values = {"consumer": consumer, "settlement_id": settlement_id, "tried": int(failed)}
    session.connection().exec_driver_sql(_GIVE_BACK, values)


def hurry(session: Session, consumer: str) -> None:
    """What waits because it failed before is due now."""
    session.connection().exec_driver_sql(_HURRY, {"consumer": consumer})

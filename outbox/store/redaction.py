"""Emptying settled intents of what is personal and large. What makes each the intent that it is
stays: its key, hash, receipt id, join keys and amounts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from outbox.codec import PLAIN_NAME, Codec, Sealed, readable
from outbox.store.connection import Transaction
from outbox.store.intents import Intent

_SAMPLES = 10
_COLUMNS = ("args", "request", "receipt")


def holds_anything(tx: Transaction, row: Intent) -> bool:
    """Whether anything is left to empty, in the row or in the events that joined it."""
    if not row.args is row.request is row.receipt is None:
        return True
    found = tx.one(
        "SELECT EXISTS (SELECT FROM outbox.webhook_inbox WHERE intent_id = %(id)s "
        "AND body IS NOT NULL) AS y",
        {"id": row.id},
    )
    return bool(found and found["y"])


# Of the intent whose id follows: a consumer that is still being registered has not had it either.
NOT_HAD: LiteralString = (
    "outbox.settlements s CROSS JOIN outbox.consumers c LEFT JOIN outbox.deliveries d "
    "ON d.consumer = c.name AND d.settlement_id = s.id "
    "WHERE d.consumed_at IS NULL AND s.intent_id = "
)


def undelivered(tx: Transaction, intent_id: UUID) -> list[str]:
    """The consumers that have not had every result of the intent yet."""
    rows = tx.all(
        f"SELECT DISTINCT c.name FROM {NOT_HAD} %(id)s ORDER BY c.name", {"id": intent_id}
    )
    return [row["name"] for row in rows]


def empty(tx: Transaction, rows: Sequence[Intent]) -> dict[UUID, dict[str, Any]]:
    """Empties locked rows and the events that joined them; returns what was emptied of each, by
    name."""
    ids = [row.id for row in rows]
    tx.run(
        "UPDATE outbox.intents i SET args = NULL, args_codec = %(plain)s, request = NULL, "
        "request_codec = %(plain)s, receipt = NULL, receipt_codec = %(plain)s, "
        "request_path = COALESCE(i.request_path, e.path) "
        "FROM unnest(%(ids)s::uuid[], %(paths)s::text[]) AS e (id, path) "
        "WHERE i.id = e.id AND i.settled_at IS NOT NULL",
        {"ids": ids, "plain": PLAIN_NAME, "paths": [_path(row) for row in rows]},
    )
    # One that was to be joined once more has no body to be joined by.
    bodies = tx.all(
        "UPDATE outbox.webhook_inbox SET body = NULL, body_codec = %(plain)s, state = 'joined', "
        "due_at = NULL WHERE intent_id = ANY(%(ids)s) AND body IS NOT NULL RETURNING intent_id",
        {"ids": ids, "plain": PLAIN_NAME},
    )
    joined = Counter(body["intent_id"] for body in bodies)
    return {
        row.id: {
            "columns": [n for n in _COLUMNS if getattr(row, n) is not None],
            "webhook_bodies": joined[row.id],
        }
        for row in rows
    }


def _path(row: Intent) -> str:
    """Where the request went; by the contract where no key is left to read it."""
    if row.request_path is not None:
        return row.request_path
    try:
        frozen = json.loads(row.plain_text("request") or "{}")
    except Sealed:
        frozen = {}
    return str(frozen.get("path") or row.path_without_request())


_SEALED = """
SELECT 'intents.args' AS column, args_codec AS codec, id::text AS id FROM outbox.intents
    WHERE args IS NOT NULL AND args_codec <> ALL(%(codecs)s)
UNION ALL SELECT 'intents.request', request_codec, id::text FROM outbox.intents
    WHERE request IS NOT NULL AND request_codec <> ALL(%(codecs)s)
UNION ALL SELECT 'intents.receipt', receipt_codec, id::text FROM outbox.intents
    WHERE receipt IS NOT NULL AND receipt_codec <> ALL(%(codecs)s)
UNION ALL SELECT 'webhook_inbox.body', body_codec, id::text FROM outbox.webhook_inbox
    WHERE body IS NOT NULL AND body_codec <> ALL(%(codecs)s)
"""


def sealed(tx: Transaction, codec: Codec) -> list[dict[str, Any]]:
    """Values that this process cannot open, by ``column`` and ``codec``: ``n`` of them, ``ids`` of
    the first. It reads every row: for ``doctor``. Nothing found means that no key is missing."""
    return tx.all(
        f"SELECT r.column, r.codec, count(*) AS n, (array_agg(r.id ORDER BY r.id))[1:{_SAMPLES}] "
        f"AS ids FROM ({_SEALED}) r GROUP BY r.column, r.codec ORDER BY r.column, r.codec",
        {"codecs": readable(codec)},
    )

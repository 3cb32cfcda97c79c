"""The webhook inbox: raw verified bytes, stored before the vendor is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from outbox.codec import PLAIN_NAME, Codec, open_bytes, readable, seal_bytes
from outbox.store.connection import Transaction


def keep(
    tx: Transaction,
    *,
    vendor: str,
    account: str,
    mode: str,
    event_id: str,
    kind: str,
    body: bytes | None,
    state: str,
    detail: str = "",
) -> bool:
    """Stores one event; False when it was stored before (a redelivery, counted)."""
    about = {"vendor": vendor, "account": account, "mode": mode, "event_id": event_id}
    name = PLAIN_NAME
    if body is not None:
        body, name = seal_bytes(tx.codec, body, _BODY, _owner(about))
    row = tx.one(
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, kind, body, "
        "body_codec, state, detail, due_at, received_at) VALUES (%(vendor)s, %(account)s, "
        "%(mode)s, %(event_id)s, %(kind)s, %(body)s, %(codec)s, %(state)s, %(detail)s, "
        "CASE WHEN %(state)s = 'new' THEN outbox.clock() END, outbox.clock()) "
        "ON CONFLICT (vendor, account, mode, event_id) "
        "DO UPDATE SET deliveries = outbox.webhook_inbox.deliveries + 1 "
        "RETURNING (xmax = 0) AS fresh",
        {
            **about,
            "kind": kind,
            "body": body,
            "codec": name,
            "state": state,
            "detail": detail,
        },
    )
    return bool(row and row["fresh"])


def claim(tx: Transaction, limit: int, hold_s: float) -> list[dict[str, Any]]:
    """Due events, held back from other joiners for ``hold_s``; ``body_of`` opens what they hold.
    Those whose key is missing here are left alone."""
    return tx.all(
        "UPDATE outbox.webhook_inbox w SET tries = tries + 1, "
        "due_at = outbox.clock() + %(hold_s)s * INTERVAL '1 second' "
        "FROM (SELECT id FROM outbox.webhook_inbox WHERE due_at <= outbox.clock() "
        "AND body_codec = ANY(%(codecs)s) "
        "ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED) d WHERE w.id = d.id "
        "RETURNING w.id, w.vendor, w.account, w.mode, w.event_id, w.kind, w.body, w.body_codec, "
        "w.state, w.tries, EXTRACT(EPOCH FROM outbox.clock() - w.received_at)::float8 AS age_s",
        {"limit": limit, "hold_s": hold_s, "codecs": readable(tx.codec)},
    )


def sending(tx: Transaction) -> set[tuple[str, str]]:
    """The (vendor, account) pairs of which something is in flight or in doubt: only there can a
    reply that is still to come explain an event without our marks."""
    rows = tx.all(
        "SELECT vendor, account FROM outbox.intents WHERE status = 'in_flight' "
        "UNION SELECT vendor, account FROM outbox.intents WHERE status = 'unknown' "
        "UNION SELECT vendor, account FROM outbox.intents WHERE status = 'retryable'"
    )
    return {(row["vendor"], row["account"]) for row in rows}


def body_of(row: Mapping[str, Any], codec: Codec) -> bytes:
    """The raw bytes of a claimed event, empty where they were not kept. Raises ``Sealed``."""
    if row["body"] is None:
        return b""
    return open_bytes(codec, row["body_codec"], bytes(row["body"]), _BODY, _owner(row))


_BODY = "webhook_inbox.body"


def _owner(row: Mapping[str, Any]) -> str:
    """What makes the row: its number is not known yet when the body is sealed."""
    return json.dumps([row["vendor"], row["account"], row["mode"], row["event_id"]])


def settle(
    tx: Transaction, row_id: int, state: str, *, intent_id: UUID | None = None, detail: str = ""
) -> None:
    """The event's last state. A foreign event's body is not ours to keep."""
    tx.run(
        "UPDATE outbox.webhook_inbox SET state = %(state)s, detail = %(detail)s, due_at = NULL, "
        "intent_id = %(intent_id)s, body = CASE WHEN %(state)s = 'foreign' THEN NULL ELSE body END "
        "WHERE id = %(id)s",
        {"id": row_id, "state": state, "intent_id": intent_id, "detail": detail[:200]},
    )


def park(tx: Transaction, row_id: int, again_in_s: float | None, detail: str) -> None:
    """Not joinable yet: tried again later, or (None) kept and listed without another try."""
    tx.run(
        "UPDATE outbox.webhook_inbox SET state = 'parked', detail = %(detail)s, "
        "due_at = outbox.clock() + %(again)s::float8 * INTERVAL '1 second' WHERE id = %(id)s",
        {"id": row_id, "again": again_in_s, "detail": detail[:200]},
    )


def owner_of(
    tx: Transaction,
    *,
    vendor: str,
    account: str,
    key: bytes | None,
    owner_key: bytes | None,
    owner: UUID | None,
    receipt_ids: tuple[str, ...],
) -> tuple[UUID, str] | None:
    """The intent an event is about and what joined them: request key, metadata, then receipt."""
    for joined_by, wanted in (("request_key", key), ("metadata", owner_key)):
        if wanted is not None:
            row = tx.one(
                "SELECT id FROM outbox.intents WHERE key = %(key)s AND vendor = %(vendor)s",
                {"key": wanted, "vendor": vendor},
            )
            if row is not None:
                return row["id"], joined_by
    if owner is not None:
        row = tx.one(
            "SELECT id FROM outbox.intents WHERE id = %(id)s AND vendor = %(vendor)s",
            {"id": owner, "vendor": vendor},
        )
        if row is not None:
            return row["id"], "metadata"
    if receipt_ids:
        rows = tx.all(
            "SELECT id FROM outbox.intents WHERE vendor = %(vendor)s AND account = %(account)s "
            "AND receipt_id = ANY(%(ids)s) ORDER BY seq LIMIT 1",
            {"vendor": vendor, "account": account, "ids": list(receipt_ids)},
        )
        if rows:
            return rows[0]["id"], "receipt"
    return None


def lock_landed(
    tx: Transaction, owner: UUID, *, vendor: str, account: str, receipt_ids: tuple[str, ...]
) -> list[UUID]:
    """Every other intent that landed as one of these objects, or made one of them: what the event
    tells of its owner has happened to their object too. Locks them with the owner, in id order."""
    rows = tx.all(
        "SELECT id FROM outbox.intents WHERE id = %(owner)s OR (vendor = %(vendor)s "
        "AND account = %(account)s AND receipt_id = ANY(%(ids)s) AND status = 'succeeded') "
        "ORDER BY id FOR UPDATE",
        {"owner": owner, "vendor": vendor, "account": account, "ids": list(receipt_ids)},
    )
    return [row["id"] for row in rows if row["id"] != owner]


def replay(tx: Transaction, row_id: int) -> bool:
    """Makes a kept event due again; False where its body is gone."""
    return bool(
        tx.run(
            "UPDATE outbox.webhook_inbox SET state = 'new', due_at = outbox.clock() "
            "WHERE id = %(id)s AND body IS NOT NULL",
            {"id": row_id},
        )
    )

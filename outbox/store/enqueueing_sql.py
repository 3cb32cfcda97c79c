"""Enqueue's statements, for every kind of connection: times come as numbers or as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = {
    "id": "uuid", "tenant": "text", "vendor": "text", "account": "text", "tool": "text",
    "operation": "text", "side_effect": "text", "run_id": "text", "epoch": "text",
    "occurrence": "integer", "once_per": "text", "supersedes": "uuid", "key": "bytea",
    "fingerprint": "bytea", "fingerprint_version": "smallint", "identity": "text",
    "guard": "text", "args": "text", "args_codec": "text", "request": "text",
    "request_sha256": "bytea", "request_codec": "text", "request_path": "text",
    "carries": "text", "api_version": "text", "amount_minor": "bigint", "currency": "text",
    "lane": "text", "on_doubt": "text", "resend_when_absent": "boolean", "gate": "text",
    "ttl_s": "double precision", "tool_call_id": "text", "traceparent": "text", "note": "text",
}  # fmt: skip
_NAMES = ", ".join(_COLUMNS)
_FIELDS = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())


# JSON carries no bytes: they are written as Postgres reads them.
_BYTES = tuple(name for name, kind in _COLUMNS.items() if kind == "bytea")
# Made once, and not for each call; no row of columns holds itself.
_as_json = json.JSONEncoder(check_circular=False).encode


def as_drafts(rows: Sequence[Mapping[str, Any]]) -> str:
    """The JSON that ``INSERT`` takes: of each row its columns, and its place in the order."""
    return _as_json([_as_draft(row, n) for n, row in enumerate(rows)])


def _as_draft(row: Mapping[str, Any], n: int) -> dict[str, Any]:
    draft = {**row, "n": n}
    for name in _BYTES:
        draft[name] = "\\x" + row[name].hex()
    return draft


# What is told of a row, and what a second enqueue compares. Times come as numbers or as text: the
# caller's session may write timestamps in a style of its own, and its driver may read them by
# adapters of its own (Django's drop the zone).
_SEEN = (
    "id, status, doubt, version, guard, args, args_codec, epoch, "
    "CAST(EXTRACT(EPOCH FROM created_at) * 1000000 AS bigint) AS created_at, "
    "CAST(contradicted_at AS text) AS contradicted_at, "
    "business_status, receipt_id, failure_code, note, run_id, tool, identity, "
    "tenant, vendor, account, encode(fingerprint, 'hex') AS fingerprint"
)


# The same identity of the run. Its word guards the twin until it has been told, by a unique index,
# and again after it was taken back, for as long as the present word has not been told.
_SAME = (
    "tenant = CAST(%(tenant)s AS text) AND vendor = CAST(%(vendor)s AS text) "
    "AND account = CAST(%(account)s AS text) AND run_id = CAST(%(run_id)s AS text) "
    "AND tool = CAST(%(tool)s AS text) AND occurrence = 0 AND supersedes IS NULL "
    "AND CAST(%(occurrence)s AS integer) = 0 AND CAST(%(supersedes)s AS text) IS NULL"
)
_TAKEN_BACK = (
    "retracted_at IS NOT NULL AND (contradicted_at IS NOT NULL OR told_at <= retracted_at)"
)


# Of whole drafts, in their order. It does nothing where a key or a guarded twin exists, and inserts
# nothing for an epoch that is over: once a run has a current one, only that may start writes, for
# an earlier turn need not have been announced. One parameter, whatever the number of columns.
INSERT = (
    f"INSERT INTO outbox.intents ({_NAMES}, due_at, ttl_at, escalate_at, created_at) "
    f"SELECT {_NAMES}, c.now, c.now + ttl_s * c.second, c.now + ttl_s * c.second, c.now "
    f"FROM json_to_recordset(CAST(%(drafts)s AS json)) AS d (n integer, {_FIELDS}), "
    "(SELECT outbox.clock() AS now, INTERVAL '1 second' AS second) c "
    "WHERE NOT EXISTS (SELECT FROM outbox.epochs e WHERE e.tenant = d.tenant "
    "AND e.run_id = d.run_id AND e.ended_at IS NULL AND e.epoch <> d.epoch AND d.epoch <> '') "
    "AND NOT (d.occurrence = 0 AND d.supersedes IS NULL AND EXISTS (SELECT FROM outbox.intents i "
    "WHERE i.tenant = d.tenant AND i.vendor = d.vendor AND i.account = d.account "
    "AND i.run_id = d.run_id AND i.tool = d.tool AND i.fingerprint = d.fingerprint "
    f"AND i.occurrence = 0 AND i.supersedes IS NULL AND {_TAKEN_BACK})) "
    "ORDER BY n ON CONFLICT DO NOTHING RETURNING id, "
    "CAST(EXTRACT(EPOCH FROM created_at) * 1000000 AS bigint) AS created_at, "
    "CAST(pg_current_xact_id() AS text) AS xid"
)


# By every fingerprint version that is known.
_PRINTS = "fingerprint = ANY(CAST(%(fingerprints)s AS bytea[]))"
FIND = (
    f"SELECT {_SEEN}, 0 AS rank FROM outbox.intents "
    "WHERE key = ANY(CAST(%(keys)s AS bytea[])) "
    f"UNION ALL SELECT {_SEEN}, 1 AS rank FROM outbox.intents "
    f"WHERE {_SAME} AND {_PRINTS} AND {_TAKEN_BACK} "
    f"UNION ALL SELECT {_SEEN}, 2 AS rank FROM outbox.intents "
    f"WHERE {_SAME} AND {_PRINTS} AND told_at IS NULL "
    "ORDER BY rank LIMIT 1"
)
# Two versions have two keys, which no unique index compares: who records takes its turn.
TURN = (
    "SELECT CAST(pg_advisory_xact_lock(hashtextextended(CAST(%(turn)s AS text), 0)) AS text), "
    "current_setting('transaction_isolation') AS isolation"
)

OVER = (
    "SELECT epoch FROM outbox.epochs WHERE tenant = CAST(%(tenant)s AS text) "
    "AND run_id = CAST(%(run_id)s AS text) AND ended_at IS NULL "
    "AND epoch <> CAST(%(epoch)s AS text) AND CAST(%(epoch)s AS text) <> ''"
)

# Later than the word that was taken back, whatever the clock says.
TOLD = (
    "UPDATE outbox.intents SET told_at = GREATEST(outbox.clock(), "
    "retracted_at + INTERVAL '1 microsecond') WHERE id = CAST(%(id)s AS uuid) "
    "AND version = CAST(%(version)s AS integer) AND settled_at IS NOT NULL "
    "AND contradicted_at IS NULL AND (told_at IS NULL OR told_at <= retracted_at)"
)

NOTE = (
    "INSERT INTO outbox.events (intent_id, at, actor, kind, reason, detail) "
    "VALUES (CAST(%(id)s AS uuid), outbox.clock(), 'agent', 'enqueue_noted', "
    "CAST(%(reason)s AS text), '{}')"
)

SUPERSEDED = (
    "SELECT i.status, CAST(i.contradicted_at AS text) AS contradicted_at, "
    "(SELECT s.id FROM outbox.intents s WHERE s.supersedes = i.id) AS successor "
    "FROM outbox.intents i WHERE i.id = CAST(%(id)s AS uuid) "
    # Held until the caller commits: evidence that it landed after all must not slip between.
    "AND i.tenant = CAST(%(tenant)s AS text) FOR SHARE OF i"
)

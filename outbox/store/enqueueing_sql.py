"""Enqueue's statements, for every kind of connection: times come as numbers or as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CASTS = {
    "id": "uuid",
    "supersedes": "uuid",
    "key": "bytea",
    "fingerprint": "bytea",
    "request_sha256": "bytea",
    "fingerprint_version": "smallint",
    "occurrence": "integer",
    "amount_minor": "bigint",
    "ttl_s": "double precision",
    "resend_when_absent": "boolean",
}

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
_RETRACTED_TWIN = f"{_SAME} AND fingerprint = CAST(%(fingerprint)s AS bytea) AND {_TAKEN_BACK}"


def insert_sql(columns: Mapping[str, Any]) -> str:
    """The one INSERT. It does nothing where the key or the guarded twin exists, and inserts
    nothing for an epoch that is over: once a run has a current one, only that may start writes,
    for an earlier turn need not have been announced."""
    names = ", ".join(columns)
    values = ", ".join(f"CAST(%({n})s AS {_CASTS.get(n, 'text')})" for n in columns)
    return (
        f"INSERT INTO outbox.intents ({names}, due_at, ttl_at, escalate_at, created_at) "
        f"SELECT {values}, c.now, c.now + c.ttl, c.now + c.ttl, c.now "
        "FROM (SELECT outbox.clock() AS now, "
        "CAST(%(ttl_s)s AS double precision) * INTERVAL '1 second' AS ttl) c "
        "WHERE NOT EXISTS (SELECT FROM outbox.epochs e WHERE e.tenant = CAST(%(tenant)s AS text) "
        "AND e.run_id = CAST(%(run_id)s AS text) AND e.ended_at IS NULL "
        "AND e.epoch <> CAST(%(epoch)s AS text) AND CAST(%(epoch)s AS text) <> '') "
        f"AND NOT EXISTS (SELECT FROM outbox.intents WHERE {_RETRACTED_TWIN}) "
        f"ON CONFLICT DO NOTHING RETURNING {_SEEN}, CAST(pg_current_xact_id() AS text) AS xid"
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

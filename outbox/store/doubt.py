"""The resolvers' SQL: expired leases, rows in doubt, re-sends that may not go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import LiteralString
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from outbox.store.connection import Transaction
from outbox.store.intents import COLUMNS, COLUMNS_OF_I, Intent, as_intent
from outbox.store.moves import log
from outbox.store.windows import WITHDRAWN

NO_WINDOWS: Mapping[str, float | None] = MappingProxyType({})


def expire_leases(tx: Transaction, *, limit: int, look_after_s: float, max_crashes: int) -> int:
    """Leases whose end has passed: the worker is lost, the row is in doubt, and due for a look
    ``look_after_s`` after the end of its lease. A row that lost ``max_crashes`` workers in a row is
    due for a person at once. Returns how many."""
    row = tx.one(
        """
        WITH gone AS (
            SELECT id FROM outbox.intents WHERE status = 'in_flight'
            AND lease_until < outbox.clock() ORDER BY lease_until LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ), moved AS (
            UPDATE outbox.intents i SET status = 'unknown', version = version + 1,
                doubt = doubt + 1, crashes = crashes + 1, last_lease_end = lease_until,
                lease_token = NULL, lease_until = NULL, lease_owner = NULL,
                escalate_at = CASE WHEN crashes + 1 >= %(max_crashes)s THEN outbox.clock()
                                   ELSE escalate_at END,
                due_at = GREATEST(outbox.clock(),
                                  lease_until + %(look_after_s)s * INTERVAL '1 second')
            FROM gone WHERE i.id = gone.id RETURNING i.id, i.lease_no, i.last_sent_at
        ), logged AS (
            INSERT INTO outbox.attempts (intent_id, lease_no, started_at, ended_at, outcome, detail)
            SELECT id, lease_no, last_sent_at, outbox.clock(), 'lease_expired', 'worker lost'
            FROM moved
        )
        SELECT count(*) AS n FROM moved
        """,
        {"limit": limit, "look_after_s": look_after_s, "max_crashes": max_crashes},
    )
    return int(row["n"]) if row else 0


def cancel_stale_epochs(tx: Transaction, limit: int) -> list[Intent]:
    """Never-sent rows whose epoch is over, locked: their key contains the epoch, so the turn that
    asked for them is gone. Compensations stay."""
    rows = tx.all(
        f"SELECT {COLUMNS_OF_I} FROM outbox.intents i JOIN outbox.epochs e "
        "ON e.tenant = i.tenant AND e.run_id = i.run_id AND e.epoch <> i.epoch "
        "WHERE e.ended_at IS NULL AND i.once_per = 'epoch' "
        "AND i.status IN ('pending', 'awaiting_approval') AND i.settled_at IS NULL "
        "AND i.side_effect <> 'compensation' "
        "LIMIT %(limit)s FOR UPDATE OF i SKIP LOCKED",
        {"limit": limit},
    )
    return [as_intent(row, tx.codec) for row in rows]


DOUBTFUL: LiteralString = (
    "status = 'unknown' AND due_at <= outbox.clock() "
    "AND (resolver_until IS NULL OR resolver_until <= outbox.clock())"
)
_UNVERIFIED: LiteralString = "verify_at <= outbox.clock()"


def claim_doubts(
    tx: Transaction, *, limit: int, hold_s: float, accounts: list[str]
) -> list[Intent]:
    """Rows in doubt that are due for a look, leased to this resolver for ``hold_s`` so that two
    beats do not look twice. ``accounts`` are the gate prefixes this process has credentials for."""
    rows = tx.all(
        f"""
        UPDATE outbox.intents i SET resolver_token = %(token)s,
            resolver_until = outbox.clock() + %(hold_s)s * INTERVAL '1 second'
        FROM (
            SELECT id FROM outbox.intents WHERE {DOUBTFUL}
            AND EXISTS (SELECT FROM unnest(%(accounts)s::text[]) a WHERE starts_with(gate, a))
            ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) d WHERE i.id = d.id RETURNING {COLUMNS_OF_I}
        """,
        {"token": uuid4(), "hold_s": hold_s, "limit": limit, "accounts": accounts},
    )
    return [as_intent(row, tx.codec) for row in rows]


def doubtful(tx: Transaction, accounts: list[str]) -> list[str]:
    """Which of these gate prefixes have rows in doubt that are due for a look."""
    return _with_due(tx, accounts, DOUBTFUL)


def unverified(tx: Transaction, accounts: list[str]) -> list[str]:
    """Which of these gate prefixes have landed rows that are due for their verifying look."""
    return _with_due(tx, accounts, _UNVERIFIED)


def _with_due(tx: Transaction, accounts: list[str], due: LiteralString) -> list[str]:
    rows = tx.all(
        "SELECT a AS prefix FROM unnest(%(accounts)s::text[]) a WHERE EXISTS "
        f"(SELECT FROM outbox.intents WHERE {due} AND starts_with(gate, a)) ORDER BY a",
        {"accounts": accounts},
    )
    return [row["prefix"] for row in rows]


def claim_verifications(
    tx: Transaction, *, limit: int, hold_s: float, accounts: list[str]
) -> list[Intent]:
    """Landed rows that are due for their one verifying look."""
    rows = tx.all(
        f"""
        UPDATE outbox.intents i SET verify_at = outbox.clock() + %(hold_s)s * INTERVAL '1 second'
        FROM (
            SELECT id FROM outbox.intents WHERE {_UNVERIFIED}
            AND EXISTS (SELECT FROM unnest(%(accounts)s::text[]) a WHERE starts_with(gate, a))
            ORDER BY verify_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) d WHERE i.id = d.id RETURNING {COLUMNS_OF_I}
        """,
        {"hold_s": hold_s, "limit": limit, "accounts": accounts},
    )
    return [as_intent(row, tx.codec) for row in rows]


def verified(tx: Transaction, claimed: Intent) -> None:
    """The verifying look was made. One that was scheduled while it was being made is still due."""
    tx.run(
        "UPDATE outbox.intents SET verify_at = NULL WHERE id = %(id)s AND verify_at = %(held)s",
        {"id": claimed.id, "held": claimed.verify_at},
    )


def schedule_verification(tx: Transaction, intent_ids: list[UUID], after_s: float) -> None:
    """A look so long after the last send: a vendor without keys, or one that forgot the key, may
    have done the write twice; elsewhere (at once) something happened to the object. A look that
    has begun may have missed it: this is another time than the one that it holds."""
    tx.run(
        "UPDATE outbox.intents SET verify_at = last_sent_at + %(after)s * INTERVAL '1 second' "
        "WHERE id = ANY(%(ids)s) AND status = 'succeeded'",
        {"ids": intent_ids, "after": after_s},
    )


def look_now(tx: Transaction, intent_id: UUID) -> None:
    """Evidence points at the row: the resolver shall look at once. A look that has begun may have
    missed it: what it says is dropped, and the row is free for the next."""
    tx.run(
        "UPDATE outbox.intents SET due_at = outbox.clock(), version = version + 1, "
        "resolver_token = NULL, resolver_until = NULL WHERE id = %(id)s AND status = 'unknown'",
        {"id": intent_id},
    )


def withdrawable(
    tx: Transaction, limit: int, windows: Mapping[str, float | None] = NO_WINDOWS
) -> list[Intent]:
    """Approved re-sends that may no longer go out, locked: the window closed (``windows``: by
    vendor, the seconds that hold now), a veto came late, a person is looking, or the account is
    paused by a person or by refused credentials."""
    rows = tx.all(
        f"""
        SELECT {COLUMNS} FROM outbox.intents i WHERE status = 'retryable' AND {WITHDRAWN}
        ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        """,
        {"limit": limit, "windows": Jsonb(dict(windows))},
    )
    return [as_intent(row, tx.codec) for row in rows]


def shorten_window(tx: Transaction, row: Intent, end: datetime) -> Intent:
    """The row as it is once its window was found to end earlier than was promised when it was
    sent: for processes that do not know that yet, and for people. A person is asked by then."""
    tx.run(
        "UPDATE outbox.intents SET window_ends_at = %(end)s, "
        "escalate_at = LEAST(escalate_at, %(end)s) WHERE id = %(id)s",
        {"id": row.id, "end": end},
    )
    return replace(row, window_ends_at=end)


def is_forbidden_alone(tx: Transaction, row: Intent) -> bool:
    """Whether the row was answered 403 again, after other rows of its account had got through:
    then it is this write that is not allowed, and not the account."""
    found = tx.one(
        "SELECT EXISTS (SELECT FROM outbox.attempts a JOIN outbox.intents o ON o.id = a.intent_id "
        "WHERE a.id > (SELECT id FROM outbox.attempts WHERE intent_id = %(id)s "
        "AND outcome = 'not_sent' AND http_status = 403 ORDER BY id DESC OFFSET 1 LIMIT 1) "
        "AND a.outcome IN ('receipt', 'refused') AND o.vendor = %(vendor)s "
        "AND o.account = %(account)s) AS y",
        {"id": row.id, "vendor": row.vendor, "account": row.account},
    )
    return bool(found and found["y"])


def forbid(tx: Transaction, row: Intent, *, by: str) -> None:
    """Never again, and a person hears of it at once where nothing was sent."""
    tx.run(
        "UPDATE outbox.intents SET veto = COALESCE(veto, 'forbidden'), version = version + 1, "
        "escalate_at = CASE WHEN doubt = 0 THEN outbox.clock() ELSE escalate_at END "
        "WHERE id = %(id)s AND status IN ('pending', 'unknown')",
        {"id": row.id},
    )
    log(tx, kind="vetoed", actor=by, intent_id=row.id, reason="forbidden")

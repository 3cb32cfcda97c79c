"""The reads of ``outbox doctor``, and the counts that the command line shows. No write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString

from psycopg import DataError, Error, errors
from psycopg.types.json import Jsonb

from outbox.codec import readable
from outbox.errors import Unreachable
from outbox.store.connection import Params, Transaction
from outbox.store.intents import COLUMNS, Intent, as_intent
from outbox.store.invariants import NEWEST, Invariant
from outbox.store.invariants_beside import GUARDS, STANDING
from outbox.store.overdue import ASKS, CLOSED_BY, WAITS
from outbox.store.switches import ALIVE_S, TIMELINE
from outbox.store.windows import WITHDRAWN

SAMPLES = 10

# How many of the newest intents have their key made again from their columns.
NEWEST_KEYS = 5_000
# How many sealed requests are opened.
SEALED = 1_000


class NotChecked(Exception):
    """A question that the database did not answer; the others can still be asked."""


@contextmanager
def bounded(tx: Transaction) -> Iterator[None]:
    """One question of many. Raises ``NotChecked`` where the statement's time ran out, a lock was in
    the way or the role may not read that; the transaction stays usable."""
    try:
        with tx.connection.transaction():
            yield
    except errors.QueryCanceled:
        raise NotChecked("no answer in time") from None
    except errors.LockNotAvailable:
        raise NotChecked("a lock is in the way") from None
    except errors.InsufficientPrivilege as error:
        raise NotChecked(f"the role may not: {error.diag.message_primary}") from None
    except DataError as error:
        # Without its message, which may quote the row.
        raise NotChecked(f"a row cannot be read: {type(error).__name__}") from None
    except (Error, Unreachable):
        raise
    except Exception as error:
        # One row that nothing here can read shall hide no other finding.
        raise NotChecked(f"a row cannot be read: {type(error).__name__}") from None


def read_only(tx: Transaction) -> None:
    """No statement of this transaction can write."""
    tx.run("SET TRANSACTION READ ONLY")


def broken(tx: Transaction, invariant: Invariant, params: Params) -> tuple[int, list[str]]:
    """How many rows break an invariant, and the first of them."""
    row = tx.one(
        f"SELECT count(*) AS n, (array_agg(id ORDER BY id))[1:{SAMPLES}] AS ids "
        f"FROM ({invariant.broken}) r",
        params,
    )
    assert row is not None
    return int(row["n"]), list(row["ids"] or ())


def missing_guards(tx: Transaction) -> list[str]:
    """Constraints, unique indexes and triggers that are gone or switched off."""
    standing = {row["name"] for row in tx.all(STANDING)}
    return [name for name in GUARDS if name not in standing]


def newest_keys(tx: Transaction) -> list[dict[str, Any]]:
    """What the keys of the newest intents were made of, and what became of it."""
    return tx.all(
        "SELECT id, key, fingerprint, fingerprint_version, identity, tenant, vendor, account, "
        "tool, once_per, run_id, epoch, occurrence, supersedes FROM outbox.intents "
        f"ORDER BY seq DESC LIMIT {NEWEST_KEYS}"
    )


def sealed_requests(tx: Transaction) -> list[Intent]:
    """Unsettled intents whose request is sealed by a key of this process, up to a number."""
    rows = tx.all(
        f"SELECT {COLUMNS} FROM outbox.intents WHERE settled_at IS NULL "
        f"AND request_codec <> 'plain' AND request_codec = ANY(%(codecs)s) LIMIT {SEALED}",
        {"codecs": readable(tx.codec)},
    )
    return [as_intent(row, tx.codec) for row in rows]


def releases(tx: Transaction) -> dict[str, list[str]]:
    """The releases of the processes that beat a moment ago, each with their names."""
    rows = tx.all(
        "SELECT COALESCE(detail->>'release', '') AS release, "
        "array_agg(DISTINCT instance ORDER BY instance) AS instances FROM outbox.heartbeats "
        "WHERE role <> 'timeline' AND at > outbox.clock() - %(alive_s)s * INTERVAL '1 second' "
        "GROUP BY 1 ORDER BY 1",
        {"alive_s": ALIVE_S},
    )
    return {row["release"]: list(row["instances"]) for row in rows}


def heartbeats_ahead(tx: Transaction, step_s: float) -> list[str]:
    """Heartbeats from a time that the database's clock has not reached: it was set back."""
    rows = tx.all(
        "SELECT role || ' ' || instance AS id FROM outbox.heartbeats "
        "WHERE at > outbox.clock() + %(step_s)s * INTERVAL '1 second' ORDER BY 1",
        {"step_s": step_s},
    )
    return [row["id"] for row in rows]


def timelines(tx: Transaction) -> tuple[int | None, int]:
    """The database's timeline as the heartbeat last knew it, and as it is."""
    known = tx.one("SELECT detail FROM outbox.heartbeats WHERE role = 'timeline' LIMIT 1")
    now = tx.one(f"SELECT {TIMELINE} AS timeline")
    assert now is not None
    return (known["detail"].get("timeline") if known else None), int(now["timeline"])


def hours_without_webhook(tx: Transaction, vendor: str, account: str) -> float | None:
    """How long before the newest result of an account its last event came (or, where none ever
    did, its first result); None where nothing landed there. By the newest results and events."""
    row = tx.one(
        f"""
        WITH results AS (
            SELECT s.at FROM (SELECT intent_id, status, kind, at FROM outbox.settlements
                ORDER BY id DESC LIMIT {NEWEST}) s JOIN outbox.intents i ON i.id = s.intent_id
            WHERE i.vendor = %(vendor)s AND i.account = %(account)s
            AND s.kind = 'settled' AND s.status = 'succeeded'
        ), events AS (
            SELECT received_at FROM (SELECT vendor, account, received_at
                FROM outbox.webhook_inbox ORDER BY id DESC LIMIT {NEWEST}) w
            WHERE vendor = %(vendor)s AND account = %(account)s
        )
        SELECT EXTRACT(EPOCH FROM (SELECT max(at) FROM results)
            - COALESCE((SELECT max(received_at) FROM events),
                       (SELECT min(at) FROM results)))::float8 / 3600 AS hours
        """,
        {"vendor": vendor, "account": account},
    )
    return None if row is None or row["hours"] is None else float(row["hours"])


def open_questions(tx: Transaction) -> tuple[int, list[str]]:
    """How many questions are open, and the oldest of them."""
    row = tx.one(
        f"SELECT count(*) AS n, (array_agg(id::text ORDER BY opened_at, id))[1:{SAMPLES}] AS ids "
        "FROM outbox.escalations WHERE closed_at IS NULL"
    )
    assert row is not None
    return int(row["n"]), list(row["ids"] or ())


def kinds(tx: Transaction) -> list[dict[str, Any]]:
    """Vendors, accounts, operations, fingerprint versions and what is carried, of unsettled rows,
    with counts."""
    of: LiteralString = "vendor, account, operation, fingerprint_version, carries"
    return tx.all(
        f"SELECT {of}, count(*) AS n, (array_agg(id::text ORDER BY seq))[1:{SAMPLES}] AS ids "
        f"FROM outbox.intents WHERE settled_at IS NULL GROUP BY {of} ORDER BY {of}"
    )


def clock_source(tx: Transaction) -> str:
    """The body of ``outbox.clock()`` as installed; empty where it is missing."""
    row = tx.one(
        "SELECT p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'outbox' AND p.proname = 'clock' AND p.pronargs = 0"
    )
    return str(row["prosrc"]) if row else ""


def clock_is_settable(tx: Transaction) -> bool:
    """Whether a test's clock is installed instead of the migration's."""
    return " ".join(clock_source(tx).lower().split()) != "select statement_timestamp()"


def clock_doubts(tx: Transaction) -> list[dict[str, Any]]:
    """The switch that a step of the database's clock set."""
    return tx.all("SELECT holder, reason, set_at FROM outbox.switches WHERE kind = 'clock'")


def unsettled(tx: Transaction) -> list[dict[str, Any]]:
    """Unsettled rows by account, and accounts that were sent for before."""
    return tx.all(
        "SELECT vendor, account, sum(n)::int AS unsettled FROM ("
        "SELECT vendor, account, count(*) AS n FROM outbox.intents WHERE settled_at IS NULL "
        "GROUP BY vendor, account UNION ALL SELECT vendor, account, 0 FROM outbox.accounts) r "
        "GROUP BY vendor, account ORDER BY vendor, account"
    )


def waiting(tx: Transaction, vendor: str, account: str) -> dict[str, Any]:
    """What would be sent at once if the account's gates opened now."""
    rows = tx.all(
        "SELECT currency, count(*) AS n, sum(amount_minor) AS amount, "
        "min(created_at) AS oldest, array_agg(DISTINCT tenant) AS tenants FROM outbox.intents "
        "WHERE vendor = %(vendor)s AND account = %(account)s "
        "AND status IN ('pending', 'retryable') AND settled_at IS NULL "
        "GROUP BY currency ORDER BY currency",
        {"vendor": vendor, "account": account},
    )
    oldest = min((row["oldest"] for row in rows), default=None)
    return {
        "intents": sum(row["n"] for row in rows),
        "tenants": len({tenant for row in rows for tenant in row["tenants"]}),
        "amounts": [f"{r['amount']} {r['currency']} (minor units)" for r in rows if r["currency"]],
        "oldest": oldest.isoformat("T", "seconds") if oldest else None,
    }


def due(
    tx: Transaction,
    *,
    prefixes: list[str],
    lane_wait_s: float,
    windows: Mapping[str, float | None],
) -> dict[str, int]:
    """How much is due now for each resolver job."""
    row = tx.one(
        f"""
        SELECT
            (SELECT count(*) FROM outbox.intents WHERE status = 'in_flight'
             AND lease_until < outbox.clock()) AS expire,
            (SELECT count(*) FROM outbox.webhook_inbox WHERE due_at <= outbox.clock()) AS "join",
            (SELECT count(*) FROM outbox.intents WHERE status = 'unknown'
             AND due_at <= outbox.clock()
             AND (resolver_until IS NULL OR resolver_until <= outbox.clock())
             AND EXISTS (SELECT FROM unnest(%(prefixes)s::text[]) a WHERE starts_with(gate, a)))
            + (SELECT count(*) FROM outbox.intents WHERE verify_at <= outbox.clock()
             AND EXISTS (SELECT FROM unnest(%(prefixes)s::text[]) a WHERE starts_with(gate, a)))
             AS resolve,
            (SELECT count(*) FROM outbox.intents i
             WHERE status = 'retryable' AND {WITHDRAWN}) AS withdraw,
            (SELECT count(*) FROM outbox.intents i WHERE {ASKS}
             AND i.escalate_at <= outbox.clock())
            + (SELECT count(*) FROM outbox.intents i WHERE {WAITS}
             AND i.escalate_at <= outbox.clock()
             AND NOT EXISTS (SELECT FROM {CLOSED_BY.format(gate="i.gate")}))
            + (SELECT count(*) FROM outbox.intents i WHERE lane IS NOT NULL AND on_doubt = 'hold'
                AND status IN ('unknown', 'retryable')
                AND first_sent_at < outbox.clock() - %(lane_wait_s)s * INTERVAL '1 second'
                AND EXISTS (SELECT FROM outbox.intents w WHERE w.lane = i.lane
                    AND w.settled_at IS NULL AND w.id <> i.id)
                AND NOT EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
                    AND e.closed_at IS NULL AND 'lane_held' = ANY(e.reasons))) AS escalate,
            (SELECT count(*) FROM outbox.pages WHERE state = 'due'
             AND due_at <= outbox.clock()) AS page
        """,
        {"prefixes": prefixes, "lane_wait_s": lane_wait_s, "windows": Jsonb(dict(windows))},
    )
    assert row is not None
    return {name: int(count) for name, count in row.items()}

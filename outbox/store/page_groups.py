"""Groups: many open questions of one vendor, account and reason are one page with their count.

A group is an escalation without an intent; its holder begins with ``group:``. It is about the
questions whose pages were written after ``since`` and up to ``until`` of its detail; neither is
set at first. What a person mutes or acknowledges covers what was asked by then: its group ends
there once another has to begin. ``largest`` of the detail are the largest amounts that it has ever
told of, by currency, in minor units.

A question's page stays due until a page of its group tells of it: until then it only waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.pages import IN_GROUP, UNHELD

# The beginning of a group's holder; what follows is its vendor, account and reason.
GROUP = "group:"

# What is asked for, and what was found instead. An amount that is none, or larger than any column
# takes, is left out: one question must not silence all the others.
_AMOUNTS: LiteralString = """(SELECT q.currency, q.amount_minor::numeric UNION ALL
    SELECT f->>'currency', CASE WHEN f->>'amount_minor' ~ '^-?[0-9]{1,40}$'
        THEN (f->>'amount_minor')::numeric END
    FROM jsonb_array_elements(CASE jsonb_typeof(q.found) WHEN 'array' THEN q.found
        ELSE '[]' END) f) a (currency, amount)"""

_MEMBERS: LiteralString = (
    "outbox.escalations e JOIN outbox.intents i ON i.id = e.intent_id WHERE e.closed_at IS NULL "
    "AND i.vendor = h.detail->>'vendor' AND i.account = h.detail->>'account' "
    "AND e.reasons && h.reasons AND (NOT h.detail ?| ARRAY['since', 'until'] OR EXISTS ("
    "SELECT FROM outbox.pages p WHERE p.escalation_id = e.id AND p.action = 'trigger' "
    "AND p.body->>'reason' = ANY(h.reasons) "
    "AND p.created_at > COALESCE((h.detail->>'since')::timestamptz, '-infinity') "
    "AND p.created_at <= COALESCE((h.detail->>'until')::timestamptz, 'infinity')))"
)


@dataclass(frozen=True, slots=True)
class Questions:
    """Open questions: how many, some of their ids (the largest amounts first, then the oldest),
    and the largest amount of each currency in minor units."""

    count: int
    samples: list[str]
    largest: dict[str, int]


def places(tx: Transaction) -> list[dict[str, Any]]:
    """The vendors, accounts and reasons of due triggers that were never tried."""
    return tx.all(
        "SELECT DISTINCT i.vendor, i.account, p.body->>'reason' AS reason FROM outbox.pages p "
        "JOIN outbox.escalations e ON e.id = p.escalation_id "
        "JOIN outbox.intents i ON i.id = e.intent_id "
        "WHERE p.state = 'due' AND p.action = 'trigger' AND p.attempts = 0 ORDER BY 1, 2, 3"
    )


def waiting(
    tx: Transaction,
    *,
    first: str,
    plain: Sequence[str],
    place: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Due, never tried triggers of intents, by vendor, account, reason and the open group that they
    belong to (``group_id`` None: to none; they come after ``since``). ``fresh`` how many, ``ids``
    theirs, ``amounts`` their largest by currency. Of the group: ``held_s`` left of its mute or
    acknowledgement; ``telling``: a page of it is about to be sent and can still tell of them;
    ``in_air``: one is on its way and cannot; ``told_s`` ago it told last, ``age_s`` old then;
    ``largest``. ``first`` is the target of a page that has none yet; those of ``plain`` tell a
    known key again. ``place`` limits it to one vendor, account and reason.
    """
    of = place or {"vendor": None, "account": None, "reason": None}
    # Nothing but its mute or acknowledgement changes a group: `changed_at` is when that was said.
    return tx.all(
        f"""
        WITH groups AS MATERIALIZED (
            SELECT h.id, h.holder, h.detail->>'vendor' AS vendor, h.detail->>'account' AS account,
                h.reasons[1] AS reason, h.opened_at, h.detail->'largest' AS largest,
                COALESCE((h.detail->>'since')::timestamptz, '-infinity') AS since,
                COALESCE((h.detail->>'until')::timestamptz, CASE WHEN held.until > outbox.clock()
                    THEN h.changed_at ELSE 'infinity' END) AS until,
                CASE WHEN held.until > outbox.clock()
                    THEN EXTRACT(EPOCH FROM held.until - outbox.clock())::float8 END AS held_s
            FROM outbox.escalations h
            CROSS JOIN LATERAL (SELECT GREATEST(h.muted_until, h.acked_until) AS until) held
            WHERE h.closed_at IS NULL AND starts_with(h.holder, %(group)s)
            AND h.detail->>'vendor' = COALESCE(%(vendor)s, h.detail->>'vendor')
            AND h.detail->>'account' = COALESCE(%(account)s, h.detail->>'account')
            AND h.reasons[1] = COALESCE(%(reason)s, h.reasons[1])
        ), fresh AS MATERIALIZED (
            SELECT DISTINCT ON (p.id) p.id, i.vendor, i.account, p.body->>'reason' AS reason,
                g.id AS group_id, i.amount_minor, i.currency, e.detail->'found' AS found
            FROM outbox.pages p JOIN outbox.escalations e ON e.id = p.escalation_id
            JOIN outbox.intents i ON i.id = e.intent_id
            LEFT JOIN groups g ON g.vendor = i.vendor AND g.account = i.account
                AND g.reason = p.body->>'reason'
                AND p.created_at > g.since AND p.created_at <= g.until
            WHERE p.state = 'due' AND p.action = 'trigger' AND p.attempts = 0
            AND p.sent_at IS NULL AND NOT p.body ? 'renewed'
            AND e.closed_at IS NULL AND p.body->>'reason' = ANY(e.reasons) AND {UNHELD}
            AND i.vendor = COALESCE(%(vendor)s, i.vendor)
            AND i.account = COALESCE(%(account)s, i.account)
            AND p.body->>'reason' = COALESCE(%(reason)s, p.body->>'reason')
            ORDER BY p.id, g.since DESC
        ), told AS (
            SELECT g.id, bool_or(t.state = 'due' AND t.claimed_until IS NULL
                    AND (t.pager = ANY(%(plain)s) OR (t.sent_at IS NULL
                        AND NOT COALESCE(t.body->'maybe', '[]')
                            ? COALESCE(NULLIF(t.pager, ''), %(first)s)))) AS telling,
                bool_or(t.state = 'due' AND t.sent_at IS NULL) AS in_air,
                max(CASE WHEN t.pager = ANY(%(plain)s) THEN COALESCE(t.sent_at, t.created_at)
                    ELSE t.created_at END) AS at
            FROM groups g JOIN outbox.pages t ON t.escalation_id = g.id AND t.action = 'trigger'
                AND t.state IN ('due', 'sent') GROUP BY g.id
        )
        SELECT b.*, g.holder, g.held_s, g.largest, COALESCE(t.telling, false) AS telling,
            COALESCE(t.in_air, false) AS in_air,
            EXTRACT(EPOCH FROM outbox.clock() - t.at)::float8 AS told_s,
            EXTRACT(EPOCH FROM t.at - g.opened_at)::float8 AS age_s,
            (SELECT NULLIF(max(o.until), 'infinity') FROM groups o WHERE o.vendor = b.vendor
             AND o.account = b.account AND o.reason = b.reason) AS since,
            (SELECT jsonb_object_agg(m.currency, m.most) FROM (
                SELECT COALESCE(a.currency, '') AS currency, max(a.amount) AS most
                FROM fresh q CROSS JOIN LATERAL {_AMOUNTS}
                WHERE a.amount IS NOT NULL AND q.vendor = b.vendor AND q.account = b.account
                AND q.reason = b.reason AND q.group_id IS NOT DISTINCT FROM b.group_id
                GROUP BY 1) m) AS amounts
        FROM (SELECT vendor, account, reason, group_id, count(*) AS fresh, array_agg(id) AS ids
              FROM fresh GROUP BY 1, 2, 3, 4) b
        LEFT JOIN groups g ON g.id = b.group_id LEFT JOIN told t ON t.id = b.group_id
        ORDER BY b.vendor, b.account, b.reason, g.opened_at
        """,
        {"group": GROUP, "first": first, "plain": list(plain), **of},
    )


def open_in_group(tx: Transaction, group_id: UUID, samples: int) -> Questions:
    """The questions of a group that are open now."""
    return _questions(
        tx,
        "(SELECT detail, reasons FROM outbox.escalations WHERE id = %(id)s)",
        {"id": group_id},
        samples,
    )


def open_after(
    tx: Transaction, vendor: str, account: str, reason: str, since: datetime | None, samples: int
) -> Questions:
    """The same of a group that would begin there."""
    return _questions(
        tx,
        "(SELECT jsonb_strip_nulls(jsonb_build_object('vendor', %(vendor)s::text, "
        "'account', %(account)s::text, 'since', %(since)s::timestamptz)) AS detail, "
        "ARRAY[%(reason)s::text] AS reasons)",
        {"vendor": vendor, "account": account, "reason": reason, "since": since},
        samples,
    )


def _questions(
    tx: Transaction, group: LiteralString, params: dict[str, Any], samples: int
) -> Questions:
    row = tx.one(
        f"""
        WITH q AS MATERIALIZED (
            SELECT e.id, e.opened_at, i.amount_minor, i.currency, e.detail->'found' AS found
            FROM {group} h CROSS JOIN {_MEMBERS}
        ), money AS (
            SELECT q.id, COALESCE(a.currency, '') AS currency, max(a.amount) AS most
            FROM q CROSS JOIN LATERAL {_AMOUNTS} WHERE a.amount IS NOT NULL GROUP BY 1, 2
        )
        SELECT count(*) AS n, (array_agg(q.id::text ORDER BY m.most DESC NULLS LAST, q.opened_at,
                q.id))[1:%(samples)s] AS ids,
            (SELECT jsonb_object_agg(c.currency, c.most) FROM (
                SELECT currency, max(most) AS most FROM money GROUP BY 1) c) AS largest
        FROM q LEFT JOIN (SELECT id, max(most) AS most FROM money GROUP BY 1) m ON m.id = q.id
        """,
        {**params, "samples": samples},
    )
    assert row is not None
    return Questions(row["n"], row["ids"] or [], row["largest"] or {})


def begin(tx: Transaction, vendor: str, account: str, reason: str) -> str:
    """A holder for one more group of these; those that a person holds end where that was said."""
    base = f"{GROUP}{vendor}/{account}/{reason}"
    rows = tx.all(
        "UPDATE outbox.escalations SET detail = CASE WHEN detail ? 'until' THEN detail "
        "ELSE detail || jsonb_build_object('until', changed_at) END WHERE closed_at IS NULL "
        "AND starts_with(holder, %(group)s) AND detail->>'vendor' = %(vendor)s "
        "AND detail->>'account' = %(account)s AND reasons[1] = %(reason)s RETURNING holder",
        {"group": GROUP, "vendor": vendor, "account": account, "reason": reason},
    )
    taken = {row["holder"] for row in rows}
    names = (base, *(f"{base}:{number}" for number in range(2, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def take(tx: Transaction, ids: Sequence[int], holder: str) -> None:
    """Their group's page tells of them."""
    tx.run(
        "UPDATE outbox.pages SET state = 'dropped', detail = %(in_group)s || %(holder)s "
        "WHERE id = ANY(%(ids)s) AND state = 'due'",
        {"ids": list(ids), "in_group": IN_GROUP, "holder": holder},
    )


def wait(tx: Transaction, ids: Sequence[int], in_s: float) -> None:
    """They are told of with their group; not before then by themselves."""
    tx.run(
        "UPDATE outbox.pages SET due_at = outbox.clock() + %(in_s)s * INTERVAL '1 second', "
        "detail = 'waits for its group' "
        "WHERE id = ANY(%(ids)s) AND state = 'due' AND due_at <= outbox.clock()",
        {"ids": list(ids), "in_s": in_s},
    )


def alone(tx: Transaction, ids: Sequence[int]) -> None:
    """Too few for a group: each is told of by itself, at once."""
    tx.run(
        "UPDATE outbox.pages SET due_at = outbox.clock(), detail = '' "
        "WHERE id = ANY(%(ids)s) AND state = 'due' AND due_at > outbox.clock()",
        {"ids": list(ids)},
    )


def holders(tx: Transaction) -> list[str]:
    """The holders of open groups."""
    rows = tx.all(
        "SELECT holder FROM outbox.escalations WHERE closed_at IS NULL "
        "AND starts_with(holder, %(group)s) ORDER BY holder",
        {"group": GROUP},
    )
    return [str(row["holder"]) for row in rows]


def is_emptied(tx: Transaction, holder: str) -> bool:
    """Whether none of the questions of an open group is still open."""
    row = tx.one(
        "SELECT h.id FROM outbox.escalations h WHERE h.closed_at IS NULL "
        f"AND h.holder = %(holder)s AND NOT EXISTS (SELECT FROM {_MEMBERS})",
        {"holder": holder},
    )
    return row is not None

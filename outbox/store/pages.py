"""The pages' own outbox: claimed, sent with the same dedup key, and recorded.

A page's body holds its reason and what the paging job must remember between tries: ``tries`` at
the present target, ``round`` (how often every target was tried), and ``maybe``, the targets that
may have shown the page although no answer said so. Nothing in it is personal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from outbox.store.connection import Transaction

# The senders' own advisory lock, held for the length of one short transaction.
_GATHER_LOCK = 0x6F757470

# A person has muted the question until a time, or is looking at it: the notice waits for that
# time, it is not lost.
_AUDIBLE = (
    "(p.action <> 'trigger' OR e.closed_at IS NOT NULL "
    "OR COALESCE(GREATEST(e.muted_until, e.acked_until) <= outbox.clock(), true))"
)


def claim(tx: Transaction, *, first: str, limit: int, hold_s: float) -> list[dict[str, Any]]:
    """Due pages, held for ``hold_s``; a sender that dies leaves the page to the next, which sends
    the same dedup key and sees ``interrupted``. ``first`` is the target of a page that has none
    yet, written before it is tried. A resolve waits until its trigger was sent (or dropped), a
    trigger until its escalation is neither muted nor acknowledged. ``waiting`` counts the writes
    that a closed switch holds now."""
    return tx.all(
        f"""
        WITH d AS MATERIALIZED (
            SELECT p.id, p.claimed_until IS NOT NULL AS interrupted
            FROM outbox.pages p JOIN outbox.escalations e ON e.id = p.escalation_id
            WHERE p.state = 'due' AND p.due_at <= outbox.clock()
            AND (p.claimed_until IS NULL OR p.claimed_until <= outbox.clock())
            AND {_AUDIBLE}
            AND (p.action = 'trigger' OR NOT EXISTS (
                SELECT FROM outbox.pages t WHERE t.dedup_key = p.dedup_key
                AND t.action = 'trigger' AND t.state = 'due'))
            ORDER BY p.due_at, p.id LIMIT %(limit)s FOR UPDATE OF p SKIP LOCKED
        )
        UPDATE outbox.pages p SET claimed_until = outbox.clock() + %(hold_s)s * INTERVAL '1 second',
            attempts = p.attempts + 1, pager = COALESCE(NULLIF(p.pager, ''), %(first)s)
        FROM d, outbox.escalations e LEFT JOIN outbox.intents i ON i.id = e.intent_id
        WHERE p.id = d.id AND e.id = p.escalation_id
        RETURNING p.id, p.escalation_id, p.pager, p.dedup_key, p.action, p.body, p.attempts,
            d.interrupted, e.intent_id, e.holder, e.episode, e.reasons, e.detail, e.opened_at,
            e.closed_at, i.status, i.doubt,
            (SELECT count(w.id) FROM outbox.switches s LEFT JOIN outbox.intents w
             ON w.status IN ('pending', 'retryable') AND w.settled_at IS NULL
             AND starts_with(w.gate, s.gate_prefix)
             WHERE s.holder = e.holder AND s.kind <> 'clock' GROUP BY s.holder) AS waiting,
            EXTRACT(EPOCH FROM outbox.clock() - i.created_at)::float8 AS age_s,
            EXTRACT(EPOCH FROM i.window_ends_at - outbox.clock())::float8 AS window_left_s,
            EXTRACT(EPOCH FROM outbox.clock())::bigint AS at_epoch_s
        """,
        {"first": first, "limit": limit, "hold_s": hold_s},
    )


def sent(tx: Transaction, page_id: int, *, pager: str, detail: str) -> None:
    """The target accepted the page. The target is kept: a resolve must go to the same one."""
    tx.run(
        "UPDATE outbox.pages SET state = 'sent', sent_at = outbox.clock(), pager = %(pager)s, "
        "detail = %(detail)s, claimed_until = NULL, body = body - 'tries' - 'round' "
        "WHERE id = %(id)s AND state = 'due'",
        {"id": page_id, "pager": pager, "detail": detail[:200]},
    )


def dropped(tx: Transaction, page_id: int, detail: str, *, maybe: Sequence[str] = ()) -> None:
    """Nobody is to be told: no pager is configured, or the question was closed before its trigger
    was sent. ``maybe`` are targets that may have shown it all the same."""
    tx.run(
        "UPDATE outbox.pages SET state = 'dropped', detail = %(detail)s, claimed_until = NULL, "
        "body = body || %(body)s WHERE id = %(id)s AND state = 'due'",
        {"id": page_id, "detail": detail[:200], "body": Jsonb({"maybe": list(maybe)})},
    )


def again(
    tx: Transaction,
    page_id: int,
    *,
    pager: str,
    in_s: float,
    detail: str,
    tries: int = 0,
    rounds: int = 0,
    maybe: Sequence[str] = (),
) -> None:
    """The target failed: the page is due again, there or at the next target."""
    tx.run(
        "UPDATE outbox.pages SET pager = %(pager)s, claimed_until = NULL, detail = %(detail)s, "
        "due_at = outbox.clock() + %(in_s)s * INTERVAL '1 second', body = body || %(body)s "
        "WHERE id = %(id)s AND state = 'due'",
        {
            "id": page_id,
            "pager": pager,
            "in_s": in_s,
            "detail": detail[:200],
            "body": Jsonb({"tries": tries, "round": rounds, "maybe": list(maybe)}),
        },
    )


def targets_of(tx: Transaction, dedup_key: str) -> tuple[str, ...]:
    """Where the trigger of this key was shown or may have been; empty if it never was."""
    row = tx.one(
        "SELECT pager, sent_at, body FROM outbox.pages WHERE dedup_key = %(key)s "
        "AND action = 'trigger'",
        {"key": dedup_key},
    )
    if row is None:
        return ()
    shown = [row["pager"]] if row["sent_at"] is not None else []
    return tuple(dict.fromkeys([*shown, *row["body"].get("maybe", [])]))


def repage(tx: Transaction, *, pagers: list[str], after_s: float) -> int:
    """Makes triggers due again whose question is still open ``after_s`` after they were shown,
    unless a person has acknowledged or muted it. Only for targets without a policy of their own.
    Returns how many."""
    return tx.run(
        "UPDATE outbox.pages p SET state = 'due', due_at = outbox.clock(), "
        "body = p.body || jsonb_build_object('maybe', CASE WHEN p.body->'maybe' ? p.pager "
        "THEN p.body->'maybe' ELSE COALESCE(p.body->'maybe', '[]') || to_jsonb(p.pager) END) "
        "FROM outbox.escalations e WHERE e.id = p.escalation_id AND e.closed_at IS NULL "
        "AND p.body->>'reason' = ANY(e.reasons) "
        "AND p.state = 'sent' AND p.action = 'trigger' AND p.pager = ANY(%(pagers)s) "
        "AND p.sent_at <= outbox.clock() - %(after_s)s * INTERVAL '1 second' "
        "AND COALESCE(GREATEST(e.muted_until, e.acked_until) <= outbox.clock(), true)",
        {"pagers": pagers, "after_s": after_s},
    )


def gathered(tx: Transaction, *, least: int, samples: int) -> list[dict[str, Any]]:
    """Takes due, never tried triggers of intents out of single paging where ``least`` questions of
    one (vendor, account, reason) are open, or a group of them already is. One row per group, with
    the holder's name, the count of open questions and some of their ids.

    The caller opens the holder's escalation in the same transaction. Senders are serialised
    here: two of them gathering the same rows in two orders would deadlock.
    """
    tx.one("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _GATHER_LOCK})
    return tx.all(
        """
        WITH due AS (
            SELECT DISTINCT i.vendor, i.account, p.body->>'reason' AS reason
            FROM outbox.pages p JOIN outbox.escalations e ON e.id = p.escalation_id
            JOIN outbox.intents i ON i.id = e.intent_id
            WHERE p.state = 'due' AND p.action = 'trigger' AND p.attempts = 0
            AND e.closed_at IS NULL
        ), groups AS (
            SELECT d.*, 'group:' || d.vendor || '/' || d.account || '/' || d.reason AS holder,
                o.n, o.ids
            FROM due d CROSS JOIN LATERAL (
                SELECT count(*) AS n,
                    (array_agg(e.id::text ORDER BY e.opened_at, e.id))[1:%(samples)s] AS ids
                FROM outbox.escalations e JOIN outbox.intents i ON i.id = e.intent_id
                WHERE e.closed_at IS NULL AND i.vendor = d.vendor AND i.account = d.account
                AND d.reason = ANY(e.reasons)) o
        ), grouped AS (
            SELECT * FROM groups g WHERE n >= %(least)s OR EXISTS (
                SELECT FROM outbox.escalations h
                WHERE h.closed_at IS NULL AND h.holder = g.holder)
        ), taken AS (
            UPDATE outbox.pages p SET state = 'dropped', detail = 'in ' || g.holder
            FROM grouped g, outbox.escalations e, outbox.intents i
            WHERE e.id = p.escalation_id AND i.id = e.intent_id
            AND i.vendor = g.vendor AND i.account = g.account AND p.body->>'reason' = g.reason
            AND p.state = 'due' AND p.action = 'trigger' AND p.attempts = 0
            AND e.closed_at IS NULL
            AND COALESCE(GREATEST(e.muted_until, e.acked_until) <= outbox.clock(), true)
            RETURNING g.holder
        )
        SELECT g.holder, g.vendor, g.account, g.reason, g.n, g.ids FROM grouped g
        WHERE g.holder IN (SELECT holder FROM taken)
        """,
        {"least": least, "samples": samples},
    )


def emptied_groups(tx: Transaction) -> list[str]:
    """The holders of open groups none of whose questions is still open."""
    rows = tx.all(
        """
        SELECT h.holder FROM outbox.escalations h
        WHERE h.closed_at IS NULL AND starts_with(h.holder, 'group:') AND NOT EXISTS (
            SELECT FROM outbox.escalations e JOIN outbox.intents i ON i.id = e.intent_id
            WHERE e.closed_at IS NULL AND i.vendor = h.detail->>'vendor'
            AND i.account = h.detail->>'account' AND e.reasons && h.reasons)
        """
    )
    return [str(row["holder"]) for row in rows]

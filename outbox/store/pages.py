"""The pages' own outbox: claimed, sent with the same dedup key, and recorded.

A page's body holds its reason and what the paging job must remember between tries: ``tries`` at
the present target, ``round`` (how often every target was tried), and ``maybe``, the targets that
may have shown the page although no answer said so. Nothing in it is personal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from psycopg.types.json import Jsonb

from outbox.store.connection import Transaction

# The senders' own advisory lock, held for the length of one short transaction.
_LOCK = 0x6F757470

NO_PAGER = "no pager"
IN_GROUP = "in "
RESTED = "held before it was known to be shown"

# A person has muted the question until a time, or is looking at it: the notice waits for that
# time, it is not lost.
UNHELD = "COALESCE(GREATEST(e.muted_until, e.acked_until) <= outbox.clock(), true)"
# A target that forgets, and may show it, is told all the same: it would say that it is over. So is
# what a sender died with: that it may be shown is to be written down.
_MAY_BE_KEPT = "COALESCE(p.body->'maybe' ?| %(kept)s, false)"
_AUDIBLE = (
    f"(p.action <> 'trigger' OR e.closed_at IS NOT NULL OR {UNHELD} "
    f"OR p.claimed_until IS NOT NULL OR {_MAY_BE_KEPT})"
)

# Not to be shown any more: it waits for nothing.
_OVER = (
    "(p.action = 'trigger' AND (e.closed_at IS NOT NULL OR p.body->>'reason' <> ALL(e.reasons)))"
)

# The trigger that the page p follows: every one has a key of its own.
_ITS_TRIGGER = (
    "outbox.pages t WHERE t.escalation_id = p.escalation_id AND t.dedup_key = p.dedup_key "
    "AND t.action = 'trigger'"
)
_MAY_BE_SHOWN = "(t.sent_at IS NOT NULL OR COALESCE(t.body->'maybe', '[]') <> '[]')"
# A person holds the question, and its trigger may be shown although no answer said so: it rests
# until the hold ends, and what is to tell that target of the hold does not wait for it.
_RESTS = (
    "(p.action = 'acknowledge' AND t.claimed_until IS NULL AND e.closed_at IS NULL "
    f"AND NOT {UNHELD} AND {_MAY_BE_SHOWN})"
)

# Told once more: the target of before may show it still.
_SHOWN_THERE = (
    "p.body || jsonb_build_object('maybe', CASE WHEN p.body->'maybe' ? p.pager "
    "THEN p.body->'maybe' ELSE COALESCE(p.body->'maybe', '[]') || to_jsonb(p.pager) END)"
)
_TOLD_AGAIN = f"state = 'due', due_at = outbox.clock(), attempts = 0, body = {_SHOWN_THERE}"


def one_sender(tx: Transaction) -> None:
    """Serialises the senders until this transaction ends: two of them judging the same questions
    would page each twice, or close a group under the other's hands."""
    tx.one("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _LOCK})


_DUE: LiteralString = f"""
    SELECT p.id, p.claimed_until IS NOT NULL AS interrupted
    FROM outbox.pages p JOIN outbox.escalations e ON e.id = p.escalation_id
    WHERE p.state = 'due' AND (p.due_at <= outbox.clock() OR {_OVER})
    AND (p.claimed_until IS NULL OR p.claimed_until <= outbox.clock())
    AND {_AUDIBLE}
    AND (p.action = 'trigger' OR NOT EXISTS (SELECT FROM {_ITS_TRIGGER} AND (
        (t.state = 'due' AND NOT {_RESTS}) OR (%(first)s = '' AND {_MAY_BE_SHOWN}))))
    """


def next_due(tx: Transaction, *, first: str, kept: Sequence[str] = ()) -> int | None:
    """The page that comes next, for ``claim`` in the same transaction; None where none is due. To
    be asked before the questions are grouped: what was committed since would be told of by itself.
    """
    row = tx.one(
        f"{_DUE} ORDER BY p.due_at, p.id LIMIT 1 FOR UPDATE OF p SKIP LOCKED",
        {"first": first, "kept": list(kept)},
    )
    return int(row["id"]) if row is not None else None


def claim(
    tx: Transaction, page_id: int, *, first: str, hold_s: float, kept: Sequence[str] = ()
) -> dict[str, Any] | None:
    """A due page, held for ``hold_s``, or None where it is due no more; a sender that dies leaves
    it to the next, which sends the same dedup key and sees ``interrupted``. ``first`` is the target
    of a page that has none yet, written before it is tried; without one, what follows a shown page
    is left alone. A resolve waits until its trigger was sent (or dropped), a trigger until its
    escalation is neither muted nor acknowledged (``held``), unless it is to ``keep`` alive what a
    target of ``kept`` may show. ``waiting`` counts the writes that a closed switch holds now."""
    return tx.one(
        f"""
        WITH d AS MATERIALIZED ({_DUE} AND p.id = %(id)s FOR UPDATE OF p)
        UPDATE outbox.pages p SET claimed_until = outbox.clock() + %(hold_s)s * INTERVAL '1 second',
            attempts = p.attempts + 1, pager = COALESCE(NULLIF(p.pager, ''), %(first)s)
        FROM d, outbox.escalations e LEFT JOIN outbox.intents i ON i.id = e.intent_id
        WHERE p.id = d.id AND e.id = p.escalation_id
        RETURNING p.id, p.escalation_id, p.pager, p.dedup_key, p.action, p.body, p.attempts,
            d.interrupted, e.intent_id, e.holder, e.episode, e.reasons, e.detail, e.opened_at,
            e.closed_at, NOT {UNHELD} AS held, i.status, i.doubt,
            p.action = 'trigger' AND e.closed_at IS NULL AND (NOT {UNHELD} OR p.body ? 'keep')
                AND {_MAY_BE_KEPT} AS keep,
            (SELECT count(w.id) FROM outbox.switches s LEFT JOIN outbox.intents w
             ON w.status IN ('pending', 'retryable') AND w.settled_at IS NULL
             AND starts_with(w.gate, s.gate_prefix)
             WHERE s.holder = e.holder AND s.kind <> 'clock' GROUP BY s.holder) AS waiting,
            EXTRACT(EPOCH FROM outbox.clock() - i.created_at)::float8 AS age_s,
            EXTRACT(EPOCH FROM i.window_ends_at - outbox.clock())::float8 AS window_left_s,
            EXTRACT(EPOCH FROM outbox.clock())::bigint AS at_epoch_s
        """,
        {"id": page_id, "first": first, "hold_s": hold_s, "kept": list(kept)},
    )


def sent(tx: Transaction, page_id: int, *, pager: str, detail: str) -> None:
    """The target accepted the page. The target is kept: a resolve must go to the same one."""
    tx.run(
        "UPDATE outbox.pages SET state = 'sent', sent_at = outbox.clock(), pager = %(pager)s, "
        "detail = %(detail)s, claimed_until = NULL, "
        "body = body - 'tries' - 'round' - 'keep' WHERE id = %(id)s AND state = 'due'",
        {"id": page_id, "pager": pager, "detail": detail[:200]},
    )


def rests(tx: Transaction, dedup_key: str) -> None:
    """A target with a policy of its own was told to rest about this key while its trigger was to be
    tried again: whether it is shown stays open, and what comes after the hold has another key."""
    tx.run(
        "UPDATE outbox.pages SET state = 'dropped', detail = %(rested)s "
        "WHERE dedup_key = %(key)s AND action = 'trigger' AND state = 'due' "
        "AND claimed_until IS NULL",
        {"key": dedup_key, "rested": RESTED},
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


def repage(tx: Transaction, *, pager: str, after_s: float, silenced: bool) -> int:
    """Makes this target's triggers due again whose question is still open ``after_s`` after they
    were shown; those that a person has acknowledged or muted only where ``silenced``. For targets
    without a policy of their own, and for those that forget. Returns how many."""
    held = "" if silenced else f"AND {UNHELD}"
    return tx.run(
        f"UPDATE outbox.pages p SET {_TOLD_AGAIN} FROM outbox.escalations e "
        "WHERE e.id = p.escalation_id AND e.closed_at IS NULL "
        "AND p.body->>'reason' = ANY(e.reasons) "
        "AND p.state = 'sent' AND p.action = 'trigger' AND p.pager = %(pager)s "
        f"AND p.sent_at <= outbox.clock() - %(after_s)s * INTERVAL '1 second' {held}",
        {"pager": pager, "after_s": after_s},
    )


def keep(tx: Transaction, *, kept: Sequence[str], rest: Sequence[str], after_s: float) -> int:
    """The same for what may be shown at a target of ``kept``, which forgets, though it was sent to
    another in the end: one of ``rest``, which are not told again, or any while a person holds it.
    Only those of ``kept`` are to be told. Returns how many."""
    return tx.run(
        "UPDATE outbox.pages p SET state = 'due', due_at = outbox.clock(), attempts = 0, "
        "body = p.body || '{\"keep\": true}' FROM outbox.escalations e "
        "WHERE e.id = p.escalation_id AND e.closed_at IS NULL "
        "AND p.body->>'reason' = ANY(e.reasons) AND p.state = 'sent' AND p.action = 'trigger' "
        f"AND p.pager <> ALL(%(kept)s) AND {_MAY_BE_KEPT} "
        f"AND (p.pager = ANY(%(rest)s) OR NOT {UNHELD}) "
        "AND p.sent_at <= outbox.clock() - %(after_s)s * INTERVAL '1 second'",
        {"kept": list(kept), "rest": list(rest), "after_s": after_s},
    )


def tell_now(tx: Transaction, escalation_id: UUID, *, plain: Sequence[str]) -> int:
    """Makes the question's newest trigger due again at once, where it was sent to a target of
    ``plain``: one without a policy of its own, which tells a known key again. Returns how many."""
    return tx.run(
        f"UPDATE outbox.pages p SET {_TOLD_AGAIN} WHERE p.id = (SELECT max(t.id) "
        "FROM outbox.pages t WHERE t.escalation_id = %(id)s AND t.action = 'trigger' "
        "AND t.state IN ('due', 'sent')) AND p.state = 'sent' AND p.pager = ANY(%(plain)s)",
        {"id": escalation_id, "plain": list(plain)},
    )


def renew(tx: Transaction, *, pager: str, after_s: float) -> int:
    """Writes a new trigger for each question that this target was told to rest about (or may have
    been), where the acknowledgement or mute has ended here, ``after_s`` ago at the least, without
    an answer. Under a key of its own: the target's policy rests while the old key is acknowledged,
    and would tell nobody. Returns how many."""
    return tx.run(
        f"""
        WITH ended AS (
            SELECT DISTINCT ON (a.escalation_id, a.body->>'reason')
                a.escalation_id, a.body->>'reason' AS reason
            FROM outbox.escalations e JOIN outbox.pages a ON a.escalation_id = e.id
            WHERE e.closed_at IS NULL AND a.body->>'reason' = ANY(e.reasons)
            AND a.action = 'acknowledge' AND ((a.state = 'sent' AND a.pager = %(pager)s)
                OR (a.state = 'dropped' AND a.body->'maybe' ? %(pager)s))
            AND COALESCE(a.sent_at, a.due_at) <= outbox.clock() - %(after_s)s * INTERVAL '1 second'
            AND {UNHELD}
            AND NOT EXISTS (SELECT FROM outbox.pages t WHERE t.escalation_id = a.escalation_id
                AND t.action = 'trigger' AND t.body->>'reason' = a.body->>'reason'
                AND t.id > a.id)
        )
        INSERT INTO outbox.pages
            (escalation_id, pager, dedup_key, action, body, due_at, created_at)
        SELECT escalation_id, '', 'outbox:' || escalation_id || ':' || reason || ':' || (
                SELECT count(*) + 1 FROM outbox.pages t WHERE t.escalation_id = d.escalation_id
                AND t.action = 'trigger' AND t.body->>'reason' = d.reason),
            'trigger', jsonb_build_object('reason', reason, 'renewed', true),
            outbox.clock(), outbox.clock()
        FROM ended d ON CONFLICT DO NOTHING
        """,
        {"pager": pager, "after_s": after_s},
    )


def revive(tx: Transaction, *, named: Sequence[str], after_s: float) -> int:
    """Makes the newest trigger of a question that is still open due again where nobody can hear of
    it any more: there was no pager then, its group is gone, or it went, ``after_s`` ago at the
    least, to a target that is none of ``named`` (so that two processes with two settings do not
    tell each other's pages without end). Returns how many."""
    return tx.run(
        f"""
        UPDATE outbox.pages p SET state = 'due', due_at = outbox.clock(), attempts = 0,
            pager = '', sent_at = NULL, detail = '',
            body = CASE WHEN p.state = 'sent' THEN {_SHOWN_THERE} ELSE p.body END
        FROM outbox.escalations e
        WHERE e.id = p.escalation_id AND e.closed_at IS NULL
        AND p.action = 'trigger' AND p.body->>'reason' = ANY(e.reasons)
        AND ((p.state = 'dropped' AND p.detail = %(no_pager)s)
            OR (p.state = 'dropped' AND starts_with(p.detail, %(in_group)s) AND NOT EXISTS (
                SELECT FROM outbox.escalations h WHERE h.closed_at IS NULL
                AND h.holder = substr(p.detail, length(%(in_group)s) + 1)))
            OR (p.state = 'dropped' AND p.detail = %(rested)s
                AND NOT p.body->'maybe' ?| %(named)s)
            OR (p.state = 'sent' AND p.pager <> ALL(%(named)s)
                AND p.sent_at <= outbox.clock() - %(after_s)s * INTERVAL '1 second'))
        AND NOT EXISTS (SELECT FROM outbox.pages t WHERE t.escalation_id = p.escalation_id
            AND t.action = 'trigger' AND t.body->>'reason' = p.body->>'reason' AND t.id > p.id)
        """,
        {
            "named": list(named),
            "after_s": after_s,
            "no_pager": NO_PAGER,
            "in_group": IN_GROUP,
            "rested": RESTED,
        },
    )

"""Long lists for the command line: filtered, and read page by page from where the last one ended.

Only the conditions that were asked for are in the statement, so that the partial indexes over
unsettled rows and open escalations are found; nothing that may be personal is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from outbox.states import UNSETTLED
from outbox.store.connection import Transaction

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_INTENT_FILTERS: Mapping[str, LiteralString] = {
    "status": "i.status = ANY(%(status)s)",
    "vendor": "i.vendor = %(vendor)s",
    "account": "i.account = %(account)s",
    "tool": "i.tool = %(tool)s",
    "tenant": "i.tenant = %(tenant)s",
    "run_id": "i.run_id = %(run_id)s",
    "older_s": "i.created_at <= outbox.clock() - %(older_s)s * INTERVAL '1 second'",
    "newer_s": "i.created_at >= outbox.clock() - %(newer_s)s * INTERVAL '1 second'",
    "after": "i.seq < %(after)s",
}
# The rows of a run are in two indexes, each in one: told, or an intended repeat, or neither.
_OF_A_RUN: LiteralString = (
    "((i.told_at IS NULL AND i.occurrence = 0 AND i.supersedes IS NULL) "
    "OR i.told_at IS NOT NULL OR i.occurrence <> 0 OR i.supersedes IS NOT NULL)"
)
_IS_ASKED: LiteralString = (
    "EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id AND e.closed_at IS NULL)"
)


def intents(
    tx: Transaction, *, limit: int, escalated: bool | None = None, **filters: Any
) -> list[dict[str, Any]]:
    """Newest first. Filters: status (a list), vendor, account, tool, tenant, run_id, older_s,
    newer_s, and ``after``, the seq of the last row of the page before; None: not asked for.
    ``escalated``: only those with (False: without) an open escalation."""
    asked = {name: value for name, value in filters.items() if value is not None}
    where = [_INTENT_FILTERS[name] for name in asked]
    # What the statuses say already, in the words of the partial indexes.
    if asked.get("status") and UNSETTLED.issuperset(asked["status"]):
        where.append("i.settled_at IS NULL")
    if "run_id" in asked:
        where.append(_OF_A_RUN)
    if escalated is not None:
        where.append(_IS_ASKED if escalated else f"NOT {_IS_ASKED}")
    return tx.all(
        f"""
        SELECT i.seq, i.id, i.status, i.tool, i.tenant, i.vendor, i.account, i.amount_minor,
            i.currency, i.doubt, i.contradicted_at, i.receipt_id, i.run_id, i.version,
            EXTRACT(EPOCH FROM outbox.clock() - i.created_at)::float8 AS age_s
        FROM outbox.intents i WHERE {_all_of(where)} ORDER BY i.seq DESC LIMIT %(limit)s
        """,
        {**asked, "limit": limit},
    )


_ESCALATION_FILTERS: Mapping[str, LiteralString] = {
    "reasons": "e.reasons && %(reasons)s",
    "vendor": "COALESCE(i.vendor, e.detail->>'vendor') = %(vendor)s",
    "account": "COALESCE(i.account, e.detail->>'account') = %(account)s",
    "tool": "i.tool = %(tool)s",
    "tenant": "i.tenant = %(tenant)s",
}
_ACKED: LiteralString = "COALESCE(e.acked_until > outbox.clock(), false)"
_MUTED: LiteralString = "COALESCE(e.muted_until > outbox.clock(), false)"
# Open before closed; then by the window that ends first, and those without one last.
_ORDER: LiteralString = (
    "e.closed_at IS NOT NULL, COALESCE(i.window_ends_at, 'infinity'), e.opened_at, e.id"
)


def escalations(
    tx: Transaction,
    *,
    limit: int,
    everything: bool = False,
    acked: bool | None = None,
    muted: bool | None = None,
    after: str | None = None,
    **filters: Any,
) -> list[dict[str, Any]]:
    """Open escalations, the one whose window ends first on top; with ``everything`` closed ones
    behind them. Filters: reasons (a list: any of them), vendor, account, tool, tenant. ``after``
    is the ``place`` of the last row of the page before."""
    asked = {name: value for name, value in filters.items() if value is not None}
    where = [_ESCALATION_FILTERS[name] for name in asked]
    if not everything:
        # In the words of the two partial indexes, one for intents and one for holders.
        where.append("e.closed_at IS NULL AND (e.intent_id IS NOT NULL OR e.holder IS NOT NULL)")
    for flag, condition in ((acked, _ACKED), (muted, _MUTED)):
        if flag is not None:
            where.append(condition if flag else f"NOT {condition}")
    if after is not None:
        where.append(
            f"({_ORDER}) > (%(closed)s, COALESCE(%(window)s::timestamptz, 'infinity'), "
            "%(opened)s::timestamptz, %(id)s)"
        )
        asked |= _told_place(after)
    rows = tx.all(
        f"""
        SELECT e.*, i.tenant, i.tool, i.vendor, i.account, i.status, i.doubt, i.amount_minor,
            i.currency, i.window_ends_at, i.ttl_at, i.created_at, i.version,
            {_ACKED} AS acked, {_MUTED} AS muted,
            EXTRACT(EPOCH FROM i.window_ends_at - outbox.clock())::float8 AS window_left_s,
            EXTRACT(EPOCH FROM outbox.clock() - e.opened_at)::float8 AS open_s
        FROM outbox.escalations e LEFT JOIN outbox.intents i ON i.id = e.intent_id
        WHERE {_all_of(where)} ORDER BY {_ORDER} LIMIT %(limit)s
        """,
        {**asked, "limit": limit},
    )
    return [{**row, "place": _place(row)} for row in rows]


def _all_of(where: list[LiteralString]) -> LiteralString:
    return " AND ".join(where) if where else "true"


def _place(row: Mapping[str, Any]) -> str:
    """Where a row stands in the list, as text: a page goes on behind it even if it has been closed
    or has moved since."""
    closed = int(row["closed_at"] is not None)
    window = row["window_ends_at"]
    ends = "never" if window is None else _micros(window)
    return f"{closed}.{ends}.{_micros(row['opened_at'])}.{row['id'].hex}"


def _told_place(place: str) -> dict[str, Any]:
    closed, ends, opened, digits = place.split(".")
    return {
        "closed": closed == "1",
        "window": None if ends == "never" else _moment(ends),
        "opened": _moment(opened),
        "id": UUID(digits),
    }


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _moment(micros: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(micros))


def suggestions(tx: Transaction, what: str, prefix: str, limit: int) -> list[tuple[str, str]]:
    """Values that begin with ``prefix`` and a word about each, for a shell to offer: ids of open
    questions (``escalation``) or of intents (without a prefix: unsettled ones), and the
    ``vendor``, ``account`` (VENDOR/NAME), ``tenant`` or ``tool`` of what is unsettled."""
    digits = prefix.replace("-", "").lower()
    given: dict[str, Any] = {"prefix": prefix, "limit": limit}
    if what in ("escalation", "intent"):
        if len(digits) > 32 or set(digits) - set("0123456789abcdef"):
            return []
        given |= {"low": UUID(digits.ljust(32, "0")), "high": UUID(digits.ljust(32, "f"))}
    rows = tx.all(_SUGGESTED[what], given)
    return [(str(row["value"]), str(row["about"] or "")) for row in rows]


_UNSETTLED_BY: LiteralString = """
    SELECT {0} AS value, count(*) || ' unsettled' AS about FROM outbox.intents i
    WHERE i.settled_at IS NULL AND starts_with({0}, %(prefix)s)
    GROUP BY 1 ORDER BY 1 LIMIT %(limit)s
"""
_SUGGESTED: Mapping[str, LiteralString] = {
    "escalation": """
        SELECT e.id AS value, concat_ws(' ', array_to_string(e.reasons, '+'), i.tool, i.tenant,
            e.holder) AS about
        FROM outbox.escalations e LEFT JOIN outbox.intents i ON i.id = e.intent_id
        WHERE e.closed_at IS NULL AND (e.intent_id IS NOT NULL OR e.holder IS NOT NULL)
        AND e.id BETWEEN %(low)s AND %(high)s ORDER BY e.opened_at DESC LIMIT %(limit)s
    """,
    "intent": """
        SELECT i.id AS value, concat_ws(' ', i.status, i.tool, i.tenant) AS about
        FROM outbox.intents i WHERE i.id BETWEEN %(low)s AND %(high)s
        AND (i.settled_at IS NULL OR %(prefix)s <> '') ORDER BY i.seq DESC LIMIT %(limit)s
    """,
    "vendor": _UNSETTLED_BY.format("i.vendor"),
    "account": _UNSETTLED_BY.format("i.vendor || '/' || i.account"),
    "tenant": _UNSETTLED_BY.format("i.tenant"),
    "tool": _UNSETTLED_BY.format("i.tool"),
}

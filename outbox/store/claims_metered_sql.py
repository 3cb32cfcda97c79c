"""The claim's statements for accounts with a rate: no more rows than their buckets hold tokens for,
which are taken in the same statement.

The buckets are locked first, so that one claim at a time counts an account's tokens; another claim
does not wait for it and takes other accounts' rows meanwhile. That is also why rows may be chosen
before they are locked: nobody else chooses of this account.
"""

from __future__ import annotations

from typing import LiteralString

from outbox.store import claims_sql, rates
from outbox.store.claims_sql import IS_FREE, MAY, ROW_MAY, claim, walk
from outbox.store.lanes import head_of

_LEFT: LiteralString = rates.left("k.rate", "k.burst")
_KNOWN: LiteralString = """
known AS (
    SELECT * FROM jsonb_to_recordset(%(known)s) AS k (
        vendor text, account text, prefix text, mode text, vendor_account text, window_s float8,
        operations jsonb, rate float8, burst float8)
)"""
# An account whose bucket is empty, or in another claim's hands, is closed to this one.
_METER: LiteralString = f""", meter AS (
    SELECT k.prefix, floor({_LEFT} + {rates.SLACK})::int AS tokens
    FROM outbox.rates r JOIN known k ON k.prefix = r.gate_prefix
    WHERE {_LEFT} >= {1 - rates.SLACK}
    ORDER BY r.gate_prefix FOR UPDATE OF r SKIP LOCKED
)"""
_WITHOUT_TOKENS: LiteralString = (
    "SELECT k.prefix FROM known k WHERE NOT EXISTS (SELECT FROM meter m WHERE m.prefix = k.prefix)"
)

# One of each tenant before the second of any, of its gates or lanes in turn, and which comes first
# is left to chance: no tenant's backlog may have all tokens, however few there are at a time, and
# however many tools or lanes it has.
_GATES: LiteralString = f"""{walk("gate", claims_sql.READY)}
, open_gates AS (
    SELECT w.place AS gate, k.*, m.tokens, count(*) OVER (PARTITION BY k.prefix) AS gates
    FROM walk w JOIN known k ON starts_with(w.place, k.prefix) JOIN meter m ON m.prefix = k.prefix
    WHERE w.place IS NOT NULL
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(w.place, c.gate_prefix))
), waiting AS (
    SELECT t.id, t.tokens,
        row_number() OVER (PARTITION BY t.prefix ORDER BY t.turn, random()) AS place
    FROM (SELECT r.id, k.tokens, k.prefix,
        row_number() OVER (PARTITION BY k.prefix, r.tenant ORDER BY r.turn, random()) AS turn
    FROM open_gates k CROSS JOIN LATERAL (
        SELECT i.id, i.tenant, row_number() OVER (ORDER BY i.due_at, i.seq) AS turn
        FROM outbox.intents i
        WHERE i.status IN ('pending', 'retryable') AND i.lane IS NULL AND i.crashes = 0
        AND i.gate = k.gate AND i.due_at <= outbox.clock() AND {ROW_MAY} AND {IS_FREE}
        ORDER BY i.due_at, i.seq LIMIT k.tokens / k.gates + 1) r) t
)"""
_LANES: LiteralString = f"""{walk("lane", claims_sql.LANED)}
, heads AS (
    SELECT {head_of("w.place")} AS id FROM walk w WHERE w.place IS NOT NULL
), waiting AS (
    SELECT t.id, t.tokens,
        row_number() OVER (PARTITION BY t.prefix ORDER BY t.turn, random()) AS place
    FROM (SELECT i.id, m.tokens, k.prefix,
        row_number() OVER (PARTITION BY k.prefix, i.tenant ORDER BY random()) AS turn
    FROM outbox.intents i JOIN heads USING (id), known k JOIN meter m ON m.prefix = k.prefix
    WHERE i.status IN ('pending', 'retryable') AND i.crashes = 0 AND i.due_at <= outbox.clock()
    AND {MAY} AND {IS_FREE}) t
)"""
_CHOSEN: LiteralString = """
, locked AS (
    SELECT i.id, i.gate FROM outbox.intents i JOIN waiting w USING (id)
    WHERE w.place <= w.tokens
    AND i.status IN ('pending', 'retryable') AND i.due_at <= outbox.clock()
    LIMIT %(limit)s
    FOR UPDATE OF i SKIP LOCKED
)"""

_PAID: LiteralString = f"""
, paid AS (
    SELECT k.prefix, count(*) AS n FROM taken t
    JOIN known k ON k.vendor = t.vendor AND k.account = t.account GROUP BY k.prefix
), spent AS (
    UPDATE outbox.rates r SET {rates.taken("p.n", "k.rate", "k.burst")}
    FROM paid p JOIN known k ON k.prefix = p.prefix WHERE r.gate_prefix = p.prefix
)"""
# Beside where the walk stopped: how soon a claim may find tokens again, half a bucket of them where
# that is more than one, or no bucket in another's hands. None: there are some now.
_STOPPED: LiteralString = f"""{_PAID}
SELECT taken.*, s.place AS stopped_at, s.token_in_s
FROM (SELECT (SELECT place FROM walk ORDER BY step DESC LIMIT 1) AS place,
    (SELECT min(CASE
            WHEN {_LEFT} - COALESCE(p.n, 0) < {1 - rates.SLACK}
            THEN {rates.HELD_S} + (GREATEST(k.burst / 2, 1) - {_LEFT} + COALESCE(p.n, 0)) / k.rate
            WHEN m.prefix IS NULL THEN 0.05 END)::float8
     FROM known k JOIN outbox.rates r ON r.gate_prefix = k.prefix
     LEFT JOIN meter m ON m.prefix = k.prefix LEFT JOIN paid p ON p.prefix = k.prefix)
    AS token_in_s) s
LEFT JOIN taken ON true"""
_ALONE_END: LiteralString = f"""{_PAID}
SELECT taken.*, NULL AS stopped_at FROM taken"""


def _metered(rows: LiteralString, end: LiteralString, *, probing: bool) -> LiteralString:
    return claim(f"{_KNOWN}{_METER}", rows, end, probing=probing, also_closed=_WITHOUT_TOKENS)


BATCH = {p: _metered(f"{_GATES}{_CHOSEN}", _STOPPED, probing=p) for p in (False, True)}
LANE_BATCH = {p: _metered(f"{_LANES}{_CHOSEN}", _STOPPED, probing=p) for p in (False, True)}
SOLO = {p: _metered(claims_sql.ALONE, _ALONE_END, probing=p) for p in (False, True)}

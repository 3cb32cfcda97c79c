"""The claim: one committed statement that hands a batch of due rows to one consumer.

By gate (vendor, account, tool, tenant), so that a closed gate with 100,000 due rows is skipped
and not scanned. Every veto is repeated in the UPDATE's own predicate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg import errors
from psycopg.types.json import Jsonb

from outbox.codec import readable
from outbox.contract import Account
from outbox.errors import Busy, Unreachable
from outbox.fingerprint import RULES
from outbox.intent import gate_prefix
from outbox.store.connection import Store
from outbox.store.held import IS_HELD
from outbox.store.intents import COLUMNS_OF_I, Intent, as_intent
from outbox.store.lanes import head_of


@dataclass(frozen=True, slots=True)
class Sendable:
    """One account this process can send for: its identity, its vendor's usable window (seconds
    from the first send; None where no key is honoured) and the operations it knows."""

    vendor: str
    account: Account
    window_s: float | None
    operations: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The row of the claim's ``known`` relation."""
        return {
            "vendor": self.vendor,
            "account": self.account.name,
            "prefix": gate_prefix(self.vendor, self.account.name),
            "mode": self.account.mode,
            "vendor_account": self.account.vendor_account,
            "window_s": self.window_s,
            "operations": list(self.operations),
        }


# Which rows may be claimed at all. Repeated in the UPDATE, on the row as it is once it is locked.
# Whether a row is held is of another row, and asked once.
_ROW_MAY = """
    k.vendor = i.vendor AND k.account = i.account
    AND i.veto IS NULL AND i.contradicted_at IS NULL
    AND i.fingerprint_version = ANY(%(fingerprint_versions)s)
    AND k.operations ? i.operation
    AND i.request_codec = ANY(%(codecs)s)
    AND (i.mode IS NULL OR i.mode = k.mode)
    AND (i.vendor_account IS NULL OR i.vendor_account = k.vendor_account)
    AND (i.status = 'pending' OR i.window_ends_at > outbox.clock()
         OR (k.window_s IS NULL AND i.doubt = 0))
    AND NOT (i.status = 'pending' AND i.once_per = 'epoch' AND i.side_effect <> 'compensation'
         AND EXISTS (SELECT FROM outbox.epochs e WHERE e.tenant = i.tenant
                     AND e.run_id = i.run_id AND e.epoch <> i.epoch AND e.ended_at IS NULL))
    AND NOT ((i.status = 'retryable' OR k.window_s IS NULL)
         AND EXISTS (SELECT FROM outbox.switches WHERE kind = 'clock'))"""
_MAY = f"""{_ROW_MAY}
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(i.gate, c.gate_prefix))"""

_KNOWN = """
known AS (
    SELECT * FROM jsonb_to_recordset(%(known)s) AS k (
        vendor text, account text, prefix text, mode text, vendor_account text, window_s float8,
        operations jsonb)
)"""

# Every switch but the clock's closes its gates.
_CLOSED = """, probing AS (SELECT ''::text AS holder, ''::text AS gate_prefix WHERE false)
, closed AS (SELECT gate_prefix FROM outbox.switches WHERE kind <> 'clock')"""

# A breaker that is due for its probe lets one row through.
# Locked and not yet written: a claim that finds nothing to send must not use the probe up.
_PROBING = """, probing AS (
    SELECT holder, gate_prefix FROM outbox.switches
    WHERE kind = 'breaker' AND probe_at <= outbox.clock() FOR UPDATE SKIP LOCKED
), closed AS (
    SELECT gate_prefix FROM outbox.switches s
    WHERE kind <> 'clock'
    AND NOT EXISTS (SELECT FROM probing p WHERE p.holder = s.holder)
)"""

# Past a gate or a lane whose account is closed or not known here, all of that account's are
# skipped at once: they begin with its prefix, and "0" is what sorts after the "/" that ends one.
_PAST = """(COALESCE(
        (SELECT left(min(c.gate_prefix), -1) || '0' FROM closed c
         WHERE starts_with(w.place, c.gate_prefix)),
        CASE WHEN EXISTS (SELECT FROM known k WHERE starts_with(w.place, k.prefix)) THEN w.place
             ELSE split_part(w.place, '/', 1) || '/' || split_part(w.place, '/', 2) || '0' END
    ) COLLATE "C")"""


def _walk(column: LiteralString, rows: LiteralString) -> LiteralString:
    """Distinct gates or lanes by a skip scan from a cursor, so many steps at the most: a backlog
    costs one probe a gate, one of a closed or unknown account a single one."""
    return f"""
, walk AS (
    (SELECT {column} AS place, 1 AS step FROM outbox.intents WHERE {rows}
     AND {column} > %(cursor)s ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT i.{column} FROM outbox.intents i WHERE {rows} AND i.{column} > w.past
            ORDER BY i.{column} LIMIT 1), w.step + 1
    FROM (SELECT w.step, {_PAST} AS past FROM walk w
          WHERE w.place IS NOT NULL AND w.step < %(steps)s) w
)"""


# Inside a gate nothing is joined: a join would read and sort all of the backlog for each batch,
# where the index hands out the first rows in order.
_GATES = f"""{_walk("gate", "status IN ('pending', 'retryable') AND lane IS NULL AND crashes = 0")}
, open_gates AS (
    SELECT w.place AS gate, k.*,
        EXISTS (SELECT FROM probing p WHERE starts_with(w.place, p.gate_prefix)) AS probe
    FROM walk w JOIN known k ON starts_with(w.place, k.prefix) WHERE w.place IS NOT NULL
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(w.place, c.gate_prefix))
), locked AS (
    SELECT r.id, r.gate FROM open_gates k CROSS JOIN LATERAL (
        SELECT i.id, i.gate FROM outbox.intents i
        WHERE i.status IN ('pending', 'retryable') AND i.lane IS NULL AND i.crashes = 0
        AND i.gate = k.gate AND i.due_at <= outbox.clock() AND {_ROW_MAY} AND NOT {IS_HELD}
        ORDER BY i.due_at, i.seq LIMIT CASE WHEN k.probe THEN 1 ELSE %(limit)s END
        FOR UPDATE OF i SKIP LOCKED) r
    LIMIT %(limit)s
)"""

# Of a lane its head: that very row is locked and tested, never the next one.
_LANES = f"""{_walk("lane", "lane IS NOT NULL AND settled_at IS NULL")}
, heads AS (
    SELECT {head_of("w.place")} AS id FROM walk w WHERE w.place IS NOT NULL
), locked AS (
    SELECT i.id, i.gate FROM outbox.intents i JOIN heads USING (id), known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes = 0 AND i.due_at <= outbox.clock()
    AND {_MAY} AND NOT {IS_HELD}
    LIMIT %(limit)s
    FOR UPDATE OF i SKIP LOCKED
)"""

_ALONE = f"""
, locked AS (
    SELECT i.id, i.gate FROM outbox.intents i, known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes > 0 AND i.due_at <= outbox.clock()
    AND (i.lane IS NULL OR i.id = {head_of("i.lane")})
    AND {_MAY} AND NOT {IS_HELD}
    ORDER BY i.due_at LIMIT 1
    FOR UPDATE OF i SKIP LOCKED
)"""

_TAKE = f"""
UPDATE outbox.intents i SET
    status = 'in_flight',
    version = i.version + 1,
    lease_token = gen_random_uuid(),
    lease_no = i.lease_no + 1,
    lease_until = outbox.clock() + %(lease_s)s * INTERVAL '1 second',
    lease_owner = %(owner)s,
    attempts = i.attempts + 1,
    mode = k.mode,
    vendor_account = NULLIF(k.vendor_account, ''),
    first_sent_at = COALESCE(i.first_sent_at, outbox.clock()),
    last_sent_at = outbox.clock(),
    window_ends_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.window_ends_at
        ELSE outbox.clock() + k.window_s * INTERVAL '1 second' END,
    ttl_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.ttl_at
        ELSE outbox.clock() + i.ttl_s * INTERVAL '1 second' END,
    escalate_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.escalate_at
        ELSE outbox.clock() + LEAST(i.ttl_s, k.window_s) * INTERVAL '1 second' END,
    absent_first_at = NULL,
    absent_last_at = NULL
FROM counted c, known k
WHERE i.id = c.id AND c.n = 1 AND i.status IN ('pending', 'retryable') AND {_MAY}
RETURNING {COLUMNS_OF_I}, c.holder AS probed
"""
_COUNTED = ", counted AS (SELECT id, NULL::text AS holder, 1 AS n FROM locked)"

# One row a probe, however many gates or lanes its account has.
_COUNTED_PROBES = """, counted AS (
    SELECT l.id, p.holder, CASE WHEN p.holder IS NULL THEN 1
        ELSE row_number() OVER (PARTITION BY p.holder ORDER BY l.id) END AS n
    FROM locked l LEFT JOIN probing p ON starts_with(l.gate, p.gate_prefix)
)"""
_USED = """, used AS (
    UPDATE outbox.switches s SET probe_at = outbox.clock() + probe_after_s * INTERVAL '1 second'
    WHERE s.kind = 'breaker' AND s.holder IN (SELECT probed FROM taken)
)"""
# Where the walk stopped (None: at the end), beside each row or alone.
_STOPPED = """
SELECT taken.*, s.place AS stopped_at
FROM (SELECT (SELECT place FROM walk ORDER BY step DESC LIMIT 1) AS place) s
LEFT JOIN taken ON true"""


def _claim(rows: LiteralString, end: LiteralString, *, probing: bool) -> LiteralString:
    """The statement that takes ``rows``. Without a breaker due it needs less planning, and it is
    planned each time."""
    if not probing:
        return f"WITH RECURSIVE {_KNOWN}{_CLOSED}{rows}{_COUNTED}, taken AS ({_TAKE}){end}"
    taken = f", taken AS ({_TAKE}){_USED}{end}"
    return f"WITH RECURSIVE {_KNOWN}{_PROBING}{rows}{_COUNTED_PROBES}{taken}"


_BATCH = {probing: _claim(_GATES, _STOPPED, probing=probing) for probing in (False, True)}
_LANE_BATCH = {probing: _claim(_LANES, _STOPPED, probing=probing) for probing in (False, True)}
_SOLO = {
    probing: _claim(_ALONE, " SELECT taken.*, NULL AS stopped_at FROM taken", probing=probing)
    for probing in (False, True)
}
# Asked first, because a claim is planned each time: where nothing waits, nothing is planned.
_AHEAD: LiteralString = """
SELECT EXISTS (SELECT FROM outbox.intents WHERE lane IS NOT NULL AND settled_at IS NULL) AS lanes,
    EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable') AND lane IS NULL
            AND crashes = 0) AS gates,
    EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable') AND crashes > 0
            AND due_at <= outbox.clock()) AS crashed,
    EXISTS (SELECT FROM outbox.switches WHERE kind = 'breaker' AND probe_at <= outbox.clock())
        AS probing
"""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What there is to claim, and whether a breaker is due for its probe."""

    lanes: bool
    gates: bool
    crashed: bool
    probing: bool


# How many gates or lanes one statement walks, and how long a claim goes on from one to the next.
_STEPS = 1000
_PATIENCE_S = 1.0


class Claimer:
    """Claims for one process. Remembers where its scans of gates and lanes stopped, so that no
    gate or lane starves behind those that sort before it. ``probes`` are the rows that a tripped
    breaker let through to see whether the vendor is back."""

    def __init__(
        self,
        store: Store,
        sendable: tuple[Sendable, ...],
        *,
        owner: str,
        lease_s: float,
        steps: int = _STEPS,
    ) -> None:
        self._store = store
        self._params = {
            "known": Jsonb([s.as_json() for s in sendable]),
            "lease_s": lease_s,
            "owner": owner,
            "fingerprint_versions": sorted(RULES),
            # A row whose key is missing here is left alone, as one of an operation not known.
            "codecs": readable(store.codec),
            "steps": steps,
        }
        self._gate = ""
        self._lane = ""
        self.probes: set[UUID] = set()

    def claim(self, limit: int) -> list[Intent]:
        """Up to ``limit`` due rows, leased in a commit for lanes and one for the rest; empty only
        after a whole scan, or one that took too long and goes on the next time. Raises
        ``Unreachable``; what was claimed before that is returned."""
        ahead = self._look_ahead()
        found: list[Intent] = []
        slow: Busy | None = None
        if ahead.lanes:
            try:
                found = self._claim_lanes(limit, probing=ahead.probing)
            except Busy as error:
                slow = error  # lanes that cannot be read in time hold up no row without one
        rows: list[Intent] = []
        try:
            if ahead.gates and len(found) < limit:
                rows = self._claim_gates(limit - len(found), probing=ahead.probing)
        except Unreachable:
            if not found:
                raise
        if slow is not None and not rows:
            raise slow
        return found + rows

    def claim_alone(self) -> list[Intent]:
        """At most one row that lost its worker before; its process must hold nothing else."""
        ahead = self._look_ahead()
        if not ahead.crashed:
            return []
        try:
            return self._run(_SOLO[ahead.probing], limit=1, cursor="")[0]
        except errors.UniqueViolation:
            return []  # the head of a lane that another claim took meanwhile

    def _look_ahead(self) -> _Ahead:
        with self._store.transaction() as tx:
            row = tx.one(_AHEAD)
        assert row is not None
        return _Ahead(**row)

    def _claim_gates(self, limit: int, *, probing: bool) -> list[Intent]:
        sql = _BATCH[probing]
        found, self._gate = self._scan(sql, limit, self._gate, lambda row: row.gate)
        return found

    def _claim_lanes(self, limit: int, *, probing: bool) -> list[Intent]:
        sql = _LANE_BATCH[probing]
        try:
            found, self._lane = self._scan(sql, limit, self._lane, lambda row: row.lane or "")
        except errors.UniqueViolation:
            # Another claim took a head between our read and our lock; lanes wait a round.
            return []
        return found

    def _scan(
        self, sql: LiteralString, limit: int, start: str, place: Callable[[Intent], str]
    ) -> tuple[list[Intent], str]:
        """Rows from ``start`` on, round to it again, and where the next scan shall begin."""
        give_up = time.monotonic() + _PATIENCE_S
        cursor, wrapped = start, not start
        while True:
            rows, stopped = self._run(sql, limit=limit, cursor=cursor)
            if rows:
                return rows, max(map(place, rows)) if len(rows) >= limit else stopped or ""
            if stopped is None and wrapped:
                return [], ""
            if wrapped and start and stopped is not None and stopped >= start:
                return [], stopped
            wrapped = wrapped or stopped is None
            cursor = stopped or ""
            if time.monotonic() > give_up:
                return [], cursor

    def _run(
        self, sql: LiteralString, *, limit: int, cursor: str
    ) -> tuple[list[Intent], str | None]:
        with self._store.transaction() as tx:
            seen = tx.all(sql, {**self._params, "limit": limit, "cursor": cursor})
        rows = [row for row in seen if row["id"] is not None]
        self.probes.update(row["id"] for row in rows if row["probed"])
        stopped = seen[0]["stopped_at"] if seen else None
        return [as_intent(row, self._store.codec) for row in rows], stopped

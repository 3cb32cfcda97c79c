"""The claim: one committed statement that hands a batch of due rows to one consumer.

By gate (vendor, account, tool, tenant), so that a closed gate with 100,000 due rows is skipped
and not scanned. Every veto is repeated in the UPDATE's own predicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg import errors
from psycopg.types.json import Jsonb

from outbox.contract import Account
from outbox.fingerprint import FINGERPRINT_VERSION
from outbox.intent import gate_prefix
from outbox.store.connection import Store
from outbox.store.intents import COLUMNS_OF_I, Intent, as_intent


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
_ROW_MAY = """
    k.vendor = i.vendor AND k.account = i.account
    AND i.veto IS NULL AND i.contradicted_at IS NULL
    AND i.fingerprint_version = %(fingerprint_version)s
    AND k.operations ? i.operation
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

# Distinct gates by a skip scan from a rotating cursor; a closed gate costs one probe, whatever its
# backlog. Inside a gate nothing is joined: a join would read and sort all of the backlog for each
# batch, where the index hands out the first rows in order.
_GATES = f"""
, gates AS (
    (SELECT gate FROM outbox.intents WHERE status IN ('pending', 'retryable') AND lane IS NULL
     AND crashes = 0 AND gate > %(cursor)s ORDER BY gate LIMIT 1)
    UNION ALL
    SELECT (SELECT i.gate FROM outbox.intents i WHERE i.status IN ('pending', 'retryable')
            AND i.lane IS NULL AND i.crashes = 0 AND i.gate > g.gate ORDER BY i.gate LIMIT 1)
    FROM gates g WHERE g.gate IS NOT NULL
), open_gates AS (
    SELECT g.gate, k.*,
        EXISTS (SELECT FROM probing p WHERE starts_with(g.gate, p.gate_prefix)) AS probe
    FROM gates g JOIN known k ON starts_with(g.gate, k.prefix) WHERE g.gate IS NOT NULL
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(g.gate, c.gate_prefix))
), locked AS (
    SELECT r.id, r.gate FROM open_gates k CROSS JOIN LATERAL (
        SELECT i.id, i.gate FROM outbox.intents i
        WHERE i.status IN ('pending', 'retryable') AND i.lane IS NULL AND i.crashes = 0
        AND i.gate = k.gate AND i.due_at <= outbox.clock() AND {_ROW_MAY}
        ORDER BY i.due_at, i.seq LIMIT CASE WHEN k.probe THEN 1 ELSE %(limit)s END
        FOR UPDATE OF i SKIP LOCKED) r
    LIMIT %(limit)s
)"""

# Of a lane the oldest unsettled row, whatever its status: that very row is locked and tested, never
# the next one. Only a row whose tool said so lets others pass while it is in doubt, and where a
# tool that did not say so shares the lane, that one's doubt is settled first. A range: an equality
# would let the planner walk the rows of all lanes by seq alone.
_HEAD = """(
    SELECT h.id FROM outbox.intents h
    WHERE h.lane >= {lane} AND h.lane <= {lane} AND h.settled_at IS NULL
    AND NOT (h.on_doubt = 'continue' AND (h.status IN ('unknown', 'awaiting_approval')
             OR (h.status = 'retryable' AND (h.due_at > outbox.clock() OR EXISTS (
                 SELECT FROM outbox.intents held WHERE held.lane = h.lane
                 AND held.on_doubt = 'hold' AND held.status IN ('unknown', 'retryable'))))))
    ORDER BY h.lane, h.seq LIMIT 1)"""

# What the unique index on lanes demands. A row that was enqueued before another and committed
# after it becomes the head of a lane that is taken: it waits, and no other lane waits with it.
_LANE_IS_FREE = """NOT EXISTS (
        SELECT FROM outbox.intents o WHERE o.lane = i.lane AND o.id <> i.id
        AND (o.status = 'in_flight'
             OR (o.status IN ('unknown', 'retryable') AND o.on_doubt = 'hold')))"""

_LANES = f"""
, lanes AS (
    (SELECT lane FROM outbox.intents WHERE lane IS NOT NULL AND settled_at IS NULL
     AND lane > %(cursor)s ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT i.lane FROM outbox.intents i WHERE i.lane IS NOT NULL AND i.settled_at IS NULL
            AND i.lane > l.lane ORDER BY i.lane LIMIT 1)
    FROM lanes l WHERE l.lane IS NOT NULL
), heads AS (
    SELECT {_HEAD.format(lane="l.lane")} AS id FROM lanes l WHERE l.lane IS NOT NULL
), locked AS (
    SELECT i.id, i.gate FROM outbox.intents i JOIN heads USING (id), known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes = 0 AND i.due_at <= outbox.clock()
    AND {_LANE_IS_FREE} AND {_MAY}
    LIMIT %(limit)s
    FOR UPDATE OF i SKIP LOCKED
)"""

_ALONE = f"""
, locked AS (
    SELECT i.id, i.gate FROM outbox.intents i, known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes > 0 AND i.due_at <= outbox.clock()
    AND (i.lane IS NULL OR (i.id = {_HEAD.format(lane="i.lane")} AND {_LANE_IS_FREE}))
    AND {_MAY}
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
)
SELECT * FROM taken"""


def _claim(rows: LiteralString, *, probing: bool) -> LiteralString:
    """The statement that takes ``rows``. Without a breaker due it needs less planning, and it is
    planned each time."""
    if not probing:
        return f"WITH RECURSIVE {_KNOWN}{_CLOSED}{rows}{_COUNTED}{_TAKE}"
    return f"WITH RECURSIVE {_KNOWN}{_PROBING}{rows}{_COUNTED_PROBES}, taken AS ({_TAKE}){_USED}"


_BATCH = {probing: _claim(_GATES, probing=probing) for probing in (False, True)}
_LANE_BATCH = {probing: _claim(_LANES, probing=probing) for probing in (False, True)}
_SOLO = {probing: _claim(_ALONE, probing=probing) for probing in (False, True)}
_AHEAD: LiteralString = (
    "SELECT EXISTS (SELECT FROM outbox.intents WHERE lane IS NOT NULL AND settled_at IS NULL) "
    "AS lanes, EXISTS (SELECT FROM outbox.switches WHERE kind = 'breaker' "
    "AND probe_at <= outbox.clock()) AS probing"
)


class Claimer:
    """Claims for one process. Remembers where its scans of gates and lanes stopped, so that no
    gate or lane starves behind those that sort before it. ``probes`` are the rows that a tripped
    breaker let through to see whether the vendor is back."""

    def __init__(
        self, store: Store, sendable: tuple[Sendable, ...], *, owner: str, lease_s: float
    ) -> None:
        self._store = store
        self._params = {
            "known": Jsonb([s.as_json() for s in sendable]),
            "lease_s": lease_s,
            "owner": owner,
            "fingerprint_version": FINGERPRINT_VERSION,
        }
        self._gate = ""
        self._lane = ""
        self.probes: set[UUID] = set()

    def claim(self, limit: int) -> list[Intent]:
        """Up to ``limit`` due rows, leased in one commit; empty only after a whole scan."""
        lanes, probing = self._look_ahead()
        found = self._claim_lanes(limit, probing=probing) if lanes else []
        if len(found) >= limit:
            return found
        sql, left = _BATCH[probing], limit - len(found)
        rows = self._run(sql, limit=left, cursor=self._gate)
        if not rows and self._gate:
            self._gate = ""  # wrap before saying that there is nothing
            rows = self._run(sql, limit=left, cursor="")
        if rows:
            self._gate = max(row.gate for row in rows)
        return found + rows

    def claim_alone(self) -> list[Intent]:
        """At most one row that lost its worker before; its process must hold nothing else."""
        _, probing = self._look_ahead()
        try:
            return self._run(_SOLO[probing], limit=1, cursor="")
        except errors.UniqueViolation:
            return []  # the head of a lane that another claim took meanwhile

    def _look_ahead(self) -> tuple[bool, bool]:
        """Whether there are lanes, and whether a breaker is due for its probe."""
        with self._store.transaction() as tx:
            row = tx.one(_AHEAD)
        assert row is not None
        return row["lanes"], row["probing"]

    def _claim_lanes(self, limit: int, *, probing: bool) -> list[Intent]:
        sql = _LANE_BATCH[probing]
        try:
            found = self._run(sql, limit=limit, cursor=self._lane)
            if not found and self._lane:
                self._lane = ""
                found = self._run(sql, limit=limit, cursor="")
        except errors.UniqueViolation:
            # Another claim took a head between our read and our lock; lanes wait a round.
            return []
        if found:
            self._lane = max(row.lane or "" for row in found)
        return found

    def _run(self, sql: LiteralString, *, limit: int, cursor: str) -> list[Intent]:
        with self._store.transaction() as tx:
            rows = tx.all(sql, {**self._params, "limit": limit, "cursor": cursor})
        self.probes.update(row["id"] for row in rows if row["probed"])
        return [as_intent(row) for row in rows]

"""The claim's statements: by gate, by lane, and one row alone. Each repeats every veto."""

from __future__ import annotations

from typing import LiteralString

from outbox.store import rates
from outbox.store.held import IS_HELD
from outbox.store.intents import COLUMNS_OF_I
from outbox.store.invariants import IS_SOUND
from outbox.store.lanes import head_of
from outbox.store.windows import end_of

# Which rows may be claimed at all. Repeated in the UPDATE, on the row as it is once it is locked.
# Whether a row is held is of another row, and asked once.
ROW_MAY = f"""
    k.vendor = i.vendor AND k.account = i.account
    AND i.veto IS NULL AND i.contradicted_at IS NULL
    AND i.fingerprint_version = ANY(%(fingerprint_versions)s)
    AND k.operations ->> i.operation = i.carries
    AND i.request_codec = ANY(%(codecs)s)
    AND (i.mode IS NULL OR i.mode = k.mode)
    AND (i.vendor_account IS NULL OR i.vendor_account = k.vendor_account)
    AND {IS_SOUND}
    AND (i.status = 'pending' OR {end_of("k.window_s")} > outbox.clock()
         OR (k.window_s IS NULL AND i.doubt = 0))
    AND NOT (i.status = 'pending' AND i.once_per = 'epoch' AND i.side_effect <> 'compensation'
         AND EXISTS (SELECT FROM outbox.epochs e WHERE e.tenant = i.tenant
                     AND e.run_id = i.run_id AND e.epoch <> i.epoch AND e.ended_at IS NULL))
    AND NOT ((i.status = 'retryable' OR k.window_s IS NULL)
         AND EXISTS (SELECT FROM outbox.switches WHERE kind = 'clock'))"""
MAY = f"""{ROW_MAY}
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(i.gate, c.gate_prefix))"""
IS_FREE = f"NOT {IS_HELD}"

_KNOWN = """
known AS (
    SELECT * FROM jsonb_to_recordset(%(known)s) AS k (
        vendor text, account text, prefix text, mode text, vendor_account text, window_s float8,
        operations jsonb)
)"""

# Every switch but the clock's closes its gates, and so does a vendor that asked to be left alone.
_LEFT_ALONE: LiteralString = (
    f" UNION ALL SELECT r.gate_prefix FROM outbox.rates r WHERE {rates.HELD}"
)
_CLOSED = f""", probing AS (SELECT ''::text AS holder, ''::text AS gate_prefix WHERE false)
, closed AS (SELECT gate_prefix FROM outbox.switches WHERE kind <> 'clock'{_LEFT_ALONE}"""

# A breaker that is due for its probe lets one row through.
# Locked and not yet written: a claim that finds nothing to send must not use the probe up.
_PROBING = f""", probing AS (
    SELECT holder, gate_prefix FROM outbox.switches
    WHERE kind = 'breaker' AND probe_at <= outbox.clock() FOR UPDATE SKIP LOCKED
), closed AS (
    SELECT gate_prefix FROM outbox.switches s
    WHERE kind <> 'clock'
    AND NOT EXISTS (SELECT FROM probing p WHERE p.holder = s.holder){_LEFT_ALONE}"""

# Past a gate or a lane whose account is closed or not known here, all of that account's are
# skipped at once: they begin with its prefix, and "0" is what sorts after the "/" that ends one.
_PAST = """(COALESCE(
        (SELECT left(min(c.gate_prefix), -1) || '0' FROM closed c
         WHERE starts_with(w.place, c.gate_prefix)),
        CASE WHEN EXISTS (SELECT FROM known k WHERE starts_with(w.place, k.prefix)) THEN w.place
             ELSE split_part(w.place, '/', 1) || '/' || split_part(w.place, '/', 2) || '0' END
    ) COLLATE "C")"""


def walk(column: LiteralString, rows: LiteralString) -> LiteralString:
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


READY = "status IN ('pending', 'retryable') AND lane IS NULL AND crashes = 0"
# Above the low-water mark: below it lie the entries of rows that were claimed. As long as an old
# snapshot of somebody's might see them, no vacuum and no scan may remove them.
_ABOVE_MARK = f"{READY} AND due_at >= %(mark)s::timestamptz"
LANED = "lane IS NOT NULL AND settled_at IS NULL"

# Inside a gate nothing is joined: a join would read and sort all of the backlog for each batch,
# where the index hands out the first rows in order.
_GATES = f"""{walk("gate", _ABOVE_MARK)}
, open_gates AS (
    SELECT w.place AS gate, k.*,
        EXISTS (SELECT FROM probing p WHERE starts_with(w.place, p.gate_prefix)) AS probe
    FROM walk w JOIN known k ON starts_with(w.place, k.prefix) WHERE w.place IS NOT NULL
    AND NOT EXISTS (SELECT FROM closed c WHERE starts_with(w.place, c.gate_prefix))
), locked AS (
    SELECT r.id, r.gate FROM open_gates k CROSS JOIN LATERAL (
        SELECT i.id, i.gate FROM outbox.intents i
        WHERE i.status IN ('pending', 'retryable') AND i.lane IS NULL AND i.crashes = 0
        AND i.gate = k.gate AND i.due_at <= outbox.clock() AND i.due_at >= %(mark)s::timestamptz
        AND {ROW_MAY} AND {IS_FREE}
        ORDER BY i.due_at, i.seq LIMIT CASE WHEN k.probe THEN 1 ELSE %(limit)s END
        FOR UPDATE OF i SKIP LOCKED) r
    LIMIT %(limit)s
)"""

# Of a lane its head: that very row is locked and tested, never the next one.
_LANES = f"""{walk("lane", LANED)}
, heads AS (
    SELECT {head_of("w.place")} AS id FROM walk w WHERE w.place IS NOT NULL
), locked AS (
    SELECT i.id, i.gate FROM outbox.intents i JOIN heads USING (id), known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes = 0 AND i.due_at <= outbox.clock()
    AND {MAY} AND {IS_FREE}
    LIMIT %(limit)s
    FOR UPDATE OF i SKIP LOCKED
)"""

ALONE = f"""
, locked AS (
    SELECT i.id, i.gate FROM outbox.intents i, known k
    WHERE i.status IN ('pending', 'retryable') AND i.crashes > 0 AND i.due_at <= outbox.clock()
    AND (i.lane IS NULL OR i.id = {head_of("i.lane")})
    AND {MAY} AND {IS_FREE}
    ORDER BY i.due_at LIMIT 1
    FOR UPDATE OF i SKIP LOCKED
)"""

# The status as an expression: no partial index may tempt the planner to look for the few rows among
# all that are due.
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
WHERE i.id = c.id AND c.n = 1 AND i.status || '' IN ('pending', 'retryable') AND {MAY}
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


def claim(
    known: LiteralString,
    rows: LiteralString,
    end: LiteralString,
    *,
    probing: bool,
    also_closed: LiteralString = "",
) -> LiteralString:
    """The statement that takes ``rows`` of the ``known`` accounts. Without a breaker due it needs
    less planning, and it is planned each time. ``also_closed`` selects the prefixes of accounts
    that are closed to this claim alone."""
    closed = f" UNION ALL {also_closed})" if also_closed else ")"
    if not probing:
        return f"{_chosen(known, closed, rows)}, taken AS ({_TAKE}){end}"
    taken = f", taken AS ({_TAKE}){_USED}{end}"
    return f"WITH RECURSIVE {known}{_PROBING}{closed}{rows}{_COUNTED_PROBES}{taken}"


def _chosen(known: LiteralString, closed: LiteralString, rows: LiteralString) -> LiteralString:
    return f"WITH RECURSIVE {known}{_CLOSED}{closed}{rows}{_COUNTED}"


_ALONE_END = " SELECT taken.*, NULL AS stopped_at FROM taken"
BATCH = {p: claim(_KNOWN, _GATES, _STOPPED, probing=p) for p in (False, True)}
# The same where no breaker is due, straight from the rows that were written: kept beside them first
# and read from there, they cost the server a sixth more. It tells nothing where it takes nothing.
DIRECT: LiteralString = f"""{_chosen(_KNOWN, ")", _GATES)}{_TAKE},
    (SELECT place FROM walk ORDER BY step DESC LIMIT 1) AS stopped_at"""
LANE_BATCH = {p: claim(_KNOWN, _LANES, _STOPPED, probing=p) for p in (False, True)}
SOLO = {p: claim(_KNOWN, ALONE, _ALONE_END, probing=p) for p in (False, True)}
# Asked first, because a claim is planned each time: where nothing waits, nothing is planned.
AHEAD: LiteralString = """
SELECT EXISTS (SELECT FROM outbox.intents WHERE lane IS NOT NULL AND settled_at IS NULL) AS lanes,
    EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable') AND lane IS NULL
            AND crashes = 0 AND due_at >= %(mark)s::timestamptz) AS gates,
    EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable') AND crashes > 0
            AND due_at <= outbox.clock()) AS crashed,
    EXISTS (SELECT FROM outbox.switches WHERE kind = 'breaker' AND probe_at <= outbox.clock())
        AS probing
"""

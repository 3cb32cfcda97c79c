"""Until when a second send under a key is safe: one definition for the claim and for what is taken
back, the same as ``resolvers.decide.window_end``."""

from __future__ import annotations

from typing import LiteralString


def end_of(window_s: LiteralString) -> LiteralString:
    """SQL for the end of the window of a row ``i``: as long as was promised when it was first sent,
    and no longer than ``window_s`` (NULL: no promise) allows now, for a window may have been
    corrected since. NULL where the row was sent under no promise."""
    return f"""(CASE WHEN i.window_ends_at IS NOT NULL THEN LEAST(i.window_ends_at,
        i.first_sent_at + COALESCE({window_s}, 0) * INTERVAL '1 second') END)"""


# Of approved re-sends ``i``: those that may no longer go out. ``windows``: by vendor, the seconds
# that hold now; of a vendor that is not in it only what the row says is known. What never left
# needs no key.
WITHDRAWN: LiteralString = f"""(
    CASE WHEN %(windows)s::jsonb ? i.vendor
        THEN CASE WHEN i.doubt > 0 OR %(windows)s::jsonb -> i.vendor <> 'null'
            THEN {end_of("(%(windows)s::jsonb ->> i.vendor)::float8")} END
        ELSE i.window_ends_at END <= outbox.clock()
    OR i.veto IS NOT NULL OR i.contradicted_at IS NOT NULL
    OR EXISTS (SELECT FROM outbox.switches s WHERE s.kind <> 'breaker'
               AND (s.kind = 'clock' OR starts_with(i.gate, s.gate_prefix)))
    OR EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id
               AND e.closed_at IS NULL AND e.acked_until > outbox.clock()))"""

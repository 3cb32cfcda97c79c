"""How much of an account's rate is left: one row for each (vendor, account) that has a limit,
shared by all workers.

A bucket holds ``burst`` tokens and gains ``rate_per_s`` of them a second; each request takes one.
Kept is how many it lacks and since when, so that nothing has to be added as time passes, and what
it lacks is gained back at whatever rate is set by then. Who takes has locked the row, or says in
the UPDATE itself that a token is there: two that read first and took then would spend it twice.
What was taken is never given back: a claim whose process died may have sent.

A vendor that asks to be left alone is, until ``held_until``, by everybody. A time that lies further
ahead than any can was written by a clock that has been set back since, and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString, Self

from psycopg.types.json import Jsonb

from outbox.contract import Account
from outbox.intent import gate_prefix
from outbox.store.connection import Transaction

# A token that is so nearly there counts as there: times are kept in microseconds.
SLACK = 0.001
# While sends wait, look-ups have one of so many requests for themselves.
_ONE_OF = 4
# No vendor's word holds for longer, and no two transactions' clocks are so far from each other.
_MOST_HELD = "INTERVAL '1 hour 1 minute'"
_APART = "INTERVAL '1 minute'"


class Held(Exception):
    """The vendor has asked to be left alone for so many seconds more."""


@dataclass(frozen=True, slots=True)
class Meter:
    """The limit of one (vendor, account): requests a second on the average, and how many at once.
    Within any ``t`` seconds no more than ``burst + rate_per_s * t`` requests are let go, and what
    look-ups have as their share beside them."""

    prefix: str
    rate_per_s: float
    burst: int

    @classmethod
    def of(cls, vendor: str, account: Account) -> Self | None:
        """The account's limit; None where it has none."""
        if account.rate_per_s is None:
            return None
        return cls(gate_prefix(vendor, account.name), account.rate_per_s, account.burst)

    def as_params(self) -> dict[str, Any]:
        """What the statements here are told of it."""
        return {
            "prefix": self.prefix,
            # What sorts after all that begins with it: "0" comes after the "/" that ends it.
            "end": f"{self.prefix[:-1]}0",
            "rate": self.rate_per_s,
            "burst": self.burst,
        }

    @property
    def kept_for_sends(self) -> int:
        """So many tokens of a full bucket look-ups leave to sends."""
        return self.burst // 2


# The vendor of row ``r`` has asked to be left alone.
HELD: LiteralString = (
    "COALESCE(r.held_until > outbox.clock() "
    f"AND r.held_until <= outbox.clock() + {_MOST_HELD}, false)"
)
# For how many seconds more the vendor is left alone.
HELD_S: LiteralString = (
    f"CASE WHEN {HELD} THEN EXTRACT(EPOCH FROM r.held_until - outbox.clock())::float8 ELSE 0 END"
)


def _missing(rate: LiteralString) -> LiteralString:
    return (
        f"CASE WHEN r.at > outbox.clock() + {_APART} THEN 0 ELSE GREATEST(r.missing - {rate} * "
        "GREATEST(EXTRACT(EPOCH FROM outbox.clock() - CASE WHEN r.held_until <= outbox.clock() "
        "THEN GREATEST(r.at, r.held_until) ELSE r.at END)::float8, 0), 0) END"
    )


def left(rate: LiteralString, burst: LiteralString) -> LiteralString:
    """SQL for the tokens in the bucket of row ``r``; below zero where it owes some, or is held."""
    return f"(CASE WHEN {HELD} THEN -1 ELSE {burst} - {_missing(rate)} END)"


def taken(count: LiteralString, rate: LiteralString, burst: LiteralString) -> LiteralString:
    """SQL for what is set of row ``r`` once so many more tokens were taken."""
    now = f"({_missing(rate)} + {count})"
    return (
        f"missing = {now}, at = outbox.clock(), "
        f"full_at = outbox.clock() + {now} / {rate} * INTERVAL '1 second', next_at = "
        f"outbox.clock() + GREATEST({now} - {burst} + 1, 0) / {rate} * INTERVAL '1 second'"
    )


_RATE, _BURST = "%(rate)s::float8", "%(burst)s::float8"
_LEFT: LiteralString = left(_RATE, _BURST)
_TAKEN: LiteralString = taken("%(count)s::float8", _RATE, _BURST)
# Whether look-ups may have one of their share, and how long it is then until the next.
_HAS_SHARE: LiteralString = (
    "COALESCE(r.look_at <= outbox.clock() "
    f"OR r.look_at > outbox.clock() + {_APART} + {_ONE_OF} / {_RATE} * INTERVAL '1 second', true)"
)
_SHARED: LiteralString = (
    f"look_at = outbox.clock() + %(one_of)s::float8 / {_RATE} * INTERVAL '1 second'"
)
# Whether anything of the account waits to be sent, in a lane or not: by an index each.
_SENDS_WAIT: LiteralString = """(EXISTS (SELECT FROM outbox.intents i
    WHERE i.status IN ('pending', 'retryable') AND i.lane IS NULL AND i.crashes = 0
    AND i.gate >= %(prefix)s AND i.gate < %(end)s)
OR EXISTS (SELECT FROM outbox.intents i
    WHERE i.status IN ('awaiting_approval', 'pending') AND i.lane IS NOT NULL
    AND i.lane >= %(prefix)s AND i.lane < %(end)s))"""


# Of the intent i: its account has a rate, and sends as that lets it. Something was taken just now,
# or nothing can be before the time that whoever took last has worked out.
SENDS_AS_IT_MAY: LiteralString = f"""EXISTS (SELECT FROM outbox.rates r
    WHERE starts_with(i.gate, r.gate_prefix) AND r.at <= outbox.clock() + {_APART}
    AND (r.at > outbox.clock() - {_APART} OR r.next_at > outbox.clock()))"""


def open_buckets(tx: Transaction, meters: list[Meter]) -> None:
    """Makes the rows that are not there yet: full buckets."""
    tx.run(
        "INSERT INTO outbox.rates (gate_prefix, full_at) "
        "SELECT p.prefix, outbox.clock() FROM jsonb_to_recordset(%(known)s) AS p (prefix text) "
        "ORDER BY p.prefix ON CONFLICT DO NOTHING",
        {"known": Jsonb([{"prefix": meter.prefix} for meter in meters])},
    )


def spare_for_looks(tx: Transaction, meter: Meter, *, at_least: int) -> int:
    """How many look-ups may be claimed, the row locked until the end of this transaction: what
    sends leave, which is the upper half of the bucket; ``at_least`` so many all the same where
    their share has one, owed by the bucket as long as it owes no other. 0 where another claim has
    the row in hand."""
    row = tx.one(
        f"SELECT {_LEFT} + {SLACK} AS tokens, {_HAS_SHARE} AS share FROM outbox.rates r "
        "WHERE r.gate_prefix = %(prefix)s FOR UPDATE SKIP LOCKED",
        meter.as_params(),
    )
    if row is None:
        return 0
    spare = int(row["tokens"] - meter.kept_for_sends) if row["tokens"] > 0 else 0
    return max(spare, at_least if row["tokens"] >= 0 and row["share"] else 0)


def spend(tx: Transaction, meter: Meter, count: int) -> None:
    """Takes tokens for look-ups; the row was locked when they were counted."""
    tx.run(
        f"UPDATE outbox.rates r SET {_TAKEN}, {_SHARED} WHERE r.gate_prefix = %(prefix)s",
        {**meter.as_params(), "count": count, "one_of": _ONE_OF},
    )


def take_one(tx: Transaction, meter: Meter, *, hurry: bool = False) -> float:
    """Takes a token for one more request of a look-up: of what sends leave, or of the share of
    look-ups (in a ``hurry``, of all that the rate gives), owed as above. 0: taken; else the seconds
    until there may be one. Raises ``Held`` where the vendor has asked to be left alone."""
    params = {
        **meter.as_params(),
        "count": 1,
        "kept": meter.kept_for_sends,
        "one_of": 1 if hurry else _ONE_OF,
    }
    needed = f"1 - {SLACK} + CASE WHEN {_SENDS_WAIT} THEN GREATEST(%(kept)s, 1) ELSE 0 END"
    if tx.run(
        f"UPDATE outbox.rates r SET {_TAKEN}, {_SHARED} WHERE r.gate_prefix = %(prefix)s "
        f"AND NOT {HELD} AND ({_LEFT} >= {needed} OR ({_HAS_SHARE} AND {_LEFT} >= -{SLACK}))",
        params,
    ):
        return 0.0
    row = tx.one(
        f"SELECT {HELD_S} AS held_s, {_LEFT} AS tokens, {needed} AS needed, "
        "EXTRACT(EPOCH FROM r.look_at - outbox.clock())::float8 AS share_s "
        "FROM outbox.rates r WHERE gate_prefix = %(prefix)s",
        params,
    )
    if row is None:
        return 0.0  # nobody has opened it yet, and nothing was taken from it
    if row["held_s"]:
        raise Held(row["held_s"])
    free_s = (float(row["needed"]) - float(row["tokens"])) / meter.rate_per_s
    share_s = max(row["share_s"] or 0.0, -float(row["tokens"]) / meter.rate_per_s)
    return max(min(free_s, share_s), SLACK)


def hold(tx: Transaction, prefix: str, seconds: float) -> None:
    """The vendor asked to be left alone for so long, and the account has no rate: nothing is sent
    for it until then."""
    until = "outbox.clock() + %(seconds)s::float8 * INTERVAL '1 second'"
    tx.run(
        "INSERT INTO outbox.rates AS r (gate_prefix, full_at, at, next_at, held_until) "
        f"VALUES (%(prefix)s, {until}, outbox.clock(), {until}, {until}) "
        "ON CONFLICT (gate_prefix) DO UPDATE SET full_at = EXCLUDED.full_at, at = EXCLUDED.at, "
        "next_at = EXCLUDED.next_at, held_until = EXCLUDED.held_until "
        f"WHERE NOT {HELD} OR r.held_until < EXCLUDED.held_until",
        {"prefix": prefix, "seconds": seconds},
    )


def push_back(tx: Transaction, meter: Meter, seconds: float) -> None:
    """The vendor asked to be left alone for so long: until then the bucket has no token, and then
    one, and no burst."""
    until = (
        f"GREATEST(CASE WHEN {HELD} THEN r.held_until END, "
        "outbox.clock() + %(seconds)s::float8 * INTERVAL '1 second')"
    )
    missing = f"GREATEST({_missing(_RATE)}, {_BURST} - 1)"
    tx.run(
        f"UPDATE outbox.rates r SET held_until = {until}, missing = {missing}, "
        f"at = outbox.clock(), next_at = {until}, "
        f"full_at = {until} + {missing} / {_RATE} * INTERVAL '1 second' "
        "WHERE r.gate_prefix = %(prefix)s",
        {**meter.as_params(), "seconds": seconds},
    )

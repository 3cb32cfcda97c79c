"""How much of an account's rate is left: one row for each (vendor, account) that has a limit,
shared by all workers.

A bucket holds ``burst`` tokens and gains ``rate_per_s`` of them a second; each request takes one.
Kept is the moment at which it is full again, so that nothing has to be added as time passes. Who
takes has locked the row, or says in the UPDATE itself that a token is there: two that read first
and took then would spend it twice. What was taken is never given back: a claim whose process died
may have sent.
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


@dataclass(frozen=True, slots=True)
class Meter:
    """The limit of one (vendor, account): requests a second on the average, and how many at once.
    Within any ``t`` seconds no more than ``burst + rate_per_s * t`` requests are let go, and one
    read beside them."""

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
        return {"prefix": self.prefix, "rate": self.rate_per_s, "burst": self.burst}

    @property
    def kept_for_sends(self) -> int:
        """So many tokens of a full bucket look-ups leave to sends."""
        return self.burst // 2


def left(rate: LiteralString, burst: LiteralString) -> LiteralString:
    """SQL for the tokens in the bucket of row ``r``; below zero where it owes some."""
    return (
        f"({burst} - GREATEST(EXTRACT(EPOCH FROM r.full_at - outbox.clock()), 0)::float8 * {rate})"
    )


def taken(count: LiteralString, rate: LiteralString) -> LiteralString:
    """SQL for ``full_at`` of row ``r`` once so many more tokens were taken."""
    return f"GREATEST(r.full_at, outbox.clock()) + {count} / {rate} * INTERVAL '1 second'"


_LEFT: LiteralString = left("%(rate)s::float8", "%(burst)s::float8")
_TAKEN: LiteralString = taken("%(count)s::float8", "%(rate)s::float8")


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
    sends leave, which is the upper half of the bucket; ``at_least`` so many all the same, owed by
    the bucket as long as it owes no other. 0 where another claim has the row in hand."""
    row = tx.one(
        f"SELECT {_LEFT} + {SLACK} AS tokens FROM outbox.rates r "
        "WHERE r.gate_prefix = %(prefix)s FOR UPDATE SKIP LOCKED",
        meter.as_params(),
    )
    if row is None:
        return 0
    spare = int(row["tokens"] - meter.kept_for_sends) if row["tokens"] > 0 else 0
    return max(spare, at_least if row["tokens"] >= 0 else 0)


def spend(tx: Transaction, meter: Meter, count: int) -> None:
    """Takes tokens; the row was locked when they were counted."""
    tx.run(
        f"UPDATE outbox.rates r SET full_at = {_TAKEN} WHERE r.gate_prefix = %(prefix)s",
        {**meter.as_params(), "count": count},
    )


def take_one(tx: Transaction, meter: Meter) -> float:
    """Takes a token where there is one; else the seconds until there is. 0: taken."""
    params = {**meter.as_params(), "count": 1}
    if tx.run(
        f"UPDATE outbox.rates r SET full_at = {_TAKEN} WHERE r.gate_prefix = %(prefix)s "
        f"AND {_LEFT} >= {1 - SLACK}",
        params,
    ):
        return 0.0
    row = tx.one(
        f"SELECT {_LEFT} AS tokens FROM outbox.rates r WHERE gate_prefix = %(prefix)s", params
    )
    if row is None:
        return 0.0  # nobody has opened it yet, and nothing was taken from it
    return max((1 - float(row["tokens"])) / meter.rate_per_s, SLACK)


def push_back(tx: Transaction, meter: Meter, seconds: float) -> None:
    """The vendor asked to be left alone for so long: until then the bucket has no token, and then
    one, and no burst."""
    tx.run(
        "UPDATE outbox.rates r SET full_at = GREATEST(r.full_at, outbox.clock() "
        "+ (%(seconds)s + (%(burst)s - 1) / %(rate)s::float8) * INTERVAL '1 second') "
        "WHERE r.gate_prefix = %(prefix)s",
        {**meter.as_params(), "seconds": seconds},
    )

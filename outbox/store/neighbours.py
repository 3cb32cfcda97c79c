"""Rows in doubt that one reading of a list looks up together, held, read and locked many at a
time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self, TypeVar
from uuid import UUID

from outbox.store.connection import Transaction
from outbox.store.doubt import DOUBTFUL
from outbox.store.intents import COLUMNS, Intent, as_intent

# What one statement holds or reads: a few tens of milliseconds, far from any time-out.
PIECE = 1_000


@dataclass(frozen=True, slots=True)
class Kin:
    """What rows must have in common to be looked for in one list."""

    vendor: str
    account: str
    operation: str
    api_version: str
    mode: str | None
    vendor_account: str | None

    @classmethod
    def of(cls, row: Intent) -> Self:
        """Of a row and of all its kin."""
        return cls(
            row.vendor, row.account, row.operation, row.api_version, row.mode, row.vendor_account
        )


@dataclass(frozen=True, slots=True)
class Held:
    """A row that this resolver holds, as far as it must be known before its list is read: an outage
    leaves many."""

    id: UUID
    key: bytes
    version: int
    created_at: datetime
    first_sent_at: datetime | None
    last_lease_end: datetime | None
    lease_until: datetime | None
    veto: str | None = None

    @classmethod
    def of(cls, row: Intent) -> Self:
        """A row that was read as a whole."""
        return cls(
            row.id,
            bytes(row.key),
            row.version,
            row.created_at,
            row.first_sent_at,
            row.last_lease_end,
            row.lease_until,
            row.veto,
        )


T = TypeVar("T")


def pieces(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The rows, so many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def claim(
    tx: Transaction,
    kin: Kin,
    *,
    created: tuple[datetime, datetime],
    token: UUID | None,
    hold_s: float,
    limit: int,
) -> list[Held]:
    """Kin that is due for a look too, recorded in that time, the oldest first; leased under
    ``token`` for ``hold_s``. No row that was never sent, or has a veto: nothing bounds when its
    object came."""
    rows = tx.all(
        f"""
        UPDATE outbox.intents i SET resolver_token = %(token)s,
            resolver_until = outbox.clock() + %(hold_s)s * INTERVAL '1 second'
        FROM (
            SELECT id FROM outbox.intents WHERE {DOUBTFUL} AND settled_at IS NULL
            AND vendor = %(vendor)s AND account = %(account)s
            AND created_at BETWEEN %(first)s AND %(last)s
            AND operation = %(operation)s AND api_version = %(api_version)s
            AND mode IS NOT DISTINCT FROM %(mode)s
            AND vendor_account IS NOT DISTINCT FROM %(vendor_account)s
            AND doubt > 0 AND veto IS NULL AND last_lease_end IS NOT NULL
            ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) d WHERE i.id = d.id RETURNING i.id, i.key, i.version, i.created_at, i.first_sent_at,
            i.last_lease_end, i.lease_until
        """,
        {
            "token": token,
            "hold_s": hold_s,
            "limit": limit,
            "first": created[0],
            "last": created[1],
            "vendor": kin.vendor,
            "account": kin.account,
            "operation": kin.operation,
            "api_version": kin.api_version,
            "mode": kin.mode,
            "vendor_account": kin.vendor_account,
        },
    )
    return [Held(**{**row, "key": bytes(row["key"])}) for row in rows]


def hold_on(tx: Transaction, ids: Sequence[UUID], token: UUID | None, hold_s: float) -> None:
    """The same rows for longer: those that nobody has moved since."""
    tx.run(
        "UPDATE outbox.intents SET resolver_until = outbox.clock() "
        "+ %(hold_s)s * INTERVAL '1 second' "
        "WHERE id = ANY(%(ids)s) AND resolver_token = %(token)s AND status = 'unknown'",
        {"ids": list(ids), "token": token, "hold_s": hold_s},
    )


def read(tx: Transaction, held: Sequence[Held]) -> list[Intent]:
    """The rows as a whole, but for those that were written since they were held."""
    return _as_held(_rows(tx, [one.id for one in held]), {o.id: o.version for o in held})


def lock(tx: Transaction, rows: Sequence[Intent]) -> list[Intent]:
    """The rows as they are now, locked until the transaction ends, in the order of their ids as all
    lock them; but for those that were written since they were read."""
    tx.run(
        "SELECT id FROM outbox.intents WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE",
        {"ids": [row.id for row in rows]},
    )
    found = _rows(tx, [row.id for row in rows])
    return _as_held(found, {row.id: row.version for row in rows})


def _rows(tx: Transaction, ids: list[UUID]) -> list[Intent]:
    rows = tx.all(
        f"SELECT {COLUMNS} FROM outbox.intents WHERE id = ANY(%(ids)s) ORDER BY created_at, id",
        {"ids": ids},
    )
    return [as_intent(row, tx.codec) for row in rows]


def _as_held(rows: list[Intent], versions: dict[UUID, int]) -> list[Intent]:
    return [row for row in rows if row.version == versions[row.id]]

"""The claim: one committed statement that hands a batch of due rows to one consumer.

By gate (vendor, account, tool, tenant), so that a closed gate with 100,000 due rows is skipped
and not scanned. Every veto is repeated in the UPDATE's own predicate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg import errors
from psycopg.types.json import Jsonb

from outbox.codec import readable
from outbox.errors import Busy, Unreachable
from outbox.fingerprint import RULES
from outbox.store import claims_metered_sql, claims_sql
from outbox.store.connection import Store
from outbox.store.intents import Intent, as_intent
from outbox.store.marks import Mark
from outbox.store.rates import open_buckets
from outbox.store.sendable import Sendable


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
_NO_MARK = "-infinity"
# A person may have taken the rows of rates away: an account without one is claimed for by nobody.
_OPEN_S = 60.0


class Claimer:
    """Claims for one process. ``probes`` are the rows that a tripped breaker let through to see
    whether the vendor is back. ``token_in_s`` is how soon an account that has a rate may be
    claimed for again, in seconds; None where the last claim found tokens for all that was due."""

    def __init__(
        self,
        store: Store,
        sendable: tuple[Sendable, ...],
        *,
        owner: str,
        lease_s: float,
        steps: int = _STEPS,
        probes: set[UUID] | None = None,
    ) -> None:
        self._store = store
        self.probes: set[UUID] = set() if probes is None else probes
        params = {
            "lease_s": lease_s,
            "owner": owner,
            "fingerprint_versions": sorted(RULES),
            # A row whose key is missing here is left alone, as one of an operation not known.
            "codecs": readable(store.codec),
            "steps": steps,
            "mark": _NO_MARK,
        }
        self._mark = Mark()
        self._meters = [meter for s in sendable if (meter := s.meter) is not None]
        self._open_until = 0.0
        # Apart, so that a rate costs the accounts without one nothing.
        parts = (
            (_FREE, [s for s in sendable if s.meter is None]),
            (_METERED, [s for s in sendable if s.meter is not None]),
        )
        self._parts = [
            _Part(store, how, params, those, self.probes) for how, those in parts if those
        ]
        self.token_in_s: float | None = None

    def claim(
        self, limit: int, *, without: frozenset[tuple[str, str]] = frozenset()
    ) -> list[Intent]:
        """Up to ``limit`` due rows, leased in a commit for lanes and one for the rest; none of the
        accounts ``without``, as (vendor, account). Empty only after a whole scan, or one that took
        too long and goes on the next time. Raises ``Unreachable``; what was claimed before that is
        returned."""
        # Accounts with a rate are claimed for a few rows at a time: they are looked at as a whole.
        mark = None if self._meters else self._mark.low()
        found, slow = self._claim_from(mark, limit, without)
        if not found and mark is not None:
            mark = None
            found, slow = self._claim_from(mark, limit, without)
        self._mark.took(found, whole=mark is None)
        waits = [part.token_in_s for part in self._parts if part.token_in_s is not None]
        self.token_in_s = min(waits, default=None)
        # A backlog of the one kind may fill each claim: the other kind goes first the next time.
        self._parts.reverse()
        if slow is not None and not found:
            raise slow
        return found

    def forget_mark(self) -> None:
        """The next claim looks at everything that may be due."""
        self._mark.forget()

    def _claim_from(
        self, mark: datetime | None, limit: int, without: frozenset[tuple[str, str]]
    ) -> tuple[list[Intent], Busy | None]:
        """Rows due at ``mark`` or later (None: all), and what could not be read in time."""
        ahead = self._look_ahead(mark)
        found: list[Intent] = []
        slow: Busy | None = None
        for part in self._parts:
            try:
                part.leave_out(without)
                part.mark = mark
                if len(found) < limit:
                    found += part.claim(limit - len(found), ahead)
            except Busy as error:
                slow = error  # what cannot be read in time holds up nothing else
            except Unreachable:
                if not found:
                    raise
        return found, slow

    def claim_alone(self) -> list[Intent]:
        """At most one row that lost its worker before; its process must hold nothing else."""
        ahead = self._look_ahead(None)
        found: list[Intent] = []
        for part in self._parts:
            part.leave_out(frozenset())
            if ahead.crashed and not found:
                found = part.claim_alone(ahead)
        return found

    def _look_ahead(self, mark: datetime | None) -> _Ahead:
        if self._meters and time.monotonic() >= self._open_until:
            with self._store.transaction() as tx:
                open_buckets(tx, self._meters)
            self._open_until = time.monotonic() + _OPEN_S
        with self._store.glance() as tx:
            row = tx.one(claims_sql.AHEAD, {"mark": mark or _NO_MARK})
        assert row is not None
        return _Ahead(**row)


@dataclass(frozen=True, slots=True)
class _How:
    """The statements of one kind of account, each by whether a breaker is due for its probe;
    ``direct`` is tried before the one for gates where none is."""

    direct: LiteralString | None
    gates: Mapping[bool, LiteralString]
    lanes: Mapping[bool, LiteralString]
    alone: Mapping[bool, LiteralString]
    takes_turns: bool


_FREE = _How(
    claims_sql.DIRECT,
    claims_sql.BATCH,
    claims_sql.LANE_BATCH,
    claims_sql.SOLO,
    takes_turns=False,
)
_METERED = _How(
    None,
    claims_metered_sql.BATCH,
    claims_metered_sql.LANE_BATCH,
    claims_metered_sql.SOLO,
    takes_turns=True,
)


class _Part:
    """The claims for accounts of one kind. Remembers where its scans of gates and lanes stopped, so
    that no gate or lane starves behind those that sort before it. Adds to ``probes``."""

    def __init__(
        self,
        store: Store,
        how: _How,
        params: Mapping[str, Any],
        sendable: list[Sendable],
        probes: set[UUID],
    ) -> None:
        self._store = store
        self._how = how
        self._sendable = sendable
        self._left_out: frozenset[tuple[str, str]] | None = None
        self.params = params
        self.leave_out(frozenset())
        self._probes = probes
        self.mark: datetime | None = None
        self._gate = ""
        self._lane = ""
        self._scans = [self._claim_lanes, self._claim_gates]
        self.token_in_s: float | None = None

    def leave_out(self, accounts: frozenset[tuple[str, str]]) -> None:
        """From the next claim on those are passed over, as accounts that are not known here are:
        by one probe each, whatever is due for them."""
        if accounts != self._left_out:
            self._left_out = accounts
            known = [s for s in self._sendable if (s.vendor, s.account.name) not in accounts]
            self.params = {**self.params, "known": Jsonb([s.as_json() for s in known])}

    def claim(self, limit: int, ahead: _Ahead) -> list[Intent]:
        """Up to ``limit`` due rows. Raises ``Unreachable`` where it has none to return."""
        self.token_in_s = None
        found: list[Intent] = []
        slow: Busy | None = None
        for scan in self._scans:
            try:
                if len(found) < limit:
                    found += scan(limit - len(found), ahead)
            except Busy as error:
                slow = error  # lanes that cannot be read in time hold up no row without one
            except Unreachable:
                if not found:
                    raise
        if self._how.takes_turns:
            # The first scan may take the last token each time.
            self._scans.reverse()
        if slow is not None and not found:
            raise slow
        return found

    def claim_alone(self, ahead: _Ahead) -> list[Intent]:
        """At most one row that lost its worker before."""
        try:
            return self._run([self._how.alone[ahead.probing]], limit=1, cursor="")[0]
        except errors.UniqueViolation:
            return []  # the head of a lane that another claim took meanwhile

    def _claim_gates(self, limit: int, ahead: _Ahead) -> list[Intent]:
        if not ahead.gates:
            return []
        direct = None if ahead.probing else self._how.direct
        ways = [way for way in (direct, self._how.gates[ahead.probing]) if way]
        found, self._gate = self._scan(ways, limit, self._gate, lambda row: row.gate)
        return found

    def _claim_lanes(self, limit: int, ahead: _Ahead) -> list[Intent]:
        if not ahead.lanes:
            return []
        ways = [self._how.lanes[ahead.probing]]
        try:
            found, self._lane = self._scan(ways, limit, self._lane, lambda row: row.lane or "")
        except errors.UniqueViolation:
            # Another claim took a head between our read and our lock; lanes wait a round.
            return []
        return found

    def _scan(
        self,
        ways: Sequence[LiteralString],
        limit: int,
        start: str,
        place: Callable[[Intent], str],
    ) -> tuple[list[Intent], str]:
        """Rows from ``start`` on, round to it again, and where the next scan shall begin."""
        give_up = time.monotonic() + _PATIENCE_S
        cursor, wrapped = start, not start
        while True:
            rows, stopped = self._run(ways, limit=limit, cursor=cursor)
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
        self, ways: Sequence[LiteralString], *, limit: int, cursor: str
    ) -> tuple[list[Intent], str | None]:
        """By the first of the ways that tells anything."""
        now = {"limit": limit, "cursor": cursor, "mark": self.mark or _NO_MARK}
        with self._store.transaction(planned_once=True) as tx:
            told = (tx.all(sql, {**self.params, **now}) for sql in ways)
            seen = next((rows for rows in told if rows), [])
        stopped = seen[0]["stopped_at"] if seen else None
        if seen and "token_in_s" in seen[0]:
            self.token_in_s = seen[0]["token_in_s"]
        rows = [row for row in seen if row["id"] is not None]
        for row in rows:
            if row["probed"]:
                self._probes.add(row["id"])
        return [as_intent(row, self._store.codec) for row in rows], stopped

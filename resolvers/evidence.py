"""Applying evidence about one intent, whoever brought it. One world never gets two words."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Protocol

from outbox.contract import Call, Vendor, VendorContract, carried
from outbox.outcomes import Absent, LookUp, Reading, Standing, Unreadable
from outbox.policy import Policy
from outbox.states import Event, Status
from outbox.store.business import move_business
from outbox.store.connection import Transaction
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.moves import Change, Settled, apply
from resolvers.decide import mismatch


class Placed(Protocol):
    """What tells when the objects of an intent can have been created."""

    @property
    def veto(self) -> str | None: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def first_sent_at(self) -> datetime | None: ...
    @property
    def last_lease_end(self) -> datetime | None: ...
    @property
    def lease_until(self) -> datetime | None: ...


def look_up(vendor: Vendor, row: Intent, call: Call, policy: Policy, began_at: datetime) -> LookUp:
    """What the vendor shows of an intent. ``began_at`` is the database's time of the look."""
    since, until = span_of(vendor.contract, row, policy)
    return judged(vendor.contract, row, vendor.look_up(call, since, until), policy, began_at)


def span_of(contract: VendorContract, row: Placed, policy: Policy) -> tuple[int, int | None]:
    """From when until when (None: until now) an intent's objects are sought, by the vendor's clock
    in seconds since the epoch.

    Since the intent was recorded (the first send that is known may not have been the first: one
    that was proved not sent may still arrive), less an allowance, and until nothing of the last
    send can land any more, plus the same: the older a doubt at a busy account, the more there is
    that came after it. A vendor's clock that is further away would hide what landed.
    """
    first = min(row.created_at, row.first_sent_at or row.created_at)
    return int(first.timestamp() - policy.clock_skew_s), _until(contract, row, policy)


def judged(
    contract: VendorContract, row: Intent, seen: LookUp, policy: Policy, began_at: datetime
) -> LookUp:
    """What a reading that began at ``began_at`` (the database's time) proves of an intent."""
    if isinstance(seen, Absent) and row.carries != carried(contract, row.operation):
        why = "finding nothing proves nothing: it has its key or its mark elsewhere"
        return Unreadable(why, never=True)
    if isinstance(seen, Unreadable) or not seen.vendor_now:
        return seen
    apart_s = abs(began_at.timestamp() - seen.vendor_now)
    if apart_s > policy.clock_skew_s:
        return Unreadable(f"the vendor's clock and the database's differ by {apart_s:.0f} s")
    return seen


def _until(contract: VendorContract, row: Placed, policy: Policy) -> int | None:
    if row.veto is not None:
        return None  # the vendor's own repair of a stored 500 comes when it comes
    ends = [end for end in (row.last_lease_end, row.lease_until) if end is not None]
    if not ends:
        return None
    bound_s = policy.adapted(contract).in_flight_bound_s
    return math.ceil(max(ends).timestamp() + bound_s + policy.clock_skew_s)


def apply_reading(
    tx: Transaction,
    row: Intent,
    reading: Reading,
    *,
    actor: str,
    source: str,
    together: Settled | None = None,
) -> str:
    """What an object of ours makes of its intent; returns a word for the caller's log. What follows
    where it settles the intent is left to ``together``, where that is given.

    ``row`` was read (or locked) in this transaction. Raises ``Moved`` when it was written since.
    """
    wrong = mismatch(row, reading)
    if wrong is not None and contradict(
        tx,
        row,
        wrong.replace(" ", "_"),
        [reading.receipt_id],
        f"{source}: {wrong} than asked",
        found=[reading],
    ):
        return "contradiction"
    if reading.standing is Standing.OPEN:
        return "open"
    if reading.standing is Standing.DECLINED:
        return _declined(tx, row, reading, actor=actor, source=source, together=together)
    if row.state is Status.SUCCEEDED and row.receipt_id == reading.receipt_id:
        return "moved" if move_business(tx, row, reading, actor=actor, source=source) else "known"
    _, verdict = apply(
        tx,
        row,
        Event.RECEIPT_FOUND,
        Change(actor=actor, reason=source, reading=reading, settled_by=source),
        together=together,
    )
    return "contradiction" if verdict.contradiction else "settled" if verdict.moved else "known"


def _declined(
    tx: Transaction,
    row: Intent,
    reading: Reading,
    *,
    actor: str,
    source: str,
    together: Settled | None,
) -> str:
    if row.state is Status.SUCCEEDED and row.receipt_id == reading.receipt_id:
        # It landed, and then failed: a business move of the same object, not a contradiction.
        return "moved" if move_business(tx, row, reading, actor=actor, source=source) else "known"
    if row.state in (Status.PENDING, Status.AWAITING_APPROVAL):
        return "known"
    _, verdict = apply(
        tx,
        row,
        Event.REFUSED,
        Change(
            actor=actor,
            reason=source,
            reading=reading,
            covers_key=True,
            failure_code=reading.failure_code or "declined",
            settled_by=source,
        ),
        together=together,
    )
    return "settled" if verdict.moved else "known"

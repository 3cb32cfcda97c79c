"""What to do about an intent in doubt: one pure function of the row, the evidence and the time.

``decide`` never sends and never writes. Only evidence settles; a person is asked when evidence
runs out of time; a second send happens only where it cannot make a second effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from outbox.contract import VendorContract
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing
from outbox.policy import Policy


class Doubtful(Protocol):
    """The columns of an intent that a decision reads."""

    @property
    def doubt(self) -> int: ...
    @property
    def veto(self) -> str | None: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def vendor_account(self) -> str | None: ...
    @property
    def amount_minor(self) -> int | None: ...
    @property
    def currency(self) -> str | None: ...
    @property
    def resend_when_absent(self) -> bool: ...
    @property
    def contradicted_at(self) -> datetime | None: ...
    @property
    def first_sent_at(self) -> datetime | None: ...
    @property
    def last_sent_at(self) -> datetime | None: ...
    @property
    def last_lease_end(self) -> datetime | None: ...
    @property
    def window_ends_at(self) -> datetime | None: ...
    @property
    def ttl_at(self) -> datetime: ...
    @property
    def absent_first_at(self) -> datetime | None: ...
    @property
    def looks(self) -> int: ...
    @property
    def resends(self) -> int: ...
    @property
    def crashes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known beside the row. ``look`` is the look-up just made, begun at ``began_at``;
    ``paused`` says that a switch holds the account, ``person_is_looking`` that the escalation is
    acknowledged, ``escalated`` that it is open, ``unsendable`` that this process could not send
    the row."""

    look: LookUp | None = None
    began_at: datetime | None = None
    paused: bool = False
    person_is_looking: bool = False
    escalated: bool = False
    unsendable: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """One object of ours decides: landed, or declined for good."""

    reading: Reading


@dataclass(frozen=True, slots=True)
class Contradict:
    """The evidence contradicts itself or the intent: a person must rule."""

    reason: str
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resend:
    """The same request may go out again under the same key. ``confirmed_absent``: because two
    quiet look-ups found nothing; only that is enough where the vendor honours no key."""

    confirmed_absent: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing settles it now; look again in so many seconds. ``quiet_absence`` says that this look
    counts towards confirmed absence."""

    due_in_s: float
    absent: bool = False
    quiet_absence: bool = False


Decision = Settle | Contradict | Resend | Wait


def quiet_from(row: Doubtful, contract: VendorContract, policy: Policy) -> datetime | None:
    """When quiescence begins: before it nothing can be ruled absent."""
    if row.last_lease_end is None:
        return None
    return row.last_lease_end + timedelta(seconds=policy.quiet_after_s(contract))


def window_end(row: Doubtful, contract: VendorContract, policy: Policy) -> datetime | None:
    """Until when a second send under the key is safe: as long as was promised when it was first
    sent, and no longer than is promised now, for a window may have been corrected since. None where
    no key is honoured."""
    usable_s = policy.usable_window_s(contract)
    if usable_s is None or row.window_ends_at is None:
        return None
    if row.first_sent_at is None:
        return row.window_ends_at
    return min(row.window_ends_at, row.first_sent_at + timedelta(seconds=usable_s))


def mismatch(row: Doubtful, reading: Reading) -> str | None:
    """In which way an object of ours is not what was asked for; None where it is."""
    if None not in (reading.livemode, row.mode) and reading.livemode != (row.mode == "live"):
        return "another mode"
    accounts = {reading.vendor_account, row.vendor_account} - {None, ""}
    if len(accounts) > 1:
        return "another account"
    amounts = {row.amount_minor, reading.amount_minor} - {None}
    if len(amounts) > 1:
        return "another amount"
    if row.currency and reading.currency and row.currency != reading.currency.lower():
        return "another currency"
    return None


def decide(
    row: Doubtful, evidence: Evidence, contract: VendorContract, policy: Policy, now: datetime
) -> Decision:
    """The next step for a row that is ``unknown``. ``now`` is the database's clock."""
    if isinstance(evidence.look, Found):
        decided = _weigh(row, evidence.look.readings, contract, policy, now)
        if decided is not None:
            return decided
    quiet = _is_quiet_absence(row, evidence, contract, policy)
    confirmed = quiet and _is_confirmed(row, evidence, contract, policy)
    if _may_resend(row, evidence, contract, policy, now, confirmed=confirmed):
        return Resend(confirmed_absent=confirmed and not contract.honours_keys)
    return Wait(
        due_in_s=_due_in_s(row, evidence, contract, policy, now),
        absent=isinstance(evidence.look, Absent),
        quiet_absence=quiet,
    )


def _weigh(
    row: Doubtful,
    readings: Iterable[Reading],
    contract: VendorContract,
    policy: Policy,
    now: datetime,
) -> Decision | None:
    """Objects of ours decide, unless there are several or one is not what was asked for."""
    by_id = {r.receipt_id: r for r in readings if r.standing is not Standing.OPEN}
    if not by_id:
        return None
    if len(by_id) > 1:
        return Contradict("duplicate", tuple(sorted(by_id)))
    reading = next(iter(by_id.values()))
    wrong = mismatch(row, reading)
    if wrong is not None:
        return Contradict(wrong.replace(" ", "_"), (reading.receipt_id,))
    if reading.standing is Standing.DECLINED and not contract.honours_keys:
        # Without keys another attempt may still land beside the declined one.
        begins = quiet_from(row, contract, policy)
        if begins is None or now < begins:
            return None
    return Settle(reading)


def _is_quiet_absence(
    row: Doubtful, evidence: Evidence, contract: VendorContract, policy: Policy
) -> bool:
    begins = quiet_from(row, contract, policy)
    return (
        isinstance(evidence.look, Absent)
        and evidence.began_at is not None
        and begins is not None
        and evidence.began_at >= begins
    )


def _is_confirmed(
    row: Doubtful, evidence: Evidence, contract: VendorContract, policy: Policy
) -> bool:
    """Two looks that both began after quiescence, at least one read lag apart, found nothing."""
    begins = quiet_from(row, contract, policy)
    if row.absent_first_at is None or evidence.began_at is None or begins is None:
        return False
    if row.absent_first_at < begins:
        return False  # it was quiet then, and something was sent since
    apart = (evidence.began_at - row.absent_first_at).total_seconds()
    return apart > 0 and apart >= contract.read_lag_s


def _may_resend(
    row: Doubtful,
    evidence: Evidence,
    contract: VendorContract,
    policy: Policy,
    now: datetime,
    *,
    confirmed: bool,
) -> bool:
    if row.veto or row.contradicted_at is not None or evidence.paused or evidence.unsendable:
        return False
    if evidence.person_is_looking or row.crashes >= policy.max_crashes:
        return False
    end = window_end(row, contract, policy)
    if end is None:
        # An object of ours that decides nothing yet still stands in the way of a second one.
        never_left = row.doubt == 0 and not isinstance(evidence.look, Found)
        return never_left or (confirmed and row.resend_when_absent)
    if now >= end or row.resends >= policy.max_resends:
        return False
    if row.doubt == 0:
        return True
    looked = evidence.look is not None or row.looks > 0 or not contract.can_look_up
    return looked and now >= _resend_at(row, policy)


def _resend_at(row: Doubtful, policy: Policy) -> datetime:
    last = row.last_sent_at or row.first_sent_at
    assert last is not None, "a row in doubt was sent"
    return last + timedelta(seconds=policy.resend_delay_s(row.resends))


def _due_in_s(
    row: Doubtful, evidence: Evidence, contract: VendorContract, policy: Policy, now: datetime
) -> float:
    due = [policy.look_delay_s(row.looks + 1, escalated=evidence.escalated)]
    begins = quiet_from(row, contract, policy)
    if begins is not None and now < begins:
        due.append((begins - now).total_seconds())
    end = window_end(row, contract, policy)
    if end is not None and now < end and not row.veto and row.resends < policy.max_resends:
        left = (_resend_at(row, policy) - now).total_seconds()
        if left > 0:
            due.append(left)
    return max(min(due), 0.05)


def reasons_to_escalate(
    *,
    ttl_at: datetime,
    window_ends_at: datetime | None,
    crashes: int,
    policy: Policy,
    now: datetime,
    unsendable: bool = False,
) -> list[str]:
    """Why an unsettled intent needs a person now. ``unsendable``: nothing of it was ever sent, and
    a veto says that nothing ever will be."""
    reasons = ["unsendable"] if unsendable else []
    if now >= ttl_at:
        reasons.append("ttl")
    if window_ends_at is not None and now >= window_ends_at:
        reasons.append("window")
    if crashes >= policy.max_crashes:
        reasons.append("worker_lost")
    return reasons

"""``decide`` for arbitrary rows, evidence, contracts, policies and times.

What is asserted is the design's rules 6, 8 and 12 written out by hand: none of the product's
helpers is asked whether something is quiet, confirmed or inside its window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import assume, event, given
from hypothesis import strategies as st

from outbox.contract import VendorContract
from outbox.contracts import contract_of
from outbox.outcomes import Absent, Business, Found, LookUp, Reading, Standing, Unreadable
from outbox.policy import Policy
from resolvers.decide import (
    Contradict,
    Decision,
    Evidence,
    Resend,
    Settle,
    Wait,
    decide,
    reasons_to_escalate,
)
from tests.properties.picks import Picks, picked
from tests.properties.profiles import bounded

T0 = datetime(2026, 3, 29, 0, 55, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """The columns that a decision reads; times in the order in which a claim makes them."""

    doubt: int
    veto: str | None
    mode: str | None
    vendor_account: str | None
    amount_minor: int | None
    currency: str | None
    resend_when_absent: bool
    contradicted_at: datetime | None
    first_sent_at: datetime | None
    last_sent_at: datetime | None
    last_lease_end: datetime | None
    window_ends_at: datetime | None
    ttl_at: datetime
    absent_first_at: datetime | None
    looks: int
    resends: int
    crashes: int


@dataclass(frozen=True)
class Case:
    """One question to ``decide``."""

    row: Row
    evidence: Evidence
    contract: VendorContract
    policy: Policy
    now: datetime

    def decided(self, **changes: Any) -> Decision:
        case = replace(self, **changes)
        return decide(case.row, case.evidence, case.contract, case.policy, case.now)

    @property
    def quiet_at(self) -> datetime | None:
        """When nothing that was sent can still land unseen: by the contract's own numbers."""
        if self.row.last_lease_end is None:
            return None
        override = self.policy.in_flight_override_s
        bound_s = self.contract.in_flight_bound_s if override is None else override
        return self.row.last_lease_end + timedelta(seconds=bound_s + self.contract.read_lag_s)

    @property
    def absence_is_confirmed(self) -> bool:
        """Two looks that began after quiescence, a read lag apart, and found nothing."""
        first, second, quiet = self.row.absent_first_at, self.evidence.began_at, self.quiet_at
        if None in (first, second, quiet) or not isinstance(self.evidence.look, Absent):
            return False
        assert first is not None
        assert second is not None
        assert quiet is not None
        lag = timedelta(seconds=self.contract.read_lag_s)
        return first >= quiet and second >= quiet and second > first and second - first >= lag


def _reading(picks: Picks) -> Reading:
    return Reading(
        receipt_id=picks.of(["pi_1", "pi_1", "pi_2"]),
        standing=picks.of(list(Standing)),
        business=Business.OTHER,
        word="word",
        amount_minor=picks.of([100, 100, None, 101]),
        currency=picks.of(["usd", None, "USD", "eur"]),
        livemode=picks.of([False, False, None, True]),
        vendor_account=picks.of(["acct_1", None, "", "acct_2"]),
    )


def _look(picks: Picks) -> LookUp | None:
    kind = picks.of(["none", "absent", "absent", "unreadable", "found", "found"])
    if kind == "found":
        return Found(tuple(_reading(picks) for _ in range(picks.of([1, 0, 1, 2, 3]))))
    if kind == "unreadable":
        return Unreadable("timeout", never=picks.flag())
    return Absent() if kind == "absent" else None


def _contract(picks: Picks) -> VendorContract:
    return replace(
        contract_of("stripe"),
        honours_keys=picks.of([True, False]),
        can_look_up=picks.of([True, True, False]),
        read_lag_s=picks.of([0.0, 1.0, 30.0]),
        in_flight_bound_s=picks.of([120.0, 0.0]),
        window_s=picks.of([86400.0, None, 10.0, 600.0]),
        margin_s=picks.of([7200.0, 0.0, 300.0]),
    )


_POLICIES = [
    Policy(),
    Policy.demo(),
    replace(Policy(), max_resends=1, looks_s=(1.0,), resends_s=(1.0,)),
]


def _case(picks: Picks) -> Case:
    """A row that was sent at T0 or later and is in doubt now, a look, and a time not far from the
    moments that count."""
    contract, policy = _contract(picks), picks.of(_POLICIES)
    last_sent = picks.of([0.0, 50.0, 500.0])
    lease_end = last_sent + policy.lease_s
    usable = policy.usable_window_s(contract)
    quiet_s = lease_end + policy.adapted(contract).in_flight_bound_s + contract.read_lag_s
    moments = [quiet_s, lease_end, quiet_s + contract.read_lag_s, 1000.0, usable or 0.0, 0.0]

    def moment() -> float:
        return picks.of(moments) + picks.of([0.0, 1.0, -1.0, 3.0, -3.0, 40.0])

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else T0 + timedelta(seconds=seconds)

    now_s = moment()
    # In every other case nothing but the evidence and the time can stand in the way.
    free = picks.flag()

    def unless_free(options: list[Any]) -> Any:
        return options[0] if free else picks.of(options)

    row = Row(
        doubt=picks.of([1, 0, 1, 2]),
        veto=unless_free([None, None, None, "stored_500"]),
        mode=picks.of(["test", "test", None]),
        vendor_account=picks.of(["acct_1", None]),
        amount_minor=picks.of([100, None]),
        currency=picks.of(["usd", None]),
        resend_when_absent=picks.flag(),
        contradicted_at=unless_free([None, None, None, T0]),
        first_sent_at=T0,
        last_sent_at=at(last_sent),
        last_lease_end=picks.of([at(lease_end), at(lease_end), None]),
        # As the claim sets it, from the first send and never moved.
        window_ends_at=at(usable),
        ttl_at=T0 + timedelta(seconds=moment()),
        absent_first_at=at(picks.of([None, moment(), quiet_s, quiet_s + 1])),
        looks=picks.of(range(8)),
        resends=unless_free([0, 0, 1, 8]),
        crashes=unless_free([0, 0, 3]),
    )
    evidence = Evidence(
        look=_look(picks),
        began_at=at(picks.of([now_s, now_s, now_s - 1, None])),
        paused=unless_free([False, False, True]),
        person_is_looking=unless_free([False, False, True]),
        escalated=picks.flag(),
    )
    return Case(row, evidence, contract, policy, T0 + timedelta(seconds=now_s))


CASES = picked(_case, 60)
LATER = st.floats(0, 10**7)


@given(CASES)
@bounded(500)
def test_a_second_send_is_allowed_only_where_it_cannot_make_a_second_effect(case: Case) -> None:
    decided = case.decided()
    event(type(decided).__name__)
    if not isinstance(decided, Resend):
        return
    row, evidence = case.row, case.evidence
    assert row.veto is None
    assert row.contradicted_at is None
    assert not evidence.paused
    assert not evidence.person_is_looking
    assert row.crashes < case.policy.max_crashes
    if row.window_ends_at is not None and case.contract.honours_keys:
        # Whatever the override: the last byte of it has landed before the vendor forgets the key.
        assert row.resends < case.policy.max_resends
        assert row.first_sent_at is not None
        assert case.contract.window_s is not None
        forgets = row.first_sent_at + timedelta(seconds=case.contract.window_s)
        assert case.now < row.window_ends_at
        bound_s = case.policy.adapted(case.contract).in_flight_bound_s
        assert case.now + timedelta(seconds=case.policy.lease_s + bound_s) < forgets
        assert row.doubt == 0 or (
            evidence.look is not None or row.looks > 0 or not case.contract.can_look_up
        ), "something was looked at first, where anything can be"
        assert not decided.confirmed_absent
    elif row.doubt > 0:
        assert row.resend_when_absent
        assert case.absence_is_confirmed
    else:
        assert not isinstance(evidence.look, Found) or case.absence_is_confirmed
    if decided.confirmed_absent:
        assert case.absence_is_confirmed
    if not case.contract.honours_keys and row.doubt > 0:
        assert decided.confirmed_absent, "or the doubt would stay, and nothing be claimed"


@given(CASES)
@bounded(250)
def test_only_one_object_that_is_what_was_asked_for_settles(case: Case) -> None:
    decided = case.decided()
    found = case.evidence.look.readings if isinstance(case.evidence.look, Found) else ()
    shown = {r.receipt_id for r in found if r.standing is not Standing.OPEN}
    if len(shown) > 1:
        assert decided == Contradict("duplicate", tuple(sorted(shown)))
    if isinstance(decided, Settle):
        (receipt_id,) = shown
        reading, row = decided.reading, case.row
        assert reading in found
        assert reading.receipt_id == receipt_id
        assert reading.standing is not Standing.OPEN
        assert reading.amount_minor in (None, row.amount_minor) or row.amount_minor is None
        assert (reading.currency or "").lower() in ("", row.currency) or row.currency is None
        assert None in (reading.livemode, row.mode) or reading.livemode == (row.mode == "live")
        assert {reading.vendor_account, row.vendor_account} - {None, ""} != {"acct_1", "acct_2"}
    if isinstance(decided, Contradict):
        assert shown
        assert set(decided.objects) == shown


@given(CASES, LATER)
@bounded(250)
def test_time_alone_never_settles(case: Case, seconds: float) -> None:
    assume(not isinstance(case.evidence.look, Found))
    later = case.now + timedelta(seconds=seconds)
    for now in (case.now, later):
        decided = case.decided(now=now)
        assert isinstance(decided, Resend | Wait)
    if isinstance(case.decided(), Wait) and case.contract.honours_keys:
        # What a window has closed to no later time opens again.
        closed = case.row.window_ends_at is not None and case.now >= case.row.window_ends_at
        assert not (closed and isinstance(case.decided(now=later), Resend))


@given(CASES, st.sampled_from(["veto", "contradiction", "pause", "person", "crashes"]))
@bounded(200)
def test_whatever_forbids_a_send_forbids_it_in_every_case(case: Case, what: str) -> None:
    row, evidence = case.row, case.evidence
    match what:
        case "veto":
            row = replace(row, veto="do_not_retry")
        case "contradiction":
            row = replace(row, contradicted_at=T0)
        case "pause":
            evidence = replace(evidence, paused=True)
        case "person":
            evidence = replace(evidence, person_is_looking=True)
        case "crashes":
            row = replace(row, crashes=case.policy.max_crashes)
    forbidden = case.decided(row=row, evidence=evidence)
    assert not isinstance(forbidden, Resend)
    if not isinstance(case.decided(), Resend):
        # And it changes no word about what the evidence shows.
        assert type(forbidden) is type(case.decided())


@given(CASES)
@bounded(250)
def test_a_row_that_waits_is_looked_at_again_and_a_quiet_absence_is_one(case: Case) -> None:
    decided = case.decided()
    if not isinstance(decided, Wait):
        return
    slowest = max(*case.policy.looks_s, case.policy.look_after_page_s)
    assert 0 < decided.due_in_s <= slowest
    assert math.isfinite(decided.due_in_s)
    assert decided.absent == isinstance(case.evidence.look, Absent)
    began, quiet = case.evidence.began_at, case.quiet_at
    in_quiet = began is not None and quiet is not None and began >= quiet
    assert decided.quiet_absence == (decided.absent and in_quiet)


@given(CASES, LATER, st.booleans())
@bounded(200)
def test_the_reasons_to_ask_a_person_are_complete_and_never_taken_back(
    case: Case, seconds: float, unsendable: bool
) -> None:
    row, policy = case.row, case.policy

    def reasons(now: datetime) -> list[str]:
        return reasons_to_escalate(
            ttl_at=row.ttl_at,
            window_ends_at=row.window_ends_at,
            crashes=row.crashes,
            policy=policy,
            now=now,
            unsendable=unsendable,
        )

    found = reasons(case.now)
    assert len(found) == len(set(found))
    assert ("ttl" in found) == (row.ttl_at <= case.now)
    assert ("window" in found) == (
        row.window_ends_at is not None and row.window_ends_at <= case.now
    )
    assert ("worker_lost" in found) == (row.crashes >= policy.max_crashes)
    assert ("unsendable" in found) == unsendable
    assert set(found) <= {"ttl", "window", "worker_lost", "unsendable"}
    assert set(found) <= set(reasons(case.now + timedelta(seconds=seconds)))
    # Rule 9: where the clock alone has made a re-send impossible for ever, somebody is asked.
    keyed = case.contract.honours_keys and row.window_ends_at is not None
    if keyed and row.window_ends_at is not None and case.now >= row.window_ends_at:
        assert "window" in found

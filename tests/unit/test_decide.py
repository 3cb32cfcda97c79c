"""What is decided about an intent in doubt, over the whole grid of rows, evidence and contracts."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

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
    mismatch,
    quiet_from,
    reasons_to_escalate,
)

T0 = datetime(2026, 3, 29, 0, 55, tzinfo=UTC)
POLICY = Policy()
KEYED = contract_of("stripe")
KEYLESS = replace(KEYED, honours_keys=False, window_s=None, read_lag_s=30.0)
BLIND = replace(KEYLESS, can_look_up=False)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


LEASE_END, TTL, WINDOW_END = at(60), at(500), at(1000)


# First sent at 0, the lease ended at 60, quiescent at 180 (keyed) or 210 (30 s of read lag).
@dataclass(frozen=True)
class Row:
    doubt: int = 1
    veto: str | None = None
    mode: str | None = "test"
    vendor_account: str | None = "acct_1"
    amount_minor: int | None = 4900
    currency: str | None = "usd"
    resend_when_absent: bool = False
    contradicted_at: datetime | None = None
    first_sent_at: datetime | None = T0
    last_sent_at: datetime | None = T0
    last_lease_end: datetime | None = LEASE_END
    window_ends_at: datetime | None = WINDOW_END
    ttl_at: datetime = TTL
    absent_first_at: datetime | None = None
    looks: int = 1
    resends: int = 0
    crashes: int = 0


OURS = Reading(
    "pi_1",
    Standing.LANDED,
    Business.PAID,
    "succeeded",
    amount_minor=4900,
    currency="USD",
    livemode=False,
    vendor_account="acct_1",
)
DECLINED = replace(OURS, standing=Standing.DECLINED)
OPEN = replace(OURS, standing=Standing.OPEN)
SECOND = replace(OURS, receipt_id="pi_2")
WRONG = {
    "another mode": replace(OURS, livemode=True),
    "another account": replace(OURS, vendor_account="acct_2"),
    "another amount": replace(OURS, amount_minor=4901),
    "another currency": replace(OURS, currency="eur"),
}


def ask(
    row: Row,
    look: LookUp | None = None,
    *,
    contract: VendorContract = KEYED,
    now: float = 300,
    began: float | None = None,
    **more: Any,
) -> Decision:
    evidence = Evidence(look=look, began_at=at(now - 1 if began is None else began), **more)
    return decide(row, evidence, contract, POLICY, at(now))


# -- the grid ------------------------------------------------------------------------------------

LOOKS: list[LookUp | None] = [
    None,
    Absent(),
    Unreadable("timeout"),
    Found(()),
    Found((OURS,)),
    Found((DECLINED,)),
    Found((OPEN,)),
    Found((OURS, SECOND)),
    Found((OURS, replace(OURS, standing=Standing.OPEN, receipt_id="pi_2"))),
    Found((DECLINED, SECOND)),
    Found((WRONG["another amount"],)),
]
ROWS = [
    Row(
        doubt=doubt,
        veto=veto,
        contradicted_at=contradicted,
        window_ends_at=window,
        resend_when_absent=allowed,
        absent_first_at=absent,
        looks=looks,
        resends=resends,
        crashes=crashes,
    )
    for doubt, veto, contradicted, window, allowed, absent, looks, resends, crashes in (
        itertools.product(
            (0, 1, 2),
            (None, "stored_500"),
            (None, T0),
            (None, at(1000), at(300), at(-1)),
            (False, True),
            (None, at(100), at(220), at(298)),
            (0, 1),
            (0, 8),
            (0, 3),
        )
    )
]


@dataclass(frozen=True)
class Case:
    row: Row
    evidence: Evidence
    contract: VendorContract
    now: datetime
    decision: Decision


def grid() -> Iterator[Case]:
    for row, look, contract in itertools.product(ROWS, LOOKS, (KEYED, KEYLESS, BLIND)):
        for now, paused, looking in (
            (100.0, False, False),
            (300.0, False, False),
            (300.0, True, False),
            (300.0, False, True),
        ):
            evidence = Evidence(
                look=look, began_at=at(now - 1), paused=paused, person_is_looking=looking
            )
            decision = decide(row, evidence, contract, POLICY, at(now))
            yield Case(row, evidence, contract, at(now), decision)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    gc.disable()  # it would look at nearly half a million cases again and again, and find none
    try:
        return list(grid())
    finally:
        gc.enable()


def resent(cases: list[Case]) -> list[Case]:
    found = [case for case in cases if isinstance(case.decision, Resend)]
    assert len(found) > 100
    return found


def test_nothing_is_sent_again_under_a_veto_a_contradiction_a_pause_or_a_persons_eyes(
    cases: list[Case],
) -> None:
    for case in resent(cases):
        assert case.row.veto is None
        assert case.row.contradicted_at is None
        assert not case.evidence.paused
        assert not case.evidence.person_is_looking
        assert case.row.crashes < POLICY.max_crashes


def test_nothing_is_sent_again_under_a_key_outside_its_window(cases: list[Case]) -> None:
    for case in resent(cases):
        if case.contract.honours_keys and case.row.window_ends_at is not None:
            assert case.now < case.row.window_ends_at
            assert case.row.resends < POLICY.max_resends


def test_without_a_key_nothing_in_doubt_is_sent_again_without_permission_and_confirmed_absence(
    cases: list[Case],
) -> None:
    seen = 0
    for case in resent(cases):
        keyed = case.contract.honours_keys and case.row.window_ends_at is not None
        if keyed or case.row.doubt == 0:
            continue
        seen += 1
        quiet = quiet_from(case.row, case.contract, POLICY)
        assert quiet is not None
        assert case.row.resend_when_absent
        assert isinstance(case.evidence.look, Absent)
        assert case.evidence.began_at is not None
        assert case.row.absent_first_at is not None
        assert case.evidence.began_at >= quiet
        assert case.row.absent_first_at >= quiet
        apart = (case.evidence.began_at - case.row.absent_first_at).total_seconds()
        assert apart >= case.contract.read_lag_s
        assert isinstance(case.decision, Resend)
        assert case.decision.confirmed_absent or case.contract.honours_keys
    assert seen > 0


def test_without_a_key_nothing_is_sent_again_while_an_object_of_ours_is_seen(
    cases: list[Case],
) -> None:
    for case in resent(cases):
        if not case.contract.honours_keys:
            assert not isinstance(case.evidence.look, Found)


def test_two_objects_never_settle(cases: list[Case]) -> None:
    seen = 0
    for case in cases:
        look = case.evidence.look
        if isinstance(look, Found):
            decisive = {r.receipt_id for r in look.readings if r.standing is not Standing.OPEN}
            if len(decisive) > 1:
                seen += 1
                assert case.decision == Contradict("duplicate", tuple(sorted(decisive)))
    assert seen > 0


def test_only_an_object_of_ours_that_is_what_was_asked_for_settles(cases: list[Case]) -> None:
    settled = [case for case in cases if isinstance(case.decision, Settle)]
    assert settled
    for case in settled:
        assert isinstance(case.decision, Settle)
        assert isinstance(case.evidence.look, Found)
        assert case.decision.reading in case.evidence.look.readings
        assert case.decision.reading.standing is not Standing.OPEN
        assert mismatch(case.row, case.decision.reading) is None


def test_absence_alone_settles_nothing(cases: list[Case]) -> None:
    for case in cases:
        if not isinstance(case.evidence.look, Found):
            assert isinstance(case.decision, Wait | Resend)


def test_every_wait_has_an_end(cases: list[Case]) -> None:
    longest = max(*POLICY.looks_s, POLICY.look_after_page_s)
    for case in cases:
        if isinstance(case.decision, Wait):
            assert 0 < case.decision.due_in_s <= longest


def test_more_doubt_never_allows_more(cases: list[Case]) -> None:
    by_place = {(id(c.contract), c.row, c.evidence, c.now): c.decision for c in cases}
    for (contract, row, evidence, now), decision in by_place.items():
        if row.doubt and isinstance(decision, Resend):
            less = by_place[contract, replace(row, doubt=row.doubt - 1), evidence, now]
            assert isinstance(less, Resend)


# -- by name -------------------------------------------------------------------------------------


def test_a_landed_object_settles_at_once() -> None:
    assert ask(Row(), Found((OURS,)), now=61) == Settle(OURS)
    assert ask(Row(veto="stored_500"), Found((OURS,))) == Settle(OURS)


@pytest.mark.parametrize("wrong", WRONG)
def test_an_object_that_is_not_what_was_asked_for_is_a_contradiction(wrong: str) -> None:
    assert mismatch(Row(), WRONG[wrong]) == wrong
    assert ask(Row(), Found((WRONG[wrong],))) == Contradict(wrong.replace(" ", "_"), ("pi_1",))


def test_what_is_not_known_on_either_side_is_no_mismatch() -> None:
    bare = Reading("pi_1", Standing.LANDED, Business.PAID, "succeeded")
    assert mismatch(Row(), bare) is None
    unfrozen = Row(mode=None, vendor_account=None, amount_minor=None, currency=None)
    assert all(mismatch(unfrozen, reading) is None for reading in WRONG.values())


def test_the_same_object_seen_twice_is_one_object() -> None:
    assert ask(Row(), Found((OURS, OURS))) == Settle(OURS)


def test_a_declined_object_settles_at_once_where_one_key_made_it() -> None:
    assert ask(Row(), Found((DECLINED,)), now=61) == Settle(DECLINED)


def test_a_declined_object_settles_without_keys_only_after_quiescence() -> None:
    row = Row(window_ends_at=None)
    assert isinstance(ask(row, Found((DECLINED,)), contract=KEYLESS, now=209), Wait)
    assert ask(row, Found((DECLINED,)), contract=KEYLESS, now=210) == Settle(DECLINED)
    assert isinstance(
        ask(replace(row, last_lease_end=None), Found((DECLINED,)), contract=KEYLESS), Wait
    )


def test_the_same_request_goes_out_again_after_one_look_and_its_back_off() -> None:
    assert isinstance(ask(Row(looks=0), None, now=300), Wait)
    assert ask(Row(looks=0), Absent(), now=300) == Resend()
    assert ask(Row(looks=1), None, now=300) == Resend()
    assert isinstance(ask(Row(), Absent(), now=9), Wait)
    assert ask(Row(), Absent(), now=10) == Resend()
    assert isinstance(ask(Row(resends=1), Absent(), now=59), Wait)
    assert ask(Row(resends=1), Absent(), now=60) == Resend()


def test_what_never_left_goes_out_again_at_once() -> None:
    assert ask(Row(doubt=0, looks=0), None, now=1) == Resend()
    assert ask(Row(doubt=0, window_ends_at=None), None, contract=KEYLESS) == Resend()


def test_a_vendor_without_look_ups_needs_no_look_before_the_same_key() -> None:
    blind = replace(KEYED, can_look_up=False)
    assert ask(Row(looks=0), None, contract=blind) == Resend()


PERMITTED = Row(window_ends_at=None, resend_when_absent=True)


def test_absence_is_confirmed_by_two_quiet_looks_a_read_lag_apart() -> None:
    first = ask(PERMITTED, Absent(), contract=KEYLESS, now=212, began=211)
    assert isinstance(first, Wait)
    assert (first.absent, first.quiet_absence) == (True, True)
    once = replace(PERMITTED, absent_first_at=at(211))
    assert isinstance(ask(once, Absent(), contract=KEYLESS, now=241, began=240), Wait)
    assert ask(once, Absent(), contract=KEYLESS, now=242, began=241) == Resend(
        confirmed_absent=True
    )


def test_a_look_that_began_before_quiescence_confirms_nothing() -> None:
    early = ask(PERMITTED, Absent(), contract=KEYLESS, now=215, began=209)
    assert isinstance(early, Wait)
    assert not early.quiet_absence
    stale = replace(PERMITTED, absent_first_at=at(209))
    assert isinstance(ask(stale, Absent(), contract=KEYLESS, now=300, began=299), Wait)


def test_absence_confirmed_before_the_last_send_does_not_count_after_it() -> None:
    again = replace(
        PERMITTED, absent_first_at=at(211), last_lease_end=at(400), last_sent_at=at(340)
    )
    assert isinstance(ask(again, Absent(), contract=KEYLESS, now=600, began=599), Wait)


def test_an_unreadable_look_is_not_an_absent_one() -> None:
    once = replace(PERMITTED, absent_first_at=at(211))
    for look in (Unreadable("timeout"), Found((OPEN,)), Found(()), None):
        wait = ask(once, look, contract=KEYLESS, now=300)
        assert isinstance(wait, Wait)
        assert not wait.absent


def test_a_wait_looks_again_when_a_re_send_becomes_possible() -> None:
    wait = ask(Row(looks=9), Absent(), now=6)
    assert isinstance(wait, Wait)
    assert wait.due_in_s == 4
    quiet = ask(replace(PERMITTED, looks=9), Absent(), contract=KEYLESS, now=200)
    assert isinstance(quiet, Wait)
    assert quiet.due_in_s == 10


@pytest.mark.parametrize(
    ("ttl", "window", "crashes", "now", "wanted"),
    [
        (500, 1000, 0, 499, []),
        (500, 1000, 0, 500, ["ttl"]),
        (500, 1000, 0, 1000, ["ttl", "window"]),
        (2000, 1000, 0, 1000, ["window"]),
        (500, None, 0, 5000, ["ttl"]),
        (500, 1000, 3, 0, ["worker_lost"]),
        (500, 1000, 2, 0, []),
    ],
)
def test_a_person_is_asked_for_every_reason_there_is(
    ttl: float, window: float | None, crashes: int, now: float, wanted: list[str]
) -> None:
    reasons = reasons_to_escalate(
        ttl_at=at(ttl),
        window_ends_at=None if window is None else at(window),
        crashes=crashes,
        policy=POLICY,
        now=at(now),
    )
    assert reasons == wanted


def test_the_night_the_clocks_change_moves_no_deadline() -> None:
    # T0 is five minutes before Europe's clocks go forward; only seconds since count.
    reasons = reasons_to_escalate(
        ttl_at=at(3600), window_ends_at=None, crashes=0, policy=POLICY, now=at(3599)
    )
    assert reasons == []

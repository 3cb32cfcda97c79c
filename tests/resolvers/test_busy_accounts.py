"""A doubt at an account where much goes on: what came after it is not read through."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox import Unreachable
from resolvers import triage
from tests.workers.floor import Floor
from vendors import stripe_lookup

DAY = 86_400.0


@pytest.fixture
def busy(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> Floor:
    """A look-up reads fifteen objects at the most."""
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 5)
    monkeypatch.setattr(stripe_lookup, "MAX_PAGES", 3)
    return floor


def _much_goes_on(floor: Floor) -> None:
    params = {"amount": 100, "currency": "usd", "customer": "cus_demo"}
    for _ in range(20):
        floor.sandbox.plant(floor.account, "payment_intents.create", params)


def _in_doubt(floor: Floor, fault: str) -> UUID:
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


def test_an_old_doubt_at_a_busy_account_can_be_ruled_not_landed(busy: Floor) -> None:
    """The older it was, the more came after it, and the less it could be read."""
    intent_id = _in_doubt(busy, "lost_request")
    busy.advance(1900)
    _much_goes_on(busy)
    busy.advance(DAY)
    busy.look()
    assert busy.row(intent_id)["absent_looks"] == 1
    triage.not_landed(busy.store, busy.directory, intent_id, by="jane", reason="not at Stripe")
    assert busy.status(intent_id) == "failed_poison"


def test_what_landed_at_a_busy_account_is_found_a_day_later(busy: Floor) -> None:
    intent_id = _in_doubt(busy, "lost_ack")
    busy.advance(1900)
    _much_goes_on(busy)
    busy.advance(DAY)
    busy.look()
    assert busy.status(intent_id) == "succeeded"


def test_what_lands_as_late_as_a_request_may_is_found(busy: Floor) -> None:
    """The end of the lease and the time in flight, by a vendor's clock that is ahead."""
    busy.sandbox.fault("late_commit", account=busy.account, attempts=[1], after_s=3600)
    intent_id = busy.one()
    busy.drain()
    policy = busy.settings.policy
    busy.advance(policy.lease_s + 119)
    busy.sandbox.set_account(busy.account, clock_offset_s=busy.clock.offset + 590)
    busy.sandbox.release(busy.account)
    busy.sandbox.set_account(busy.account, clock_offset_s=busy.clock.offset)
    busy.look()
    assert busy.status(intent_id) == "succeeded"


def test_nothing_is_absent_where_the_vendors_clock_is_far_ahead(busy: Floor) -> None:
    """What landed then was created, by the vendor's clock, after the time that is sought."""
    busy.sandbox.set_account(busy.account, clock_offset_s=busy.clock.offset + 1200)
    intent_id = _in_doubt(busy, "lost_ack")
    busy.advance(1900)
    busy.sandbox.set_account(busy.account, clock_offset_s=busy.clock.offset + 1200)
    busy.look()
    row = busy.row(intent_id)
    assert (row["absent_looks"], row["absent_first_at"]) == (0, None)
    with pytest.raises(Unreachable, match="clock"):
        triage.not_landed(busy.store, busy.directory, intent_id, by="jane", reason="looked")

"""Never again: what a vendor forbids to send is not sent, and a person hears of it at once."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from outbox.contract import Call, Vendor
from outbox.outcomes import NotSent, Outcome
from resolvers import holding
from tests.workers.doubles import FirstHeld, Stalled
from tests.workers.floor import FAST, Floor, open_floor
from vendors.sandbox.client import Sandbox
from vendors.stripe_answers import outcome_of

_REFUSED = json.dumps({"error": {"type": "invalid_request_error", "code": "parameter_invalid"}})
_NEVER: Mapping[str, str] = {"Stripe-Should-Retry": "false"}


class _Answers:
    """The vendor's answer to each write: as it came, or (a status) refused for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)

    def wrap(self, vendor: Vendor) -> Vendor:
        return Stalled(vendor, after=self._after)

    def _after(self, call: Call, outcome: Outcome) -> Outcome:
        status = self._statuses.pop(0) if self._statuses else 0
        return outcome_of(call, status, _NEVER, _REFUSED.encode()) if status else outcome


def _go_on(floor: Floor, rounds: int = 8) -> None:
    """Time passes, and somebody lets go whatever is paused."""
    for _ in range(rounds):
        floor.advance(0.5)
        floor.round()
        holding.resume(floor.store, floor.directory, "stripe", "default", by="x", reason="y")


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_do_not_retry_on_a_refusal_ends_the_re_sends_of_what_is_in_doubt(
    database: str, sandbox: Sandbox, status: int
) -> None:
    with open_floor(database, sandbox, FAST, vendor=_Answers(0, status).wrap) as floor:
        # Neither arrives: whatever is answered to the second covers the first by nothing.
        sandbox.fault("lost_request", account=floor.account)
        intent_id = floor.one()
        floor.drain()
        _go_on(floor)
        row = floor.row(intent_id)
        assert (row["veto"], row["attempts"]) == ("do_not_retry", 2)
        assert (row["status"], row["doubt"]) == ("unknown", 1)


@pytest.mark.parametrize("status", [401, 403])
def test_what_was_never_sent_and_never_may_be_asks_a_person_at_once(
    database: str, sandbox: Sandbox, status: int
) -> None:
    with open_floor(database, sandbox, FAST, vendor=_Answers(status).wrap) as floor:
        sandbox.fault("lost_request", account=floor.account)
        intent_id = floor.one()
        floor.drain()
        floor.escalate()
        (question,) = [e for e in floor.escalations() if e["intent_id"] == intent_id]
        assert question["reasons"] == ["unsendable"]
        assert question["detail"]["why"] == "do_not_retry"
        _go_on(floor)
        row = floor.row(intent_id)
        assert (row["status"], row["veto"], row["attempts"]) == ("pending", "do_not_retry", 1)
        reasons = [e["reasons"] for e in floor.escalations() if e["intent_id"] == intent_id]
        assert reasons == [["unsendable"]]


def test_a_doubt_that_ends_with_a_veto_on_it_asks_a_person_at_once(
    database: str, sandbox: Sandbox
) -> None:
    """The late word of the one attempt: not sent, and never again."""
    held = FirstHeld(turn=lambda _: NotSent("forbidden", veto="do_not_retry"))
    with open_floor(database, sandbox, FAST, vendor=held.wrap) as floor:
        sandbox.fault("lost_request", account=floor.account)
        intent_id = floor.one()
        draining = floor.drain_beside()
        held.came.wait(30)
        floor.advance(floor.settings.policy.lease_s + 0.1)
        floor.expire()
        assert floor.row(intent_id)["doubt"] == 1
        held.go.set()
        draining.join()
        row = floor.row(intent_id)
        assert (row["status"], row["doubt"], row["veto"]) == ("unknown", 0, "do_not_retry")
        floor.escalate()
        assert [e["reasons"] for e in floor.escalations()] == [["unsendable"]]


def _resume(floor: Floor) -> None:
    holding.resume(floor.store, floor.directory, "stripe", "default", by="jane", reason="looked")


def _switches(floor: Floor) -> list[str]:
    return [row["kind"] for row in floor.sql("SELECT kind FROM outbox.switches")]


def test_one_write_that_is_always_forbidden_does_not_pause_its_account_again(
    floor: Floor,
) -> None:
    pill = floor.one()
    key = bytes(floor.row(pill)["key"]).hex()
    floor.sandbox.fault("forbidden_403", account=floor.account, key=key)
    floor.drain()
    assert _switches(floor) == ["pause"]
    others = floor.enqueue(3)
    floor.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '2 s' WHERE attempts > 0")
    _resume(floor)
    assert floor.drain() == 3
    floor.advance(3)
    assert floor.drain() == 1
    assert (_switches(floor), [floor.status(i) for i in others]) == ([], ["succeeded"] * 3)
    row = floor.row(pill)
    assert (row["status"], row["veto"], row["attempts"]) == ("pending", "forbidden", 2)
    floor.escalate()
    asked = [e["reasons"] for e in floor.escalations() if e["intent_id"] == pill]
    assert asked == [["unsendable"]]


def test_an_account_that_is_forbidden_everything_is_paused_again_and_no_row_is_given_up(
    floor: Floor,
) -> None:
    before = floor.one()
    floor.drain()
    assert floor.status(before) == "succeeded"
    floor.sandbox.fault("forbidden_403", account=floor.account)
    floor.enqueue(3)
    for _ in range(3):
        floor.drain()
        assert _switches(floor) == ["pause"]
        _resume(floor)
        floor.advance(1)
    assert floor.sql("SELECT id FROM outbox.intents WHERE veto IS NOT NULL") == []
    floor.sandbox.clear_faults(floor.account)
    floor.drain()
    assert floor.statuses() == {"succeeded": 4}

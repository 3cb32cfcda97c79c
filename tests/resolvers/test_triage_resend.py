"""Approving one more send: only where it cannot make a second effect, and would leave."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Denied
from outbox.contracts import CONTRACTS
from outbox.contracts.stripe import STRIPE
from outbox.outcomes import Lost, Receipt
from outbox.store import intents, switches
from outbox.store.contradictions import contradict
from resolvers import holding, triage
from tests.cli.conftest import desk, sandbox  # noqa: F401
from tests.cli.desk import Desk


def resend(desk: Desk, reference: UUID, **changes: Any) -> triage.Ruling:
    given = {"by": "alice", "reason": "the vendor lost it", **changes}
    return triage.resend(desk.store, desk.directory, str(reference), **given)


def test_a_write_in_doubt_goes_out_once_more_under_the_same_key(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    resend(desk, intent_id)
    assert desk.row(intent_id).status == "retryable"
    (row,) = desk.claim()
    outcome = desk.perform(row)
    assert isinstance(outcome, Receipt)
    assert (outcome.reading.receipt_id, outcome.wire.replayed) == (object_id, True)
    desk.record(row, outcome)
    assert len({r["key"] for r in desk.sandbox.requests(desk.vendor_account) if r["key"]}) == 1
    assert len(desk.sandbox.effects(desk.vendor_account)) == 1


def test_nothing_goes_out_again_once_the_window_is_closing(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    usable_s = desk.settings.policy.usable_window_s(desk.contract)
    assert usable_s is not None
    desk.forward(usable_s)
    with pytest.raises(Denied) as refused:
        resend(desk, intent_id)
    assert refused.value.code == "window_closed"
    assert desk.row(intent_id).status == "unknown"
    assert desk.claim() == []


def test_nothing_goes_out_again_after_a_veto(desk: Desk) -> None:
    intent_id = desk.enqueue()
    (row,) = desk.claim()
    desk.record(row, Lost("http_500", veto="stored_500"))
    with pytest.raises(Denied, match="stored_500"):
        resend(desk, intent_id)


def test_nothing_goes_out_again_while_a_contradiction_is_open(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    with desk.store.transaction() as tx:
        row = intents.lock(tx, intent_id)
        assert row is not None
        contradict(tx, row, "duplicate", ["pi_1", "pi_2"], "look-up")
    with pytest.raises(Denied) as refused:
        resend(desk, intent_id)
    assert refused.value.code == "contradiction"


def test_nothing_goes_out_again_while_the_account_is_paused(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    holding.pause(desk.store, desk.directory, "stripe", "default", by="bob", reason="incident")
    with pytest.raises(Denied, match=r"closed by bob since .*: incident"):
        resend(desk, intent_id)


def test_nothing_goes_out_again_while_the_clock_is_in_doubt(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    with desk.store.transaction() as tx:
        switches.doubt_clock(tx, "stepped by 60 s")
    with pytest.raises(Denied, match="stepped by 60 s"):
        resend(desk, intent_id)


def test_an_approval_ends_the_acknowledgement_that_would_hold_it_back(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    holding.ack(desk.store, desk.directory, str(question), by="alice", reason="looking")
    resend(desk, question)
    assert desk.escalation(question)["acked_until"] is None
    from resolvers.sweeping import withdraw_once

    assert withdraw_once(desk.store, desk.directory) == 0
    assert desk.row(intent_id).status == "retryable"


def test_approved_twice_is_approved_once(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    resend(desk, intent_id)
    before = desk.row(intent_id)
    assert not resend(desk, intent_id).changed
    assert desk.row(intent_id) == before
    assert before.resends == 1


def test_only_what_is_in_doubt_is_sent_again(desk: Desk) -> None:
    never_sent = desk.enqueue()
    with pytest.raises(Denied):
        resend(desk, never_sent)
    desk.claim()
    with pytest.raises(Denied):
        resend(desk, never_sent)
    settled, _ = desk.succeeded()
    with pytest.raises(Denied):
        resend(desk, settled)
    assert desk.row(settled).status == "succeeded"


def test_without_keys_a_second_send_needs_the_tools_leave_and_two_quiet_looks(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless = replace(STRIPE, honours_keys=False, window_s=None, read_lag_s=60.0)
    monkeypatch.setitem(CONTRACTS, "stripe", keyless)
    intent_id, _ = desk.lost()
    with pytest.raises(Denied) as refused:
        resend(desk, intent_id)
    assert refused.value.code == "no_key"
    desk.sql(
        "UPDATE outbox.intents SET absent_first_at = outbox.clock(), "
        "absent_last_at = outbox.clock() + INTERVAL '60 s'"
    )
    with pytest.raises(Denied):
        resend(desk, intent_id)
    desk.sql("UPDATE outbox.intents SET resend_when_absent = true")
    resend(desk, intent_id)
    row = desk.row(intent_id)
    assert (row.status, row.doubt) == ("retryable", 0)
    assert [r.id for r in desk.claim()] == [intent_id]


def test_a_dry_run_of_a_resend_checks_everything_and_changes_nothing(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    before = desk.row(intent_id)
    assert resend(desk, intent_id, dry_run=True).dry_run
    assert desk.row(intent_id) == before


def test_what_was_never_sent_can_be_cancelled_once_and_is_told(desk: Desk) -> None:
    intent_id = desk.enqueue()
    ruling = triage.cancel(desk.store, str(intent_id), by="alice", reason="customer withdrew")
    assert (ruling.changed, desk.row(intent_id).status) == (True, "cancelled")
    assert desk.settlements(intent_id) == [("settled", "cancelled", "cancelled")]
    again = triage.cancel(desk.store, str(intent_id), by="bob", reason="again")
    assert not again.changed
    assert "cancelled by alice at" in again.said
    assert desk.claim() == []


def test_what_may_have_been_sent_is_never_cancelled(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    with pytest.raises(Denied) as refused:
        triage.cancel(desk.store, str(intent_id), by="alice", reason="too late")
    assert refused.value.code == "may_have_left"
    assert desk.row(intent_id).status == "unknown"

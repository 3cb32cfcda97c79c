"""Verdicts on one intent. Each is a compare-and-set on what the person saw, and is audited with
who, when and why; the vendor is asked first, with no transaction open.

The same verdict a second time changes nothing and says so; a verdict that lost a race is
``Denied`` with who decided and when.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from outbox.contract import VendorContract
from outbox.errors import Denied
from outbox.outcomes import Reading
from outbox.policy import Policy
from outbox.states import Event, Facts, Status, transition
from outbox.store import escalations, intents, rulings, settlements
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from resolvers.decide import window_end
from resolvers.directory import Directory
from resolvers.triage_case import (
    Case,
    Ruling,
    decided,
    lock_unmoved,
    moment,
    read_case,
    read_intent_case,
    said_by,
)
from resolvers.triage_receipt import contract_for, nothing_landed, proven

__all__ = ["Case", "Ruling", "cancel", "landed", "not_landed", "read_case", "resend"]

SETTLED_BY = "ruling"


def landed(
    store: Store,
    directory: Directory,
    reference: Case | str | UUID,
    receipt_id: str = "",
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Rules that the write landed, by an object that the vendor shows now. On a succeeded row
    with a contradiction: rules that its receipt stands.

    Raises ``Denied``, ``Invalid`` (no receipt id), ``NotFound``, ``Unreachable``.
    """
    by, reason = said_by(by, reason)
    case = _case(store, reference)
    row = case.asked
    if row.state is Status.SUCCEEDED:
        repeat = _landed_before(store, directory, case, receipt_id)
        if repeat is not None:
            return repeat
    elif transition(row.state, Event.RULED_LANDED).denied:
        raise Denied("not_in_doubt", _not_in_doubt(row))
    reading = proven(directory, case, receipt_id)
    if dry_run:
        said = f"would rule that it landed as {reading.receipt_id}"
        return _would(case, "landed", Event.RULED_LANDED, said, reading.receipt_id)
    stated = {"receipt_stated": receipt_id} if receipt_id not in ("", reading.receipt_id) else {}
    change = Change(actor=by, reason=reason, reading=reading, detail=stated, settled_by=SETTLED_BY)
    drop = row.state is Status.FAILED_POISON and row.receipt_id != reading.receipt_id
    written = _write(store, case, Event.RULED_LANDED, change, "landed", drop_receipt=drop)
    said = f"ruled: landed as {written.receipt_id}"
    return _ruling(case, "landed", said, written, receipt_id=written.receipt_id)


def not_landed(
    store: Store,
    directory: Directory,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Rules that the write never landed: after quiescence, and where the vendor can be read only
    if a look made now finds nothing landed. Raises as ``landed``."""
    by, reason = said_by(by, reason)
    case = _case(store, reference)
    row = case.asked
    if transition(row.state, Event.RULED_NOT_LANDED, Facts(quiescent=True)).denied:
        if row.state is Status.SUCCEEDED:
            with store.transaction() as tx:
                raise Denied("settled", f"it landed as {row.receipt_id}: {decided(tx, row)}")
        raise Denied("not_in_doubt", _not_in_doubt(row))
    if row.settled_at is not None and not case.is_contradicted:
        with store.transaction() as tx:
            return _ruling(case, "not-landed", f"nothing to do: {decided(tx, row)}")
    with store.transaction() as tx:
        now = intents.now(tx)
    declined = nothing_landed(directory, case, now)
    if dry_run:
        said = "would rule that it never landed"
        return _would(case, "not-landed", Event.RULED_NOT_LANDED, said)
    change = Change(
        actor=by,
        reason=reason,
        reading=declined,
        quiescent=True,
        failure_code=_failure_code(row, declined),
        settled_by=SETTLED_BY,
    )
    written = _write(store, case, Event.RULED_NOT_LANDED, change, "not-landed")
    return _ruling(case, "not-landed", "ruled: never landed", written)


def resend(
    store: Store,
    directory: Directory,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Approves one more send of the same request under the same key, and ends an
    acknowledgement, which would hold it back. Raises ``Denied`` where a second send could make a
    second effect or would not leave: window closed, veto, contradiction, pause, no keys."""
    by, reason = said_by(by, reason)
    case = _case(store, reference)
    row = case.asked
    contract = contract_for(directory, row)
    if row.state is Status.RETRYABLE:
        return _ruling(case, "resend", "nothing to do: a re-send is approved already")
    if row.state is not Status.UNKNOWN:
        with store.transaction() as tx:
            raise Denied("not_in_doubt", f"only what is in doubt is sent again: {decided(tx, row)}")
    with store.transaction() as tx:
        current = lock_unmoved(tx, row, dry_run=dry_run)
        unsendable = directory.unsendable(current)
        if unsendable is not None:
            raise Denied("unsendable", f"no re-send could leave from here: {unsendable}")
        _check_resend(tx, current, contract, directory.policy)
        if dry_run:
            said = "would approve a re-send under the same key"
            return _would(case, "resend", Event.RESEND_APPROVED, said)
        rulings.unack(tx, row.id)
        change = Change(
            actor=by,
            reason=reason,
            resends=1,
            due_in_s=0.0,
            confirmed_absent=not contract.honours_keys,
        )
        written, _ = apply(tx, current, Event.RESEND_APPROVED, change)
    return _ruling(case, "resend", "approved: a re-send under the same key", written)


def cancel(
    store: Store,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Withdraws an intent of which no byte ever left. Raises ``Denied`` for every other."""
    by, reason = said_by(by, reason)
    case = reference if isinstance(reference, Case) else read_intent_case(store, reference)
    row = case.asked
    with store.transaction() as tx:
        if row.state is Status.CANCELLED:
            return _ruling(case, "cancel", f"nothing to do: {decided(tx, row)}")
        if transition(row.state, Event.CANCELLED).denied:
            raise Denied(
                "may_have_left", f"only what was never sent can be cancelled: {decided(tx, row)}"
            )
        current = lock_unmoved(tx, row, dry_run=dry_run)
        if dry_run:
            return _would(case, "cancel", Event.CANCELLED, "would cancel: it was never sent")
        change = Change(actor=by, reason=reason, settled_by=SETTLED_BY)
        written, _ = apply(tx, current, Event.CANCELLED, change)
    return _ruling(case, "cancel", "cancelled: it was never sent", written)


# -- shared ------------------------------------------------------------------------------------


def _case(store: Store, reference: Case | str | UUID) -> Case:
    return reference if isinstance(reference, Case) else read_case(store, reference)


def _write(
    store: Store,
    case: Case,
    event: Event,
    change: Change,
    verdict: str,
    *,
    drop_receipt: bool = False,
) -> Intent:
    """The ruling in one transaction: the row, its escalation, the callers' settlement, the log."""
    with store.transaction() as tx:
        row = lock_unmoved(tx, case.asked)
        open_escalation = rulings.lock_open_escalation(tx, row.id)
        # Before the settlement is written, which would else be told as unknown.
        if row.contradicted_at is not None or drop_receipt:
            row = rulings.clear_contradiction(tx, row, drop_receipt=drop_receipt)
        if open_escalation is not None:
            escalations.close(tx, open_escalation["id"], by=change.actor, verdict=verdict)
        written, came_to = apply(tx, row, event, change)
        if came_to.denied:
            raise Denied("not_in_doubt", _not_in_doubt(row))
        if not came_to.moved:
            settlements.lock_consumers(tx)
            settlements.write(tx, written, "ruled")
        return written


def _landed_before(
    store: Store, directory: Directory, case: Case, receipt_id: str
) -> Ruling | None:
    """A row that succeeded: the same verdict again, another receipt, or (None) a contradiction
    that this verdict rules on."""
    row = case.asked
    asks = contract_for(directory, row).can_look_up
    if asks and receipt_id and receipt_id != row.receipt_id:
        with store.transaction() as tx:
            raise Denied("settled", f"it landed as {row.receipt_id}: {decided(tx, row)}")
    if case.is_contradicted:
        return None
    with store.transaction() as tx:
        said = f"nothing to do: landed as {row.receipt_id}: {decided(tx, row)}"
    return _ruling(case, "landed", said, receipt_id=row.receipt_id)


def _check_resend(tx: Transaction, row: Intent, contract: VendorContract, policy: Policy) -> None:
    if row.contradicted_at is not None:
        raise Denied("contradiction", "a contradiction is open: rule landed or not-landed")
    if row.veto:
        raise Denied("veto", f"it must never be sent again: {row.veto}")
    closed = rulings.closing_switch(tx, row.gate)
    if closed is not None:
        raise Denied(
            "paused",
            f"{closed['holder']} is closed by {closed['set_by']} since "
            f"{moment(closed['set_at'])}: {closed['reason']}",
        )
    end = window_end(row, contract, policy)
    if end is None:
        first, last = row.absent_first_at, row.absent_last_at
        apart_s = (last - first).total_seconds() if first and last else 0.0
        if not (row.resend_when_absent and apart_s > 0 and apart_s >= contract.read_lag_s):
            raise Denied(
                "no_key",
                f"{row.vendor} honours no key: a second send could be a second effect "
                "(its tool must allow it, and two quiet look-ups must have found nothing)",
            )
    elif end <= intents.now(tx):
        raise Denied(
            "window_closed",
            f"{row.vendor} may have forgotten the key: the window closed at {moment(end)}",
        )


def _not_in_doubt(row: Intent) -> str:
    if row.state is Status.IN_FLIGHT:
        until = moment(row.lease_until) if row.lease_until else "soon"
        return f"a worker is sending it until {until}: its outcome may still be seen"
    return f"it is {row.status}: nothing was ever sent (it can be cancelled)"


def _failure_code(row: Intent, declined: Reading | None) -> str:
    if declined is not None:
        return declined.failure_code or "declined"
    return row.failure_code or "ruled_not_landed"


def _would(case: Case, verb: str, event: Event, said: str, receipt_id: str | None = None) -> Ruling:
    """A dry run that was refused nothing, with the status that the table would leave."""
    becomes = transition(case.asked.state, event, Facts(quiescent=True)).status
    made = _ruling(case, verb, said, receipt_id=receipt_id)
    return replace(made, dry_run=True, becomes=becomes)


def _ruling(
    case: Case,
    verb: str,
    said: str,
    written: Intent | None = None,
    *,
    receipt_id: str | None = None,
) -> Ruling:
    row = written or case.asked
    return Ruling(
        verb=verb,
        said=said,
        changed=written is not None,
        intent_id=row.id,
        escalation_id=case.escalation["id"] if case.escalation else None,
        status=row.status,
        receipt_id=receipt_id,
    )

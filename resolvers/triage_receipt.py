"""What the vendor itself says to a person's verdict. No transaction is open while it is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from outbox.contract import Account, Cutoff, Vendor, VendorContract
from outbox.errors import Denied, Invalid, Unreachable
from outbox.outcomes import Absent, Business, Found, LookUp, Reading, Standing, Unreadable
from outbox.store.intents import Intent
from resolvers.decide import mismatch, quiet_from
from resolvers.directory import Directory
from resolvers.evidence import look_up
from resolvers.triage_case import Case, moment
from vendors.watchdog import Watchdog


def contract_for(directory: Directory, row: Intent) -> VendorContract:
    """The contract the row was made under. Raises ``Denied`` for a vendor this release lacks."""
    contract = directory.contract(row.vendor)
    if contract is None or row.operation not in contract.operations:
        raise Denied("unknown_vendor", f"this release does not know {row.vendor} {row.operation}")
    return contract


def proven(directory: Directory, case: Case, receipt_id: str) -> Reading:
    """The object that shows the write landed, read from the vendor now.

    A vendor without a look-up cannot be asked: the verdict itself is the receipt. Raises
    ``Invalid`` without a receipt id, ``Denied`` where the object does not prove it,
    ``Unreachable`` where the vendor does not answer.
    """
    row = case.asked
    contract = contract_for(directory, row)
    if not contract.can_look_up:
        ruled = case.escalation["id"] if case.escalation else row.id
        return Reading(f"verdict:{ruled}", Standing.LANDED, Business.OTHER, "ruled")
    if not receipt_id.strip():
        raise Invalid("receipt", f"must be the id of the object at {row.vendor} that proves it")
    vendor, account = _reach(directory, row)
    seen = _read(
        directory,
        lambda cutoff: vendor.retrieve(row.call_to_read(account, cutoff), receipt_id.strip()),
    )
    reading = _one_of(seen, row, receipt_id.strip())
    if not contract.operations[row.operation].leaves_mark:
        owned = receipt_id.strip() in row.call_to_read(account).path.split("/")
    else:
        owned = reading.owner == str(row.id)
    if not owned:
        raise Denied("foreign_receipt", f"{receipt_id} is not of this intent")
    if reading.standing is not Standing.LANDED:
        raise Denied(
            "not_landed", f"{receipt_id} is {reading.word} at {row.vendor}: the write did not land"
        )
    _check_as_asked(case, reading)
    return reading


def shown_now(directory: Directory, case: Case) -> LookUp:
    """What the vendor shows of the intent, asked now. Raises ``Denied`` where it cannot be asked
    from here."""
    row = case.asked
    contract_for(directory, row)
    vendor, account = _reach(directory, row)
    return _read(
        directory,
        lambda cutoff: look_up(
            vendor, row, row.call_to_read(account, cutoff), directory.policy, case.now
        ),
    )


def nothing_landed(directory: Directory, case: Case, now: datetime) -> Reading | None:
    """A look made ``now`` that finds nothing landed; a declined object of ours comes back.

    Raises ``Denied`` before quiescence (with how long to wait) and where an object of ours
    landed or is still open, ``Unreachable`` where the vendor does not answer.
    """
    row = case.asked
    contract = contract_for(directory, row)
    begins = quiet_from(row, contract, directory.policy)
    if begins is None and row.last_sent_at is not None:
        bound_s = directory.policy.lease_s + directory.policy.quiet_after_s(contract)
        begins = row.last_sent_at + timedelta(seconds=bound_s)
    if begins is not None and now < begins:
        wait_s = int((begins - now).total_seconds()) + 1
        raise Denied(
            "not_quiet",
            f"the request may still land: nothing can be ruled absent for another {wait_s} s, "
            f"until {moment(begins)}",
        )
    if not contract.can_look_up:
        return None
    vendor, account = _reach(directory, row)
    seen = _read(
        directory,
        lambda cutoff: look_up(
            vendor, row, row.call_to_read(account, cutoff), directory.policy, now
        ),
    )
    if isinstance(seen, Unreadable):
        raise Unreachable(f"{row.vendor}/{row.account} cannot be read now: {seen.reason}")
    if isinstance(seen, Absent):
        return None
    landed = [r.receipt_id for r in seen.readings if r.standing is Standing.LANDED]
    if landed:
        raise Denied("landed", f"it landed: {row.vendor} has {', '.join(sorted(landed))} of it")
    open_ = [f"{r.receipt_id} ({r.word})" for r in seen.readings if r.standing is Standing.OPEN]
    if open_ and contract.operations[row.operation].leaves_mark:
        # Made by this very request: the effect may still come. A target was there before it.
        raise Denied(
            "open",
            f"{row.vendor} still shows {', '.join(sorted(open_))} of it, which may yet take "
            "effect: cancel it there, or wait",
        )
    declined = [r for r in seen.readings if r.standing is Standing.DECLINED]
    return declined[0] if len(declined) == 1 else None


def _reach(directory: Directory, row: Intent) -> tuple[Vendor, Account]:
    reached = directory.reach(row.vendor, row.account)
    if reached is None:
        raise Denied(
            "no_credentials",
            f"no credentials for {row.vendor}/{row.account} here: rule where they are configured",
        )
    vendor, account, _ = reached
    if row.mode is not None and row.mode != account.mode:
        raise Denied(
            "another_mode", f"it was sent in {row.mode} mode, {account.name} is {account.mode}"
        )
    if not row.is_of(account):
        raise Denied(
            "another_account",
            f"it was sent for {row.vendor_account}, {account.name} is now {account.vendor_account}",
        )
    return vendor, account


def _read(directory: Directory, read: Callable[[Cutoff], LookUp]) -> LookUp:
    with Watchdog() as watchdog, watchdog.limit(directory.policy.look_deadline_s) as cutoff:
        return read(cutoff)


def _one_of(seen: LookUp, row: Intent, receipt_id: str) -> Reading:
    if isinstance(seen, Unreadable):
        raise Unreachable(f"{row.vendor}/{row.account} cannot be read now: {seen.reason}")
    readings = seen.readings if isinstance(seen, Found) else ()
    for reading in readings:
        if reading.receipt_id == receipt_id:
            return reading
    raise Denied(
        "no_such_receipt", f"{row.vendor}/{row.account} has no {receipt_id} that is of this intent"
    )


def _check_as_asked(case: Case, reading: Reading) -> None:
    row = case.asked
    wrong = mismatch(row, reading)
    if wrong is None:
        return
    named = (case.escalation or {}).get("detail", {}).get("objects", [])
    asked_about = reading.receipt_id in named or reading.receipt_id == row.receipt_id
    if wrong in ("another amount", "another currency") and case.is_contradicted and asked_about:
        # The very question that was asked: without this, nobody could ever answer it.
        return
    raise Denied(
        wrong.replace(" ", "_"), f"{reading.receipt_id} is of {wrong} than this intent asked for"
    )

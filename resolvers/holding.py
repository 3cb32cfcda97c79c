"""What a person holds back or lets go: acknowledgements, mutes, pauses, and replays of events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.errors import Denied, Invalid, NotFound
from outbox.states import Event, Status, transition
from outbox.store import checks, escalations, inbox, intents, page_groups, rulings, switches
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply, log
from resolvers.directory import Directory
from resolvers.triage_case import Case, Ruling, moment, read_case, said_by

ACK_S = 3600.0
MAX_HOLD_S = 30 * 86400.0


def ack(
    store: Store,
    directory: Directory,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    for_s: float = ACK_S,
    dry_run: bool = False,
) -> Ruling:
    """Somebody looks at it until then: no page, and no re-send; one that was approved is
    withdrawn at once. Raises ``Denied`` where another person looks, or it is closed."""
    by, reason = said_by(by, reason)
    case = _open_case(store, reference)
    _check_end("for", for_s)
    with store.transaction() as tx:
        row = _row(tx, case, dry_run=dry_run)
        found = _open(tx, case, dry_run=dry_run)
        withdrawn = row is not None and row.state is Status.RETRYABLE
        if found["acked"] and found["acked_by"] != by:
            raise Denied(
                "acknowledged",
                f"{found['acked_by']} looks at it until {moment(found['acked_until'])}",
            )
        if found["acked"] and (found["acked_until"] - found["now"]).total_seconds() >= for_s - 1:
            said = f"nothing to do: you look at it until {moment(found['acked_until'])}"
            return _held(case, "ack", said, until=found["acked_until"])
        if dry_run:
            said = f"would acknowledge for {for_s:g} s" + ("; withdraws its re-send" * withdrawn)
            left = None
            if row is not None and withdrawn:
                left = transition(row.state, Event.RESEND_WITHDRAWN).status
            return _held(case, "ack", said, dry_run=True, becomes=left)
        until = rulings.ack(tx, found["id"], by=by, for_s=for_s)
        _log(tx, case, "acked", by, reason, {"until": moment(until)})
        if row is not None and withdrawn:
            due_in_s = directory.policy.look_delay_s(row.looks, escalated=True)
            apply(
                tx,
                row,
                Event.RESEND_WITHDRAWN,
                Change(actor=by, reason="a person looks", due_in_s=due_in_s),
            )
    said = f"acknowledged until {moment(until)}" + ("; its re-send is withdrawn" * withdrawn)
    return _held(case, "ack", said, changed=True, until=until)


def mute(
    store: Store,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    for_s: float,
    dry_run: bool = False,
) -> Ruling:
    """No page until then. It stays open, on the list and in the gauges."""
    by, reason = said_by(by, reason)
    case = _open_case(store, reference)
    _check_end("for", for_s)
    with store.transaction() as tx:
        _row(tx, case, dry_run=dry_run)
        found = _open(tx, case, dry_run=dry_run)
        left_s = (found["muted_until"] - found["now"]).total_seconds() if found["muted"] else 0.0
        if found["muted"] and left_s >= for_s - 1:
            said = (
                f"nothing to do: muted by {found['muted_by']} until {moment(found['muted_until'])}"
            )
            return _held(case, "mute", said, until=found["muted_until"])
        if dry_run:
            return _held(case, "mute", f"would mute for {for_s:g} s", dry_run=True)
        until = rulings.mute(tx, found["id"], by=by, for_s=for_s)
        _log(tx, case, "muted", by, reason, {"until": moment(until)})
    return _held(case, "mute", f"muted until {moment(until)}", changed=True, until=until)


def close(
    store: Store, reference: Case | str | UUID, *, by: str, reason: str, dry_run: bool = False
) -> Ruling:
    """Closes a question that is about no intent and that no switch keeps open (events of another
    account, say). Questions about intents are closed by a verdict."""
    by, reason = said_by(by, reason)
    case = reference if isinstance(reference, Case) else read_case(store, reference)
    if case.intent is not None:
        raise Denied("about_an_intent", "a question about an intent is closed by a verdict on it")
    assert case.escalation is not None
    with store.transaction() as tx:
        seen = rulings.see_escalation if dry_run else rulings.lock_escalation
        found = seen(tx, case.escalation["id"])
        assert found is not None
        if found["closed_at"] is not None:
            said = f"nothing to do: closed by {found['closed_by']} at {moment(found['closed_at'])}"
            return _held(case, "close", said)
        if rulings.switch(tx, found["holder"]) is not None:
            raise Denied("still_closed", f"{found['holder']} is still closed: resume it")
        if found["holder"].startswith(page_groups.GROUP):
            left = page_groups.open_in_group(tx, found["id"], 1).count
            if left:
                raise Denied("still_open", f"{left} of its questions are open; the last closes it")
        if dry_run:
            return _held(case, "close", "would close it", dry_run=True)
        escalations.close(tx, found["id"], by=by, verdict="closed")
        _log(tx, case, "closed", by, reason, {})
    return _held(case, "close", "closed", changed=True)


def pause(
    store: Store,
    directory: Directory,
    vendor: str,
    account: str,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Stops every claim for one account of a vendor until somebody resumes it; approved re-sends
    are withdrawn within a tick. Calls on the wire end as they end."""
    by, reason = said_by(by, reason)
    with _switch(store, directory, vendor, account) as (tx, holder, found):
        if found is not None and found["kind"] != "breaker":
            return _switched(holder, "pause", f"nothing to do: {_closed_by(found)}")
        held = f"{vendor}/{account}: {checks.waiting(tx, vendor, account)['intents']} writes wait"
        if dry_run:
            return _switched(holder, "pause", f"would pause {held}", dry_run=True)
        if not switches.pause(tx, vendor, account, kind="pause", reason=reason, by=by):
            now = rulings.switch(tx, holder)
            raise Denied("decided", f"decided meanwhile: {_closed_by(now or {})}")
    return _switched(holder, "pause", f"paused {held}", changed=True)


def resume(
    store: Store,
    directory: Directory,
    vendor: str,
    account: str,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Opens the account's gates again, whatever closed them; what is due is sent at once."""
    by, reason = said_by(by, reason)
    with _switch(store, directory, vendor, account) as (tx, holder, found):
        if found is None:
            return _switched(holder, "resume", f"nothing to do: {vendor}/{account} is open")
        if dry_run:
            return _switched(holder, "resume", f"would resume: {_closed_by(found)}", dry_run=True)
        if not switches.resume(tx, vendor, account, by=by, reason=reason):
            raise Denied("decided", f"somebody else has resumed {vendor}/{account} meanwhile")
    return _switched(holder, "resume", f"resumed {vendor}/{account}", changed=True)


def replay(store: Store, webhook: str, *, by: str, reason: str, dry_run: bool = False) -> Ruling:
    """Makes a kept event due to be joined again. Raises ``Denied`` where its body is gone."""
    by, reason = said_by(by, reason)
    if not (webhook.isascii() and webhook.isdigit()) or len(webhook) > 18:
        raise Invalid("webhook", f"{webhook!r} is not a number of the inbox; `webhook list` has it")
    with store.transaction() as tx:
        row = rulings.webhook(tx, int(webhook))
        if row is None:
            raise NotFound("webhook", f"the inbox has no event {webhook}")
        holder = f"webhook:{row['vendor']}/{row['account']}"
        if not row["kept"]:
            raise Denied("not_kept", f"event {webhook} is {row['state']}: its body was not kept")
        if row["state"] == "new" and row["due_at"] is not None:
            return _switched(holder, "replay", f"nothing to do: event {webhook} is due already")
        if dry_run:
            return _switched(holder, "replay", f"would replay event {webhook}", dry_run=True)
        inbox.replay(tx, row["id"])
        log(
            tx,
            kind="webhook_replayed",
            actor=by,
            intent_id=row["intent_id"],
            holder=holder,
            reason=reason,
            detail={"event": row["event_id"]},
        )
    return _switched(holder, "replay", f"event {webhook} will be joined again", changed=True)


# -- shared ------------------------------------------------------------------------------------


def _open_case(store: Store, reference: Case | str | UUID) -> Case:
    case = reference if isinstance(reference, Case) else read_case(store, reference)
    if case.escalation is None:
        raise NotFound("id", "this intent has no escalation")
    return case


def _row(tx: Transaction, case: Case, *, dry_run: bool) -> Intent | None:
    """The intent, locked before its escalation as every writer does; a dry run locks nothing."""
    if case.intent is None:
        return None
    return intents.read(tx, case.intent.id) if dry_run else intents.lock(tx, case.intent.id)


def _open(tx: Transaction, case: Case, *, dry_run: bool) -> dict[str, Any]:
    assert case.escalation is not None
    seen = rulings.see_escalation if dry_run else rulings.lock_escalation
    found = seen(tx, case.escalation["id"])
    assert found is not None
    if found["closed_at"] is not None:
        raise Denied(
            "closed",
            f"closed by {found['closed_by']} at {moment(found['closed_at'])}: {found['verdict']}",
        )
    return found


def _check_end(field: str, for_s: float) -> None:
    if not 0 < for_s <= MAX_HOLD_S:
        raise Invalid(field, f"must be more than 0 and at most {MAX_HOLD_S / 86400:g} days")


@contextmanager
def _switch(
    store: Store, directory: Directory, vendor: str, account: str
) -> Iterator[tuple[Transaction, str, dict[str, Any] | None]]:
    """A transaction over an account's switch: the holder's name, and what closed it (None: open).
    Raises ``NotFound`` for an account that nobody knows."""
    holder = switches.holder_of(vendor, account)
    with store.transaction() as tx:
        found = rulings.switch(tx, holder)
        known = set(directory.settings.accounts)
        known |= {(r["vendor"], r["account"]) for r in rulings.known_accounts(tx)}
        if found is None and (vendor, account) not in known:
            candidates = tuple(f"{v}/{a}" for v, a in sorted(known))
            raise NotFound("account", f"no account {vendor}/{account} is known", candidates)
        yield tx, holder, found


def _closed_by(found: dict[str, Any]) -> str:
    return f"closed by {found['set_by']} at {moment(found['set_at'])}: {found['reason']}"


def _log(
    tx: Transaction, case: Case, kind: str, by: str, reason: str, detail: dict[str, Any]
) -> None:
    row, question = case.intent, case.escalation
    log(
        tx,
        kind=kind,
        actor=by,
        intent_id=row.id if row else None,
        holder=None if row or question is None else question["holder"],
        from_status=row.status if row else None,
        to_status=row.status if row else None,
        reason=reason,
        detail=detail,
    )


def _held(
    case: Case,
    verb: str,
    said: str,
    *,
    changed: bool = False,
    dry_run: bool = False,
    until: datetime | None = None,
    becomes: str | None = None,
) -> Ruling:
    question = case.escalation or {}
    now = case.intent.status if case.intent and dry_run else None
    return Ruling(
        verb=verb,
        said=said,
        changed=changed,
        dry_run=dry_run,
        intent_id=case.intent.id if case.intent else None,
        escalation_id=question.get("id"),
        holder=question.get("holder"),
        until=until,
        status=now,
        becomes=becomes or now,
    )


def _switched(
    holder: str, verb: str, said: str, *, changed: bool = False, dry_run: bool = False
) -> Ruling:
    return Ruling(verb=verb, said=said, changed=changed, dry_run=dry_run, holder=holder)

"""Joining stored webhooks to their intents: by request key, then metadata, then receipt id.

No vendor is called here, so a vendor that hangs cannot hold up its own webhooks. Where an event
is not enough (it would settle as declined, it is older than what is known), the row is made due
for a fresh read instead.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any
from uuid import UUID

from outbox.contract import Account, Vendor
from outbox.errors import Busy, Unreachable
from outbox.outcomes import Reading, Standing, WebhookFact
from outbox.states import Status
from outbox.store import doubt, escalations, inbox, intents
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import log
from resolvers import parts
from resolvers.directory import Directory
from resolvers.evidence import apply_reading

_log = logging.getLogger(__name__)
ACTOR = "webhook"
_BATCH = 100
_HOLD_S = 30.0
_AGAIN_S = (1.0, 5.0, 30.0, 300.0, 3600.0)
# An intent that another transaction has in hand, a caller's it may be, is not waited for.
_LOCK_S = 0.1
_BUSY_AGAIN_S = 1.0
_SOON_S = 5.0
# A job goes on for so many of its periods while batches are full: its heartbeat is due by three.
_PERIODS = 2


def join_once(store: Store, directory: Directory, limit: int = _BATCH) -> int:
    """Joins what is due, for as long as the job may take; returns how many events were looked
    at."""
    budget_s = _PERIODS * directory.policy.tick_join_s
    return parts.in_pieces(lambda: _join_batch(store, directory, limit), limit, budget_s)


def _join_batch(store: Store, directory: Directory, limit: int) -> int:
    with store.transaction() as tx:
        rows = inbox.claim(tx, limit, _HOLD_S)
        # Asked before any intent is sought: what ends after this has left its receipt by then.
        sending = inbox.sending(tx) if rows else set()
    for row in rows:
        row["explicable"] = (row["vendor"], row["account"]) in sending
        try:
            _join(store, directory, row)
        except Busy as error:
            _log.warning("an event waits for its intent: %s", error)
            _park(store, row, _BUSY_AGAIN_S, "its intent is in another transaction's hands")
        except Unreachable:
            raise
        except Exception as error:
            # Nothing of it was written. It waits by itself, and holds up no other event.
            again_s = _AGAIN_S[min(row["tries"], len(_AGAIN_S)) - 1]
            _park(store, row, again_s, f"could not be joined: {type(error).__name__}")
    return len(rows)


def _park(store: Store, row: dict[str, Any], again_s: float, detail: str) -> None:
    with store.transaction() as tx:
        inbox.park(tx, row["id"], again_s, detail)


def _join(store: Store, directory: Directory, row: dict[str, Any]) -> None:
    reached = directory.reach(row["vendor"], row["account"])
    if reached is None:
        _park(store, row, _AGAIN_S[-1], "no such account here")
        return
    vendor, account, _ = reached
    body = inbox.body_of(row, store.codec)
    try:
        facts = [f for f in vendor.reread_webhook(account, body) if f.event_id == row["event_id"]]
    except ValueError:
        facts = []
    with store.transaction() as tx:
        if not facts:
            inbox.settle(tx, row["id"], "foreign", detail="nothing readable in it")
            return
        tx.hurry(_LOCK_S)
        joined = [_join_fact(tx, directory, vendor, account, row, fact) for fact in facts]
        owners = [owner for owner in joined if owner is not None]
        if owners:
            inbox.settle(tx, row["id"], "joined", intent_id=owners[0])


def _join_fact(
    tx: Transaction,
    directory: Directory,
    vendor: Vendor,
    account: Account,
    row: dict[str, Any],
    fact: WebhookFact,
) -> UUID | None:
    about: dict[str, Any] = {
        "vendor": row["vendor"],
        "account": row["account"],
        "receipt_ids": (fact.object_id, *fact.receipt_ids),
    }
    found = inbox.owner_of(
        tx,
        key=_key(fact.request_key),
        owner_key=_key(fact.owner_key),
        owner=_id(fact.owner),
        **about,
    )
    if found is None:
        _wait_or_drop(tx, directory, row, fact)
        return None
    intent_id, joined_by = found
    others = inbox.lock_landed(tx, intent_id, **about)
    intent = intents.lock(tx, intent_id)
    assert intent is not None
    wrong = _wrong_place(directory, intent, account, fact)
    if wrong is not None:
        inbox.settle(tx, row["id"], "mismatch", intent_id=None, detail=wrong)
        escalations.open_for_holder(
            tx,
            f"webhook:{row['vendor']}/{row['account']}",
            ["webhook_mismatch"],
            {"vendor": row["vendor"], "account": row["account"], "why": wrong},
        )
        return None
    _apply(tx, vendor, intent, fact, joined_by)
    # A refund of ours joins the refund; that the charge is paid no more, its own intent must read.
    doubt.schedule_verification(tx, others, 0.0)
    return intent_id


def _wrong_place(
    directory: Directory, intent: Intent, account: Account, fact: WebhookFact
) -> str | None:
    """An event of another account or mode never touches the intent, whatever its marks say. Two
    names may stand for one vendor account: then each event comes to the doors of both."""
    named = directory.account(intent.vendor, intent.account)
    is_one = named is not None and (named.vendor_account, named.mode) == (
        account.vendor_account or None,
        account.mode,
    )
    if intent.account != account.name and not is_one:
        return "an event of another account names this intent"
    modes = {account.mode, intent.mode} - {None}
    if fact.livemode is not None and modes != {"live" if fact.livemode else "test"}:
        return "an event of another mode names this intent"
    if len({fact.vendor_account, account.vendor_account, intent.vendor_account} - {None, ""}) > 1:
        return "an event of another vendor account names this intent"
    return None


def _apply(
    tx: Transaction, vendor: Vendor, intent: Intent, fact: WebhookFact, joined_by: str
) -> None:
    reading = _reading(vendor, intent, fact)
    log(
        tx,
        intent_id=intent.id,
        actor=ACTOR,
        kind="webhook_joined",
        from_status=intent.status,
        to_status=intent.status,
        detail={"event": fact.event_id, "type": fact.kind, "by": joined_by},
    )
    if reading is None or reading.standing is not Standing.LANDED:
        _read_fresh(tx, intent)
    elif intent.state is Status.SUCCEEDED and intent.receipt_id == reading.receipt_id:
        _follow(tx, intent, reading)
    else:
        apply_reading(tx, intent, reading, actor=ACTOR, source="webhook")


def _follow(tx: Transaction, intent: Intent, reading: Reading) -> None:
    """A later word on a landed object. Events come out of order, and two may carry one second:
    unless this one is plainly newer, the object itself is asked."""
    known = (intent.business_word, intent.business_status)
    if (reading.word, reading.business) == known or (
        reading.vendor_time > intent.business_vendor_time
    ):
        apply_reading(tx, intent, reading, actor=ACTOR, source="webhook")
    else:
        _read_fresh(tx, intent)


def _read_fresh(tx: Transaction, intent: Intent) -> None:
    if intent.state is Status.SUCCEEDED:
        doubt.schedule_verification(tx, [intent.id], 0.0)
    else:
        doubt.look_now(tx, intent.id)


def _reading(vendor: Vendor, intent: Intent, fact: WebhookFact) -> Reading | None:
    """The event's snapshot, where it is the operation's own object and surely ours."""
    if fact.snapshot is None:
        return None
    try:
        asked = intent.call_to_read(_NOBODY).asked
        reading = vendor.classify(intent.operation, fact.snapshot, asked)
    except (KeyError, TypeError, ValueError):
        return None
    if reading is None:
        return None
    target = (intent.receipt_id, *_targets(vendor, intent))
    if reading.owner != str(intent.id) and reading.receipt_id not in target:
        return None
    # The object as of the event, and not as of its creation: later words are plainly newer.
    return replace(reading, vendor_time=fact.vendor_time or reading.vendor_time)


def _targets(vendor: Vendor, intent: Intent) -> tuple[str, ...]:
    """The object that an operation on an existing object names in its path. What such an operation
    makes bears a mark instead, and its path may name the object's parent."""
    spec = vendor.contract.operations.get(intent.operation)
    if spec is not None and spec.leaves_mark:
        return ()
    path: str = intent.call_to_read(_NOBODY).path
    return tuple(part for part in path.split("/") if part)


_NOBODY = Account(name="", mode="test")


def _wait_or_drop(
    tx: Transaction, directory: Directory, row: dict[str, Any], fact: WebhookFact
) -> None:
    """An event whose intent is not known (yet). Our marks on it: kept until it joins. No mark of
    ours: kept as long as a reply that would explain it can still come (for none, where nothing of
    the account is in flight or in doubt), then it is foreign."""
    policy = directory.policy
    marked = bool(_key(fact.request_key) or _key(fact.owner_key) or _id(fact.owner))
    patience_s = policy.park_s if marked else 2 * policy.lease_s
    left_s = patience_s - row["age_s"]
    if left_s > 0 and marked:
        again_s = _AGAIN_S[min(row["tries"] - 1, len(_AGAIN_S) - 1)]
        inbox.park(tx, row["id"], min(again_s, patience_s), "no intent of ours yet")
    elif left_s > 0 and row["explicable"]:
        # Most are foreign and there may be many: looked at soon, and once more at the end.
        again_s = _SOON_S if row["tries"] == 1 else left_s
        inbox.park(tx, row["id"], min(again_s, left_s), "no intent of ours yet")
    elif marked:
        inbox.park(tx, row["id"], None, "our marks, and no such intent")
    else:
        inbox.settle(tx, row["id"], "foreign")


def _key(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return key if len(key) == 32 else None


def _id(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None

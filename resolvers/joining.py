"""Joining stored webhooks to their intents: by request key, then metadata, then receipt id.

No vendor is called here, so a vendor that hangs cannot hold up its own webhooks. Where an event
is not enough (it would settle as declined, it is older than what is known), the row is made due
for a fresh read instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from outbox.contract import Account, Vendor
from outbox.errors import Unreachable
from outbox.outcomes import Reading, Standing, WebhookFact
from outbox.states import Status
from outbox.store import doubt, escalations, inbox, intents
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import log
from resolvers.directory import Directory
from resolvers.evidence import apply_reading

ACTOR = "webhook"
_BATCH = 200
_HOLD_S = 30.0
_AGAIN_S = (1.0, 5.0, 30.0, 300.0, 3600.0)


def join_once(store: Store, directory: Directory, limit: int = _BATCH) -> int:
    """Joins what is due; returns how many events were looked at."""
    with store.transaction() as tx:
        rows = inbox.claim(tx, limit, _HOLD_S)
    for row in rows:
        try:
            _join(store, directory, row)
        except Unreachable:
            raise
        except Exception as error:
            # Nothing of it was written. It waits by itself, and holds up no other event.
            with store.transaction() as tx:
                again_s = _AGAIN_S[min(row["tries"], len(_AGAIN_S)) - 1]
                inbox.park(tx, row["id"], again_s, f"could not be joined: {type(error).__name__}")
    return len(rows)


def _join(store: Store, directory: Directory, row: dict[str, Any]) -> None:
    reached = directory.reach(row["vendor"], row["account"])
    if reached is None:
        with store.transaction() as tx:
            inbox.park(tx, row["id"], _AGAIN_S[-1], "no such account here")
        return
    vendor, account, _ = reached
    body = bytes(row["body"]) if row["body"] is not None else b""
    try:
        facts = [f for f in vendor.reread_webhook(account, body) if f.event_id == row["event_id"]]
    except ValueError:
        facts = []
    with store.transaction() as tx:
        if not facts:
            inbox.settle(tx, row["id"], "foreign", detail="nothing readable in it")
            return
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
    wrong = _wrong_place(intent, account, fact)
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


def _wrong_place(intent: Intent, account: Account, fact: WebhookFact) -> str | None:
    """An event of another account or mode never touches the intent, whatever its marks say."""
    if intent.account != account.name:
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
        params = intent.call(_NOBODY).params
        reading = vendor.classify(intent.operation, fact.snapshot, params)
    except (KeyError, TypeError, ValueError):
        return None
    if reading is None:
        return None
    target = (intent.receipt_id, *_targets(intent))
    if reading.owner != str(intent.id) and reading.receipt_id not in target:
        return None
    # The object as of the event, and not as of its creation: later words are plainly newer.
    return replace(reading, vendor_time=fact.vendor_time or reading.vendor_time)


def _targets(intent: Intent) -> tuple[str, ...]:
    """The object that an operation on an existing object names in its path."""
    path: str = intent.call(_NOBODY).path
    return tuple(path.split("/")[3:4])


_NOBODY = Account(name="", mode="test")


def _wait_or_drop(
    tx: Transaction, directory: Directory, row: dict[str, Any], fact: WebhookFact
) -> None:
    """An event whose intent is not known (yet). Our marks on it: kept until it joins. No mark of
    ours: kept as long as a reply that would explain it can still come, then it is foreign."""
    policy = directory.policy
    marked = bool(_key(fact.request_key) or _key(fact.owner_key) or _id(fact.owner))
    patience_s = policy.park_s if marked else 2 * policy.lease_s
    if row["age_s"] < patience_s:
        again_s = _AGAIN_S[min(row["tries"] - 1, len(_AGAIN_S) - 1)]
        inbox.park(tx, row["id"], min(again_s, patience_s), "no intent of ours yet")
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

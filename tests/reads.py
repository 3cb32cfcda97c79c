"""Every statement by which the product looks for rows of the ledger, by name: what is due, what is
listed, and what ``doctor`` asks. Each takes a transaction, which may only explain them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from outbox.intent import Draft
from outbox.store import (
    checks,
    claims_metered_sql,
    claims_sql,
    depths,
    doubt,
    epochs,
    escalations,
    held,
    inbox,
    listing,
    neighbours,
    overdue,
    page_groups,
    pages,
    reading,
    rulings,
    settlements,
    switches,
    vitals,
)
from outbox.store.claims import Claimer
from outbox.store.enqueueing import sought
from outbox.store.enqueueing_sql import FIND, INSERT, OVER, TOLD, as_drafts
from outbox.store.intents import Intent
from outbox.store.neighbours import Kin
from outbox.store.overdue import Place
from resolvers import doctoring
from resolvers.directory import Directory
from tests.plans import Ask

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_NOBODY = UUID(int=1)
_CLAIMS = {
    "batch": claims_sql.BATCH,
    "lanes": claims_sql.LANE_BATCH,
    "alone": claims_sql.SOLO,
    "metered batch": claims_metered_sql.BATCH,
    "metered lanes": claims_metered_sql.LANE_BATCH,
    "metered alone": claims_metered_sql.SOLO,
}
CLAIMS = {
    f"{name}, probing {probing}": sql
    for name, pair in _CLAIMS.items()
    for probing, sql in pair.items()
} | {"batch, direct": claims_sql.DIRECT}


class _Row:
    """As much of a row as is asked for before it is locked."""

    id, version = _NOBODY, 1


def claim_params(claimer: Claimer) -> dict[str, Any]:
    """The parameters of ``CLAIMS`` for the account of a claimer; of the metered ones, too, where
    the account has a rate."""
    (part,) = claimer._parts
    return {**part.params, "limit": 64, "cursor": "", "mark": _NOW}


def claiming(params: Mapping[str, Any]) -> Mapping[str, Ask]:
    """Claims of accounts without a rate, and what is asked before them."""
    free = {n: sql for n, sql in CLAIMS.items() if not n.startswith("metered")}
    return {
        "anything to claim": _explain(claims_sql.AHEAD, {"mark": _NOW}),
        **{name: _explain(sql, params) for name, sql in free.items()},
    }


def _explain(sql: Any, params: Mapping[str, Any] | None = None) -> Ask:
    return lambda tx: tx.all(sql, params)


def enqueueing(made: Draft) -> Mapping[str, Ask]:
    """What enqueue asks and writes for a draft, what a caller asks later, and the turn of a run."""
    of_run = {"tenant": made.scope.tenant, "run_id": made.scope.run_id, "epoch": "turn-2"}
    depth = {"tenants": ["acme"], "tools": ["charge"], "lanes": ["x"], "mosts": [1000]}
    return {
        "a new intent": _explain(INSERT, {"drafts": as_drafts([made.columns])}),
        "a recorded key": _explain(FIND, sought(made)),
        "what was told": _explain(TOLD, {"id": str(made.id), "version": 1}),
        "an epoch that is over": _explain(OVER, of_run),
        "how many wait": _explain(depths.COUNT, depth),
        "a new epoch": _explain(epochs._CANCEL, of_run),
        "what became of it": lambda tx: reading.look(tx, [made.id]),
    }


def due(vendor: str, account: str) -> Mapping[str, Ask]:
    """What the resolvers, the pagers, health and the consumers look for by time, of one account."""
    prefix = f"{vendor}/{account}/"
    place = Place(vendor, account, None, asked=False)
    at: dict[str, Any] = {"limit": 10, "hold_s": 1.0, "accounts": [prefix]}
    return {
        "anything to claim": _explain(claims_sql.AHEAD, {"mark": _NOW}),
        "leases": lambda tx: doubt.expire_leases(tx, limit=10, look_after_s=1, max_crashes=3),
        "doubts": lambda tx: doubt.claim_doubts(tx, **at),
        "doubts of one list": lambda tx: neighbours.claim(
            tx, Kin(vendor, account, "payment_intents.create", "v1", None, None),
            created=(_NOW, _NOW), token=None, hold_s=1, limit=10,
        ),
        "doubts in one transaction": lambda tx: neighbours.lock(tx, [cast(Intent, _Row())]),
        "accounts in doubt": lambda tx: doubt.doubtful(tx, [prefix]),
        "verifications": lambda tx: doubt.claim_verifications(tx, **at),
        "accounts to verify": lambda tx: doubt.unverified(tx, [prefix]),
        "withdrawals": lambda tx: doubt.withdrawable(tx, 10, {vendor: 60.0}),
        "held by predecessors": lambda tx: held.claim_held(tx, limit=10, hold_s=1),
        "stale epochs": lambda tx: doubt.cancel_stale_epochs(tx, 10),
        "anything due": switches.anything_due,
        "known accounts": rulings.known_accounts,
        "accounts that send": inbox.sending,
        "gauges": vitals.gauges,
        "webhooks": lambda tx: inbox.claim(tx, 10, 1.0),
        "whose event it is": lambda tx: inbox.owner_of(
            tx, vendor=vendor, account=account, key=b"k" * 32, owner_key=b"o" * 32,
            owner=_NOBODY, receipt_ids=("pi_none",),
        ),
        "others of an object": lambda tx: inbox.lock_landed(
            tx, _NOBODY, vendor=vendor, account=account, receipt_ids=("pi_none",)
        ),
        "deliveries": _explain(settlements.TAKE, {"consumer": "billing", "limit": 10}),
        "settled and still asked": lambda tx: escalations.settled_intents(tx, 10),
        "questions of opened accounts": lambda tx: escalations.close_opened(tx, by="test"),
        "pages": lambda tx: (
            pages.next_due(tx, first="one"),
            pages.claim(tx, 1, first="one", hold_s=1.0),
        ),
        "groups of pages": lambda tx: page_groups.waiting(tx, first="one", plain=[]),
        "due by job": lambda tx: checks.due(
            tx, prefixes=[prefix], lane_wait_s=1.0, windows={vendor: 60.0}
        ),
        "waiting behind a switch": lambda tx: checks.waiting(tx, vendor, account),
        **escalating(place),
    }  # fmt: skip


def escalating(place: Place, since: datetime = _NOW) -> Mapping[str, Ask]:
    """What falls due for a person."""
    return {
        "overdue": lambda tx: overdue.claim_sent(tx, since, 10),
        "overdue accounts": lambda tx: overdue.places(tx, since),
        "overdue and waiting": lambda tx: overdue.claim_waiting(tx, place, since, 10),
        "overdue in a lane": lambda tx: overdue.rest_lane(tx, "x", since, in_s=1, limit=10),
        "held lanes": lambda tx: overdue.held_lanes(tx, wait_s=1, limit=10),
        "last word": lambda tx: overdue.last_word(tx, _NOBODY),
    }


def lists(vendor: str, account: str) -> Mapping[str, Ask]:
    """What the command line shows and offers. Each ends with its page."""
    of: dict[str, Any] = {"vendor": vendor, "account": account}
    filtered: dict[str, dict[str, Any]] = {
        "all": {},
        "the page behind": {"after": 1000},
        "in doubt": {"status": ["unknown"]},
        "unsettled": {"status": ["pending", "unknown", "retryable", "in_flight"]},
        "of an account": of,
        "in doubt, of an account": {**of, "status": ["unknown"]},
        "of a run": {"tenant": "acme", "run_id": "run-9"},
        "asked about": {"escalated": True},
        "old and pending": {"status": ["pending"], "older_s": 60.0},
    }
    asked: dict[str, Ask] = {
        f"intents, {name}": partial(listing.intents, limit=50, **filters)
        for name, filters in filtered.items()
    }
    asked |= {
        f"escalations, {name}": partial(listing.escalations, limit=50, **filters)
        for name, filters in {
            "open": {}, "all": {"everything": True}, "of an account": of, "muted": {"muted": True},
        }.items()
    }  # fmt: skip
    asked |= {
        f"offered: {what}": partial(listing.suggestions, what=what, prefix=prefix, limit=20)
        for what, prefix in {
            "escalation": "", "intent": "0123456", "vendor": "", "account": "", "tenant": "",
            "tool": "",
        }.items()
    }  # fmt: skip
    return {
        **asked,
        "offered: unsettled intents": partial(
            listing.suggestions, what="intent", prefix="", limit=20
        ),
        "webhooks": lambda tx: reading.webhooks(tx, state=None, limit=50, after=None),
        "the newest intents": lambda tx: reading.intents(tx, limit=50),
        "a history": lambda tx: reading.history(tx, _NOBODY),
        "events of an intent": lambda tx: reading.webhooks_of(tx, _NOBODY),
        "an intent's question": lambda tx: reading.escalation_of(tx, _NOBODY),
        "unsettled by account": checks.unsettled,
    }


def doctor(directory: Directory) -> Mapping[str, Ask]:
    """Each question of ``doctor``, as it stands in the product."""
    return {
        question.check: lambda tx, ask=question.ask: list(ask(tx))  # type: ignore[misc]
        for question in doctoring._questions(directory)
    }


def metered(account: Any) -> Any:
    """The account with a rate."""
    return replace(account, rate_per_s=1.0, burst=9)

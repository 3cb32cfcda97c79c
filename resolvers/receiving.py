"""Webhooks at the door: verified over the raw bytes, stored, and only then acknowledged.

Verified once, at receipt; joining happens later and elsewhere. Every answer that is not 2xx makes
the vendor deliver again, so it is given only where that may help.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Self

from outbox.contract import Account
from outbox.errors import Unreachable
from outbox.forks import PerProcess
from outbox.outcomes import WebhookFact, WebhookRefused
from outbox.settings import Settings
from outbox.store import escalations, inbox, intents
from outbox.store.connection import Store, Transaction
from resolvers.directory import Directory

OK, REFUSED, UNKNOWN, TOO_LARGE, UNAVAILABLE = 200, 400, 404, 413, 503
_NAME_CHARS = 255
_CONNECTIONS = 8


def receive(
    store: Store,
    directory: Directory,
    *,
    vendor: str,
    account: str,
    headers: Mapping[str, str],
    body: bytes,
    now_epoch_s: int | None = None,
) -> tuple[int, str]:
    """One delivery; returns an HTTP status and a text that is safe to answer with.

    200 stored, or stored before; 400 not genuine (nothing is stored); 404 no such vendor or
    account; 413 too large; 503 no secret is configured, or the database did not take it: the
    vendor delivers again. ``body`` is what came over the wire, byte for byte; ``headers`` in any
    case; ``now_epoch_s`` overrides the database's clock.
    """
    reached = directory.reach(vendor, account)
    if reached is None or not reached[2].has_webhooks:
        return UNKNOWN, "no such vendor or account"
    adapter, found, _ = reached
    if len(body) > directory.settings.webhook_max_bytes:
        return TOO_LARGE, "the body is too large"
    if not any(secret.strip() for secret in found.webhook_secrets):
        return UNAVAILABLE, "no webhook secret is configured for this account"
    try:
        with store.transaction() as tx:
            now = now_epoch_s if now_epoch_s is not None else int(intents.now(tx).timestamp())
            facts = adapter.read_webhook(found, headers, body, now)
            fresh = [_keep(tx, vendor, found, fact, body) for fact in _one_each(facts)]
    except WebhookRefused as refused:
        return REFUSED, str(refused)
    except Unreachable:
        return UNAVAILABLE, "the event was not stored: the database does not answer"
    return OK, "stored" if any(fresh) else "stored before"


def _one_each(facts: list[WebhookFact]) -> list[WebhookFact]:
    """One row an event, in one order, so that two deliveries cannot deadlock."""
    by_id = {fact.event_id: fact for fact in reversed(facts)}
    return [by_id[event_id] for event_id in sorted(by_id)]


def _keep(tx: Transaction, vendor: str, account: Account, fact: WebhookFact, body: bytes) -> bool:
    wrong = _of_elsewhere(account, fact)
    live = (account.mode == "live") if fact.livemode is None else fact.livemode
    fresh = inbox.keep(
        tx,
        vendor=vendor,
        account=account.name,
        mode="live" if live else "test",
        event_id=_storable(fact.event_id),
        kind=_storable(fact.kind),
        body=body,
        state="mismatch" if wrong else "new",
        detail=wrong or "",
    )
    if wrong and fresh:
        # One question however many events: they have one cause.
        escalations.open_for_holder(
            tx,
            f"webhook:{vendor}/{account.name}",
            ["webhook_mismatch"],
            {"vendor": vendor, "account": account.name, "mode": account.mode, "why": wrong},
        )
    return fresh


def _of_elsewhere(account: Account, fact: WebhookFact) -> str | None:
    """Why an event, genuine as it is, is not this account's."""
    if fact.livemode is not None and fact.livemode != (account.mode == "live"):
        return f"an event of the other mode; the account is in {account.mode} mode"
    named, ours = fact.vendor_account, account.vendor_account
    if named and ours and named != ours:
        return "an event of another vendor account"
    return None


def _storable(name: str) -> str:
    """A name that a text column takes. A signed one that it would not take must not come back
    for ever, so its hash stands for it."""
    if len(name) <= _NAME_CHARS and "\x00" not in name and name.isprintable():
        return name
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Receiver:
    """Receives webhooks in any web framework: give it the raw body, answer what it returns.

    Connections are opened on first need and again after a fork. Safe to use from many threads.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._parts = PerProcess(
            lambda: (Store(settings, size=_CONNECTIONS), Directory.of(settings))
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Settings from the environment. Raises ``SettingsError`` with all faults at once."""
        settings = Settings.from_env(env)
        settings.require_database()
        return cls(settings)

    def receive(
        self, vendor: str, account: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str]:
        """The status and the text to answer with; see ``receive`` above."""
        store, directory = self.parts()
        return receive(store, directory, vendor=vendor, account=account, headers=headers, body=body)

    def parts(self) -> tuple[Store, Directory]:
        """This process's store and directory."""
        return self._parts.get()

    def close(self) -> None:
        """Drops the connections; the next delivery opens them again."""
        parts = self._parts.take()
        if parts is not None:
            store, directory = parts
            store.close()
            directory.close()

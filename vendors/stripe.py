"""The Stripe adapter: one write under the intent's key, and reads that settle doubt.

The SDK encodes, signs on and knows Stripe's addresses; what an answer means is decided by
``stripe_answers`` from the raw answer that ``wire`` kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, cast

import stripe
from requests import Session
from stripe import _util

from outbox.contract import Account, Call, Cutoff, Listing, Sought, VendorContract
from outbox.outcomes import LookUp, Lost, NotSent, Outcome, Reading, Unreadable, WebhookFact
from vendors import stripe_lookup, stripe_webhook
from vendors.clients import Clients
from vendors.reads import Unread, answered, check, told
from vendors.stripe_answers import outcome_of, parsed, target_of
from vendors.stripe_reading import classify, mapping, text
from vendors.watchdog import Watchdog
from vendors.wire import Answer, Sessions, cause_of, exchange, in_exchange, unsent

# The SDK's service method of each operation: generic requests would eat body fields that are named
# like an argument of theirs (``usage`` of a set-up intent).
_METHODS: Mapping[str, str] = {
    "customers.create": "customers.create",
    "payment_intents.create": "payment_intents.create",
    "payment_intents.confirm": "payment_intents.confirm",
    "payment_intents.capture": "payment_intents.capture",
    "payment_intents.cancel": "payment_intents.cancel",
    "setup_intents.create": "setup_intents.create",
    "setup_intents.confirm": "setup_intents.confirm",
    "setup_intents.cancel": "setup_intents.cancel",
    "invoices.create": "invoices.create",
    "invoices.finalize": "invoices.finalize_invoice",
    "invoices.pay": "invoices.pay",
    "invoice_items.create": "invoice_items.create",
    "subscriptions.create": "subscriptions.create",
    "checkout.sessions.create": "checkout.sessions.create",
    "refunds.create": "refunds.create",
    "transfers.create": "transfers.create",
}

_OTHER_MODE = Unreadable("the credential is of the other mode", pause=True)


@dataclass(frozen=True, slots=True)
class _Sdk:
    """The SDK's client and the connections beneath it."""

    client: stripe.StripeClient = field(repr=False)
    sessions: Sessions = field(repr=False)

    def close(self) -> None:
        """Drops pooled connections."""
        self.sessions.close()


class StripeVendor:
    """Stripe's API v1. Safe to use from many threads; after a fork each process makes its own
    clients (a pooled socket shared by two processes mixes up their answers)."""

    def __init__(
        self,
        contract: VendorContract,
        *,
        connect_s: float,
        read_s: float,
        transport: Callable[[bool], Sessions] = Sessions,
    ) -> None:
        self._contract = contract
        self._timeout_s = (connect_s, read_s)
        self._transport = transport
        self._clients = Clients(self._new_sdk)

    @property
    def contract(self) -> VendorContract:
        """The data that this adapter keeps to."""
        return self._contract

    def perform(self, call: Call) -> Outcome:
        """One POST under the intent's key; never a second, whatever happens to it."""
        assert len(call.key) == 32, "a call without its intent's key"
        assert call.account.credential, "an account without its API key"
        if _of_other_mode(call.account):
            return NotSent("credential_of_other_mode", pause=True)
        try:
            self._check_owner(call.account, call.cutoff, call.api_version)
        except Unread as unread:
            return NotSent(unread.reason.removeprefix("no_answer:"), pause=unread.pause)
        except Exception as error:
            return unsent(error)
        key = call.key.hex()
        header = ("Idempotency-Key", key)
        options: dict[str, Any] = {
            "idempotency_key": key,
            "stripe_version": call.api_version,
            "max_network_retries": 0,
        }
        with exchange(call.method, call.path, call.cutoff, header) as wire:
            try:
                sdk = self._clients.of(call.account).transport.client
                target = target_of(call)
                send = attrgetter(_METHODS[call.operation])(sdk.v1)
                send(*([target] if target else []), dict(call.params), options)
            except Exception as error:
                # Answers with an error status come here too, and are read below from what the
                # wire kept. A soft time limit of the worker may be what was raised.
                failure: Exception | None = error
            else:
                failure = None
            if not wire.began:
                return unsent(failure)
            try:
                return _read(call, wire.answer, failure)
            except Exception as error:
                return Lost(f"unreadable_answer:{type(error).__name__}")

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """Lists and events of that time, read to their end; see ``stripe_lookup``."""
        span = stripe_lookup.Span(since_epoch_s, until_epoch_s)
        return self._looked(call, lambda get: stripe_lookup.look_up(get, call, span))

    def shares_list(self, operation: str) -> bool:
        """Of all that make an object: a change of one is looked up by its own."""
        return stripe_lookup.shares_list(operation)

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        """The list and the events of that time, for all that are sought."""
        account = sought.account
        if _of_other_mode(account):
            return _OTHER_MODE

        def read() -> Listing:
            self._check_owner(account, sought.cutoff, sought.api_version)
            get = self._getter(account, sought.cutoff, sought.api_version)
            return stripe_lookup.read_list(get, sought, self._getter_of)

        return told(read)

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """The one object, checked to be this intent's; ``Absent`` where it is not."""
        return self._looked(call, lambda get: stripe_lookup.retrieve(get, call, receipt_id))

    def read_webhook(
        self, account: Account, headers: Mapping[str, str], body: bytes, now_epoch_s: int
    ) -> list[WebhookFact]:
        """Verified over the raw bytes, then parsed. Raises ``WebhookRefused``."""
        stripe_webhook.verify(account.webhook_secrets, headers, body, now_epoch_s)
        return stripe_webhook.facts(body)

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:  # noqa: ARG002
        """Stored bytes that were verified at receipt."""
        return stripe_webhook.facts(body)

    def classify(
        self, operation: str, document: Mapping[str, Any], params: Mapping[str, Any] | None
    ) -> Reading | None:
        """The one reading of an object for an operation; None where it is no such object."""
        return classify(operation, document, params)

    def whoami(self, account: Account) -> str | Unreadable:
        """Stripe's id of the account behind the credential; a restricted key must be allowed to
        read it."""
        with Watchdog() as watchdog, watchdog.limit(sum(self._timeout_s)) as cutoff:
            return told(lambda: self._identity(account, cutoff, self._contract.api_version))

    def close(self) -> None:
        """Drops pooled connections; clients are made anew when needed."""
        self._clients.close()

    def _looked(self, call: Call, look: Callable[[stripe_lookup.Get], LookUp]) -> LookUp:
        account = call.account
        if _of_other_mode(account):
            return _OTHER_MODE

        def read() -> LookUp:
            self._check_owner(account, call.cutoff, call.api_version)
            return look(self._getter_of(call))

        return told(read)

    def _getter_of(self, call: Call) -> stripe_lookup.Get:
        return self._getter(call.account, call.cutoff, call.api_version)

    def _getter(self, account: Account, cutoff: Cutoff, api_version: str) -> stripe_lookup.Get:
        sdk = self._clients.of(account).transport.client

        def get(path: str, query: Mapping[str, Any]) -> Answer:
            options = {"stripe_version": api_version, "max_network_retries": 0}
            return answered(path, cutoff, lambda: sdk.raw_request("get", path, **query, **options))

        return get

    def _check_owner(self, account: Account, cutoff: Cutoff, api_version: str) -> None:
        self._clients.of(account).check_owner(
            account, lambda: self._asked_identity(account, cutoff, api_version)
        )

    def _identity(self, account: Account, cutoff: Cutoff, api_version: str) -> str:
        return self._clients.of(account).identified(
            lambda: self._asked_identity(account, cutoff, api_version)
        )

    def _asked_identity(self, account: Account, cutoff: Cutoff, api_version: str) -> str:
        answer = self._getter(account, cutoff, api_version)("/v1/account", {})
        document = parsed(answer.body or b"")
        check(answer, readable=document is not None)
        identity = text(mapping(document).get("id"))
        if not identity:
            raise Unread("unreadable_answer")
        return identity

    def _new_sdk(self, account: Account) -> _Sdk:
        _silence_sdk()
        sessions = self._transport(bool(account.base_url))
        transport = stripe.RequestsClient(
            timeout=self._timeout_s, session=cast(Session, sessions), verify_ssl_certs=True
        )
        addresses = {"api": account.base_url.rstrip("/")} if account.base_url else {}
        sdk = stripe.StripeClient(
            account.credential,
            stripe_version=self._contract.api_version,
            base_addresses=cast(Any, addresses),
            max_network_retries=0,
            http_client=transport,
        )
        return _Sdk(sdk, sessions)


def _read(call: Call, answer: Answer | None, failure: Exception | None) -> Outcome:
    if answer is None:
        return Lost(f"no_answer:{cause_of(failure)}" if failure else "no_answer")
    # Stripe says which key it answers to: a refusal of somebody else's write is none of ours.
    if answer.headers.get("Idempotency-Key", call.key.hex()) != call.key.hex():
        return Lost("foreign_answer")
    outcome = outcome_of(call, answer.status, answer.headers, answer.body or b"")
    if answer.body is None and isinstance(outcome, Lost):
        return replace(outcome, reason="cut_answer")
    return outcome


def _of_other_mode(account: Account) -> bool:
    """Whether the credential says by its own prefix that it belongs to the other mode."""
    parts = account.credential.split("_")
    named = parts[1] if len(parts) > 2 else ""
    return named in ("live", "test") and named != account.mode


def _silence_sdk() -> None:
    """No telemetry (it writes into the home folder), and no log of request bodies."""
    stripe.enable_telemetry = False
    stripe.log = None
    _util.STRIPE_LOG = None
    logging.getLogger("stripe").addFilter(_outside_exchanges)


def _outside_exchanges(_: logging.LogRecord) -> bool:
    return not in_exchange()

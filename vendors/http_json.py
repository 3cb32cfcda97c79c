"""The adapter of every vendor that a recipe describes: one request under the intent's key, and
reads that settle doubt. It knows no vendor; ``outbox.contracts.recipe`` says what it is told.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from outbox.contract import (
    Account,
    Call,
    Cutoff,
    Listing,
    Sought,
    VendorContract,
    slot_text,
)
from outbox.contracts.keys import rendered
from outbox.contracts.recipe import Recipe
from outbox.fingerprint import canonical
from outbox.outcomes import LookUp, Lost, NotSent, Outcome, Reading, Unreadable, WebhookFact
from vendors import http_json_lookup, http_json_webhook
from vendors.clients import Clients
from vendors.http_json_answers import outcome_of
from vendors.http_json_pages import Get, Query
from vendors.http_json_reading import reading_of
from vendors.reads import Unread, answered, told
from vendors.watchdog import Watchdog
from vendors.wire import Answer, Sessions, cause_of, exchange, unsent

_FIXED = {"Accept": "application/json", "User-Agent": "outbox-resolve"}


class HttpJsonVendor:
    """One recipe's vendor. Safe to use from many threads; after a fork each process makes its own
    connections (a pooled socket shared by two processes mixes up their answers)."""

    def __init__(
        self,
        contract: VendorContract,
        *,
        connect_s: float,
        read_s: float,
        transport: Callable[[bool], Sessions] = Sessions,
    ) -> None:
        self._contract = contract
        self._recipe: Recipe = contract.recipe
        self._timeout_s = (connect_s, read_s)
        self._clients = Clients(lambda account: transport(bool(account.base_url)))

    @property
    def contract(self) -> VendorContract:
        """The data that this adapter keeps to."""
        return self._contract

    def perform(self, call: Call) -> Outcome:
        """One request under the intent's key; never a second, whatever happens to it."""
        assert len(call.key) == 32, "a call without its intent's key"
        slot = call.key_slot
        if slot_text(slot) != slot_text(self._contract.key_slot):
            # What this file promises of keys is not true of the request. A process whose file says
            # where that one has its key may send it.
            return NotSent("recorded_with_another_key_slot", local=True)
        key = None
        if slot is not None and not slot.in_body:
            key = slot.at, rendered(call.key, slot.rendering)
        try:
            self._check_owner(call.account, call.cutoff, call.api_version)
        except Unread as unread:
            return NotSent(unread.reason.removeprefix("no_answer:"), pause=unread.pause)
        except Exception as error:
            return unsent(error)
        headers = self._headers(call.account, call.api_version) | dict([key] if key else [])
        url = self._base_url(call.account) + call.path
        failure: Exception | None = None
        with exchange(call.method, urlsplit(url).path, call.cutoff, key) as wire:
            try:
                self._send(call, url, headers)
            except Exception as error:
                # A soft time limit of the worker may be what was raised.
                failure = error
            if not wire.began:
                return unsent(failure)
            if wire.answer is None:
                return Lost(f"no_answer:{cause_of(failure)}" if failure else "no_answer")
            try:
                return outcome_of(self._contract, call, wire.answer)
            except Exception as error:
                return Lost(f"unreadable_answer:{type(error).__name__}")

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """What the recipe's look-up shows of the intent; see ``http_json_lookup``."""
        return self._looked(
            call,
            lambda get: http_json_lookup.look_up(
                get, self._contract, call, since_epoch_s, until_epoch_s
            ),
        )

    def shares_list(self, operation: str) -> bool:
        """Of all whose list is asked for times alone."""
        return http_json_lookup.shares_list(self._contract, operation)

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        """That list, for all that are sought."""
        account = sought.account

        def read() -> Listing:
            self._check_owner(account, sought.cutoff, sought.api_version)
            get = self._getter(account, sought.cutoff, sought.api_version)
            return http_json_lookup.read_list(get, self._contract, sought)

        return told(read)

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """The one object, checked to be this intent's; ``Absent`` where it is not."""
        return self._looked(
            call, lambda get: http_json_lookup.retrieve(get, self._contract, call, receipt_id)
        )

    def read_webhook(
        self, account: Account, headers: Mapping[str, str], body: bytes, now_epoch_s: int
    ) -> list[WebhookFact]:
        """Verified over the raw bytes, then parsed. Raises ``WebhookRefused``."""
        assert self._recipe.webhook is not None, "a delivery of a vendor without webhooks"
        signature = self._recipe.webhook.signature
        http_json_webhook.verify(signature, account.webhook_secrets, headers, body, now_epoch_s)
        return http_json_webhook.facts(self._recipe, body)

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:  # noqa: ARG002
        """Stored bytes that were verified at receipt."""
        return http_json_webhook.facts(self._recipe, body)

    def classify(
        self,
        operation: str,
        document: Mapping[str, Any],
        params: Mapping[str, Any] | None,  # noqa: ARG002
    ) -> Reading | None:
        """The one reading of an object for an operation; None where it is no such object."""
        return reading_of(self._recipe.operations[operation].receipt, document)

    def whoami(self, account: Account) -> str | Unreadable:
        """The vendor's own id of the account behind the credential, where the recipe says how to
        ask."""
        if self._recipe.whoami is None:
            return Unreadable("the vendor's file has no [whoami]: set vendor_account")
        with Watchdog() as watchdog, watchdog.limit(sum(self._timeout_s)) as cutoff:
            return told(lambda: self._identity(account, cutoff, self._contract.api_version))

    def close(self) -> None:
        """Drops pooled connections; they are made anew when needed."""
        self._clients.close()

    def _send(self, call: Call, url: str, headers: dict[str, str]) -> None:
        body: bytes | None = None
        if call.params or call.method != "delete":
            # Canonical, as it was frozen and hashed: every send has the same bytes.
            body = canonical(dict(call.params), "request").encode()
            headers["Content-Type"] = "application/json"
        sessions = self._clients.of(call.account).transport
        sessions.request(
            call.method.upper(), url, data=body, headers=headers, timeout=self._timeout_s
        )

    def _looked(self, call: Call, look: Callable[[Get], LookUp]) -> LookUp:
        def read() -> LookUp:
            self._check_owner(call.account, call.cutoff, call.api_version)
            return look(self._getter(call.account, call.cutoff, call.api_version))

        return told(read)

    def _getter(self, account: Account, cutoff: Cutoff, api_version: str) -> Get:
        sessions = self._clients.of(account).transport
        headers = self._headers(account, api_version)
        base = self._base_url(account)

        def get(path: str, query: Query) -> Answer:
            url = base + path + (f"?{urlencode(query)}" if query else "")
            return answered(
                urlsplit(url).path,
                cutoff,
                lambda: sessions.request("GET", url, headers=headers, timeout=self._timeout_s),
            )

        return get

    def _headers(self, account: Account, api_version: str) -> dict[str, str]:
        said = self._recipe.headers.items()
        headers = {name: value.replace("{api_version}", api_version) for name, value in said}
        auth = self._recipe.auth
        if auth is not None:
            assert account.credential, "an account without its credential"
            headers[auth.header] = (
                _basic(account.credential)
                if auth.basic
                else auth.template.replace("{credential}", account.credential)
            )
        return {**_FIXED, **headers}

    def _base_url(self, account: Account) -> str:
        return http_json_lookup.base_url(self._recipe, account)

    def _check_owner(self, account: Account, cutoff: Cutoff, api_version: str) -> None:
        if self._recipe.whoami is None:
            return
        self._clients.of(account).check_owner(
            account, lambda: self._asked_identity(account, cutoff, api_version)
        )

    def _identity(self, account: Account, cutoff: Cutoff, api_version: str) -> str:
        return self._clients.of(account).identified(
            lambda: self._asked_identity(account, cutoff, api_version)
        )

    def _asked_identity(self, account: Account, cutoff: Cutoff, api_version: str) -> str:
        return http_json_lookup.whose(self._getter(account, cutoff, api_version), self._recipe)


def _basic(credential: str) -> str:
    pair = credential if ":" in credential else f"{credential}:"
    return "Basic " + base64.b64encode(pair.encode()).decode()

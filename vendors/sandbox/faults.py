"""Fault rows: which request, or which event, goes wrong, and how.

A request row is {kind, account, key, endpoint, attempts, after_s, lose, status, told, times}. It
matches by account, key ("*": any), endpoint (a pattern over `payment_intents.create` and over
`POST /v1/payment_intents`; "POST *" unless given), and attempts (a list counted from 1 per key, or
per endpoint where there is no key; null: all). Of the rows that match, the first of each layer
applies: one of the transport, one of the vendor, one `status:<word>`. `times` limits how often.
`told`: whether a stored 500 says `Stripe-Should-Retry: false`.

A webhook row is {kind, account, type, after_s, first_tries, times}; all that match apply together.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from vendors.sandbox.ledger import Ledger

TRANSPORT_KINDS = {
    "refuse": "reset once the head is read; the body is never read",
    "lost_request": "read, then the connection is lost; never executed",
    "lost_ack": "executed and committed, then the connection is lost",
    "late_commit": "the connection is lost; the request passes through all layers after_s later",
    "slow": "executed and committed, answered after_s later",
    "half_body": "executed; half of the body, then the end of the connection",
    "drip": "executed; the answer comes in pieces over after_s",
    "empty_200": "executed; an empty 200",
    "bad_gateway_before": "502 with HTML, never executed",
    "bad_gateway_after": "executed, then 502 with HTML",
    "redirect_302": "302 to another object of the same kind, or to the list",
    "redelivery": "the transport delivers the request twice; the second result is discarded",
    "hang": "read, never executed, never answered",
}
VENDOR_KINDS = {
    "stored_500_no_object": "execution fails: 500, stored under the key",
    "stored_500_object_later": "500 stored; the vendor creates the object by itself after_s later",
    "stored_500_rolled_back": "500 stored; what was created is cancelled, or undone without trace",
    "in_use_409": "execution begins and lasts after_s, the connection is lost; repeats get 409",
    "rate_limited_429": "429 from the limiter, with Retry-After (after_s, at least 1)",
    "lock_timeout_429": "429 lock_timeout, with Stripe-Should-Retry: true",
    "unavailable_503": "503 before execution, with Stripe-Should-Retry: true",
    "unauthorized_401": "401, not executed",
    "forbidden_403": "403, not executed",
    "do_not_retry": "`status` (503) with Stripe-Should-Retry: false, not executed",
    "pruned_early": "the key is forgotten after_s after its first use, not after the window",
    "version_changed_replay": "a replay is rendered in another API version: other fields, bytes",
}
REQUEST_KINDS = TRANSPORT_KINDS | VENDOR_KINDS
# A wished status of an object, and what the mail server's face answers to a step.
_FREE_KIND = re.compile(r"status:|reply:(mail|rcpt|content):[2-5]\d\d$")
WEBHOOK_KINDS = {
    "duplicate": "the same event is delivered twice",
    "reorder": "the events of one request are delivered last first",
    "delay": "delivered after_s later",
    "second_event": "a second Event, with an id of its own, for the same change",
    "wrong_secret": "signed with another secret",
    "old_timestamp": "signed ten minutes ago (after_s: another age)",
    "future_timestamp": "signed ten minutes ahead (after_s: another lead)",
    "two_signatures": "a v1 of a rotated secret before the good one",
    "never": "never delivered; the events list has it",
    "before_answer": "the reply is held until the event got its 2xx (at most after_s, 5)",
    "unknown_key": "an event for another key and object is delivered too, first",
    "null_request": "event.request is null",
    "pretty": "the body is indented",
    "no_metadata": "data.object.metadata is empty; request stays",
}


@dataclass(slots=True)
class Fault:
    kind: str
    account: str = "*"
    key: str = "*"
    endpoint: str = "POST *"
    attempts: Any = None
    after_s: float = 0.0
    lose: str = "reset"
    status: int = 503
    told: bool = True
    times: int | None = None
    seq: int = 0

    def check(self) -> None:
        if not _FREE_KIND.match(self.kind) and self.kind not in REQUEST_KINDS:
            known = ", ".join([*REQUEST_KINDS, "status:<word>", "reply:<step>:<code>"])
            raise ValueError(f"kind: no such fault: {self.kind!r}; there are {known}")
        if self.lose not in ("reset", "hang", "close"):
            raise ValueError(f"lose: reset, hang or close, not {self.lose!r}")
        if not isinstance(self.told, bool):
            raise ValueError(f"told: true or false, not {self.told!r}")
        if self.attempts is not None and not (
            isinstance(self.attempts, list) and all(isinstance(n, int) for n in self.attempts)
        ):
            raise ValueError(f"attempts: a list of numbers from 1, or null, not {self.attempts!r}")


@dataclass(slots=True)
class Picked:
    """The faults of one request, one per layer."""

    transport: Fault | None = None
    vendor: Fault | None = None
    status: Fault | None = None

    def __str__(self) -> str:
        found = (self.transport, self.vendor, self.status)
        return "+".join(fault.kind for fault in found if fault is not None)


def _layer(kind: str) -> str:
    if kind.startswith("status:"):
        return "status"
    return "transport" if kind in TRANSPORT_KINDS else "vendor"


@dataclass(slots=True)
class WebhookFault:
    kind: str
    account: str = "*"
    type: str = "*"
    after_s: float = 0.0
    first_tries: int | None = None
    times: int | None = None
    seq: int = 0

    def check(self) -> None:
        if self.kind not in WEBHOOK_KINDS:
            raise ValueError(
                f"kind: no such webhook fault: {self.kind!r}; there are {', '.join(WEBHOOK_KINDS)}"
            )


Row = TypeVar("Row", Fault, WebhookFault)


def _parsed(kind: type[Row], row: dict[str, Any]) -> Row:
    names = {f.name for f in fields(kind)}
    for name in row:
        if name not in names:
            raise ValueError(
                f"{name}: no such field of a fault; there are {', '.join(sorted(names))}"
            )
    if "kind" not in row:
        raise ValueError("kind: missing")
    parsed = kind(**row)
    for number in ("after_s", "times", "first_tries"):
        value = getattr(parsed, number, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{number}: a number, not {value!r}")
    parsed.check()
    return parsed


@dataclass(slots=True)
class Faults:
    """All rows, in memory and in the ledger."""

    ledger: Ledger
    requests: list[Fault] = field(default_factory=list)
    webhooks: list[WebhookFault] = field(default_factory=list)

    def load(self) -> None:
        self.requests.clear()
        self.webhooks.clear()
        for row in self.ledger.all("select * from faults order by seq"):
            given = {**json.loads(row["row"]), "seq": row["seq"]}
            if row["layer"] == "request":
                self.requests.append(_parsed(Fault, given))
            else:
                self.webhooks.append(_parsed(WebhookFault, given))

    def add(self, row: dict[str, Any]) -> int:
        """ValueError names the field that is wrong."""
        fault = _parsed(Fault, row)
        fault.seq = self._insert("request", fault)
        self.requests.append(fault)
        return fault.seq

    def add_webhook(self, row: dict[str, Any]) -> int:
        fault = _parsed(WebhookFault, row)
        fault.seq = self._insert("webhook", fault)
        self.webhooks.append(fault)
        return fault.seq

    def _insert(self, layer: str, fault: Fault | WebhookFault) -> int:
        return self.ledger.run(
            "insert into faults (account, layer, row) values (?, ?, ?)",
            fault.account, layer, json.dumps(asdict(fault)),
        )  # fmt: skip

    def remove(self, account: str | None) -> None:
        """Removes the rows of one account, or all."""
        self.ledger.run("delete from faults where ? is null or account = ?", account, account)
        self.load()

    def pick(
        self, account: str, key: str | None, names: tuple[str, str], attempt: int, only: str = ""
    ) -> Picked:
        """What goes wrong with this request; `only` limits it to one kind."""
        picked = Picked()
        for fault in self.requests:
            if only and fault.kind != only:
                continue
            layer = _layer(fault.kind)
            if getattr(picked, layer) is None and _hits(fault, account, key, names, attempt):
                self._used(fault)
                setattr(picked, layer, fault)
        return picked

    def for_event(self, account: str, type: str) -> dict[str, WebhookFault]:
        hits = [
            fault
            for fault in self.webhooks
            if fault.account in ("*", account)
            and fnmatchcase(type, fault.type)
            and (fault.times is None or fault.times > 0)
        ]
        for fault in hits:
            self._used(fault)
        return {fault.kind: fault for fault in hits}

    def _used(self, fault: Fault | WebhookFault) -> None:
        if fault.times is not None:
            fault.times -= 1
            self.ledger.run(
                "update faults set row = ? where seq = ?", json.dumps(asdict(fault)), fault.seq
            )


def _hits(
    fault: Fault, account: str, key: str | None, names: tuple[str, str], attempt: int
) -> bool:
    return (
        fault.account in ("*", account)
        and fault.key in ("*", key)
        and any(fnmatchcase(name, fault.endpoint) for name in names)
        and (fault.attempts is None or attempt in fault.attempts)
        and (fault.times is None or fault.times > 0)
    )

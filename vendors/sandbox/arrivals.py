"""Requests as they arrive: whose they are, which attempt, which fault; every one is recorded."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from email.utils import formatdate

from vendors.sandbox.errors import Refusal
from vendors.sandbox.events import Hold
from vendors.sandbox.execution import LIVE_SUFFIX
from vendors.sandbox.faults import Fault, Faults, Picked
from vendors.sandbox.json_face import credential_of, face_of, key_of
from vendors.sandbox.json_routes import error_of
from vendors.sandbox.json_routes import route as json_route
from vendors.sandbox.ledger import Account, Ledger, dumps
from vendors.sandbox.resources import Operation
from vendors.sandbox.resources import route as stripe_route
from vendors.sandbox.wire import Answer, Request

_API_KEY = re.compile(r"^(?:sk|rk)_(test|live)_([\w-]+)$")
_CONNECTED = re.compile(r"^acct_[\w-]+$")


@dataclass(slots=True)
class Arrival:
    """A request and what the transport knows of it; `account` is "" without a good API key."""

    request: Request
    id: str
    account: str
    platform: str | None
    key: str | None
    operation: Operation | None
    object_id: str
    attempt: int
    at: float
    settings: Account
    picked: Picked
    hold: Hold | None = None

    @property
    def fault(self) -> Fault | None:
        """What goes wrong at the vendor itself, in the layers."""
        return self.picked.vendor

    @property
    def status_word(self) -> str | None:
        wished = self.picked.status
        return None if wished is None else wished.kind.removeprefix("status:")

    def faulty(self, kind: str) -> bool:
        return self.fault is not None and self.fault.kind == kind

    @property
    def face(self) -> str:
        """The JSON face that was asked; empty for Stripe's."""
        return face_of(self.request.path)

    def headers(self) -> dict[str, str]:
        if self.face:
            return {
                "Content-Type": "application/json",
                "Date": formatdate(self.at, usegmt=True),
                "X-Request-Id" if self.face == "external_ids" else "Request-Id": self.id,
            }
        headers = {
            "Content-Type": "application/json",
            "Date": formatdate(self.at, usegmt=True),
            "Request-Id": self.id,
            "Stripe-Version": self.request.headers.get("stripe-version")
            or self.settings.api_version,
        }
        if self.key:
            headers["Idempotency-Key"] = self.key
        return headers

    def error(self, refusal: Refusal) -> Answer:
        if self.face:
            status, said, headers = error_of(self.face, refusal)
            return Answer(status, dumps(said).encode(), {**self.headers(), **headers})
        body = dumps({"error": refusal.error}).encode()
        return Answer(refusal.status, body, {**self.headers(), **refusal.headers})


class Arrivals:
    def __init__(self, ledger: Ledger, faults: Faults) -> None:
        self._ledger = ledger
        self._faults = faults
        self._attempts: Counter[tuple[str, str]] = Counter()
        self.recount()

    def recount(self) -> None:
        """Attempt numbers go on where they were, after a restart and after a reset."""
        self._attempts.clear()
        for row in self._ledger.all(
            "select account, coalesce(key, operation) as key, count(*) as n from requests"
            " where origin = 'client' group by 1, 2"
        ):
            self._attempts[row["account"], row["key"]] = row["n"]

    def arrive(
        self, request: Request, origin: str = "client", attempt: int = 0, only: str = ""
    ) -> Arrival | None:
        """Numbers, records, picks the fault. With `only`: None unless a fault of that kind hits."""
        account, platform = _who(request.path, request.headers)
        face = face_of(request.path)
        route = json_route if face else stripe_route
        operation, object_id = route(request.method, request.path)
        key = key_of(request.path, request.headers, request.body)
        endpoint = f"{request.method} {request.path}"
        name = operation.name if operation else endpoint
        counter = (account, key or name)
        number = attempt or self._attempts[counter] + 1
        picked = Picked()
        if origin == "client":
            picked = self._faults.pick(account, key, (name, endpoint), number, only)
        if only and picked.transport is None:
            return None
        if origin == "client":
            self._attempts[counter] = number
        settings = self._ledger.account(account) if account else Account()
        arrival = Arrival(
            request, self._ledger.new_id("req_"), account, platform, key, operation, object_id,
            number, self._ledger.wall_s() + settings.clock_offset_s, settings, picked,
        )  # fmt: skip
        self._record(arrival, name, origin, body_read=not only)
        return arrival

    def _record(self, a: Arrival, name: str, origin: str, body_read: bool) -> None:
        digest = hashlib.sha256(a.request.body).hexdigest() if body_read else None
        self._ledger.run(
            "insert into requests (id, account, method, path, operation, key, body_sha256,"
            " api_version, at, arrived_at, attempt, origin, fault)"
            " values (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            a.id, a.account, a.request.method, a.request.path, name, a.key, digest,
            a.request.headers.get("stripe-version"), a.at, self._ledger.wall_s(), a.attempt, origin,
            str(a.picked) or None,
        )  # fmt: skip

    def answered(self, a: Arrival, answer: Answer) -> None:
        """Notes what the client is about to be told."""
        self._ledger.run(
            "update requests set status = ?, replayed = ?, should_retry = ?, answered_at = ?"
            " where id = ?",
            answer.status, answer.headers.get("Idempotent-Replayed") == "true",
            answer.headers.get("Stripe-Should-Retry"), self._ledger.wall_s(), a.id,
        )  # fmt: skip


def _who(path: str, headers: dict[str, str]) -> tuple[str, str | None]:
    """(ledger account, platform or None) of a request; ("", None) without a good API key."""
    if face_of(path):
        found = _API_KEY.match(credential_of(headers))
        live = LIVE_SUFFIX if found and found[1] == "live" else ""
        return (f"acct_{found[2]}{live}" if found else ""), None
    scheme, _, given = headers.get("authorization", "").partition(" ")
    match = _API_KEY.match(_basic_user(given) if scheme == "Basic" else given)
    other = headers.get("stripe-account")
    if match is None or (other and not _CONNECTED.match(other)):
        return "", None
    suffix = LIVE_SUFFIX if match[1] == "live" else ""
    own = f"acct_{match[2]}{suffix}"
    return (other + suffix, own) if other and other + suffix != own else (own, None)


def _basic_user(credentials: str) -> str:
    try:
        return base64.b64decode(credentials).decode("latin-1").partition(":")[0]
    except ValueError:
        return ""

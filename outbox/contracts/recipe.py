"""A vendor's file (a recipe) as data: how one HTTP+JSON API is called, read and believed.

Paths are dotted names from the top of a JSON document (``data.object.id``; a number picks an item
of a list). ``recipe_reading`` makes these from a file; the adapter ``http_json`` follows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from outbox.outcomes import Business

Path = tuple[str, ...]


class Means(StrEnum):
    """What an answer says of the write that was sent."""

    LANDED = "landed"  # it took effect, and the answer holds the object
    REFUSED = "refused"  # nothing was applied
    NOT_PROCESSED = "not_processed"  # the vendor documents that it was never looked at
    THROTTLED = "throttled"  # not processed: too many requests
    PAUSE = "pause"  # not processed: the credentials are refused
    EXISTS = "exists"  # our external id is taken: an earlier request of ours may have landed
    IN_DOUBT = "in_doubt"  # anything else


class OnDuplicate(StrEnum):
    """What the vendor does with a second request under the same key."""

    REPLAY = "replay"  # answers as it did the first time
    LATEST = "latest"  # answers with the object as it is now
    EXISTS = "exists"  # refuses, since the object exists


@dataclass(frozen=True, slots=True)
class Auth:
    """The header that carries the credential; ``basic``: as RFC 7617 encodes user and password."""

    header: str
    template: str = "{credential}"
    basic: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of answer; the first rule that matches decides. ``stored``: the vendor keeps this
    refusal under the key; ``never_again``: no further send can change it."""

    statuses: tuple[tuple[int, int], ...]
    means: Means
    where: tuple[tuple[Path, Any], ...] = ()
    stored: bool = False
    never_again: bool = False

    def covers(self, status: int) -> bool:
        """Whether the rule is about this status."""
        return any(low <= status <= high for low, high in self.statuses)


@dataclass(frozen=True, slots=True)
class ReceiptSpec:
    """Where an object tells what became of the write. ``object`` is its place in an answer; all
    other paths begin at the object. ``owner`` is where our mark (id, key or external id) shows;
    or else ``target`` names the part of the operation's path that is the object's id, and
    ``landed`` are the words that show the effect. ``amount`` is in the currency's smallest unit.
    """

    object: Path = ()
    id: Path | None = None
    id_header: str = ""
    owner: Path | None = None
    owner_in_answer: bool = True
    target: str = ""
    status: Path | None = None
    business: Mapping[str, Business] = field(default_factory=dict)
    landed: frozenset[str] = frozenset()
    declined: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    failure_code: Path | None = None
    amount: Path | None = None
    currency: Path | None = None
    livemode: Path | None = None
    vendor_account: Path | None = None
    time: Path | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    """How a list goes on: a cursor in the body, a page number, or a Link header."""

    cursor: Path | None = None
    parameter: str = ""
    first: int | None = None
    link: bool = False


@dataclass(frozen=True, slots=True)
class LookUpSpec:
    """The read that finds an intent's objects. ``items`` is the place of the list; None where the
    answer is one object. ``consistent``: whether finding nothing proves that nothing is there."""

    path: str
    consistent: bool
    lag_s: float = 0.0
    query: Mapping[str, str] = field(default_factory=dict)
    items: Path | None = None
    missing: frozenset[int] = frozenset()
    since: Literal["epoch", "iso"] = "epoch"
    paging: Paging | None = None


@dataclass(frozen=True, slots=True)
class RetrieveSpec:
    """The read of one object by its receipt id; ``missing`` says that there is none."""

    path: str
    missing: frozenset[int] = frozenset({404})


@dataclass(frozen=True, slots=True)
class WhoamiSpec:
    """The read that tells whose the credential is."""

    path: str
    id: Path


@dataclass(frozen=True, slots=True)
class Signature:
    """How deliveries are signed. ``signed`` holds ``{body}`` and perhaps ``{timestamp}``."""

    scheme: Literal["stripe_like", "hmac_sha256", "standard_webhooks"]
    header: str = ""
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    signed: str = "{body}"
    timestamp_header: str = ""
    key_encoding: Literal["text", "hex", "base64"] = "text"
    tolerance_s: int = 300


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """What joins a delivery: paths from the event; ``object`` is the object's snapshot, read as a
    receipt is. ``events`` is the list of a delivery that carries several."""

    signature: Signature
    events: Path | None = None
    event_id: Path | None = None
    kind: Path | None = None
    object: Path | None = None
    owner: Path | None = None
    key: Path | None = None
    receipts: tuple[Path, ...] = ()
    time: Path | None = None
    livemode: Path | None = None
    vendor_account: Path | None = None


@dataclass(frozen=True, slots=True)
class OperationRecipe:
    """How one operation's object is read, found again and retrieved."""

    receipt: ReceiptSpec
    look_up: LookUpSpec | None = None
    retrieve: RetrieveSpec | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the adapter ``http_json`` is told of one vendor."""

    base_url: str
    auth: Auth | None
    headers: Mapping[str, str]
    answers: tuple[Rule, ...]
    operations: Mapping[str, OperationRecipe]
    error_code: Path | None = None
    request_id_header: str = ""
    on_duplicate: OnDuplicate | None = None
    replay_header: str = ""
    replay_value: str = "true"
    whoami: WhoamiSpec | None = None
    webhook: WebhookSpec | None = None

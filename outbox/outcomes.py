"""What an adapter saw, as values. Vendor trouble is data here, never an exception."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MOST_CHARS = 255
_INT64 = range(-(2**63), 2**63)
# The last second of the year 9999: no column and no calendar goes further.
_TIMES = range(253_402_300_800)


def is_plain(text: str) -> bool:
    """Whether every column and every page takes a text: printable, and not too long."""
    return len(text) <= MOST_CHARS and text.isprintable()


def is_amount(value: object) -> bool:
    """Whether a value is a whole number that the outbox can keep."""
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _plain(text: str) -> str:
    # Shown in part rather than left out: what cannot be read must not pass as not told.
    shown = text[:MOST_CHARS]
    return shown if is_plain(shown) else "".join(c if c.isprintable() else "\ufffd" for c in shown)


def _bound(values: Any, texts: tuple[str, ...]) -> None:
    """Every value that came from a vendor's bytes is kept within what can be stored: one odd
    number must not end the run that reads it."""
    for name in texts:
        found = getattr(values, name)
        if found is not None and not is_plain(found):
            object.__setattr__(values, name, _plain(found))
    if values.vendor_time not in _TIMES:
        object.__setattr__(values, "vendor_time", 0)


class Standing(StrEnum):
    """What a vendor's object says of the write that made or moved it."""

    LANDED = "landed"  # the write took effect
    DECLINED = "declined"  # the vendor made an object and the effect failed for good
    OPEN = "open"  # the object exists and does not show the effect (yet)


class Business(StrEnum):
    """What became of a landed object; it may move later without any contradiction."""

    PAID = "paid"
    PENDING = "pending"
    ACTION_REQUIRED = "action_required"
    FAILED = "failed"
    REVERSED = "reversed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a vendor's object, by one function per operation (``classify``), whether it
    came in a reply, a replay, a look-up or a webhook.

    ``receipt_id`` is the vendor's id of the object; ``owner`` our intent id found on it (empty
    where the operation leaves no mark of ours, as a capture); ``amount_minor`` in the currency's
    smallest unit; ``vendor_time`` in seconds since the epoch by the vendor's clock, for order.
    ``document`` is the object as JSON text: personal data, stored under a codec and never logged.
    """

    receipt_id: str
    standing: Standing
    business: Business
    word: str
    owner: str = ""
    amount_minor: int | None = None
    currency: str | None = None
    livemode: bool | None = None
    vendor_account: str | None = None
    vendor_time: int = 0
    failure_code: str = ""
    document: str = field(default="{}", repr=False)

    def __post_init__(self) -> None:
        _bound(self, ("receipt_id", "word", "owner", "currency", "vendor_account", "failure_code"))
        if self.amount_minor is not None and not is_amount(self.amount_minor):
            object.__setattr__(self, "amount_minor", None)


@dataclass(frozen=True, slots=True)
class Wire:
    """What is kept of one answer for the attempt log: no body, no argument, no secret."""

    http_status: int | None = None
    request_id: str = ""
    replayed: bool = False
    should_retry: bool | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The vendor answered with an object that is ours. A declined object comes as ``Refused``."""

    reading: Reading
    wire: Wire = Wire()


@dataclass(frozen=True, slots=True)
class Refused:
    """The vendor said no. ``covers_key`` only if it stored this answer under the key (it
    executed, or the answer is marked as a replay); ``reading`` is the declined object, if any;
    ``veto`` forbids every further send."""

    code: str
    covers_key: bool
    reading: Reading | None = None
    wire: Wire = Wire()
    veto: str = ""


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte can have left, or the vendor documents "not processed".

    ``retry_after_s`` as the vendor asked; ``pause`` is set for 401 and 403: the account's
    credentials are refused, and the account waits for a person; ``throttled`` for 429; ``veto``
    forbids every further send. ``local``: the row or this process is at fault, and nothing was
    learned of the vendor.
    """

    reason: str
    retry_after_s: float | None = None
    pause: bool = False
    throttled: bool = False
    wire: Wire = Wire()
    veto: str = ""
    local: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """Anything else: maybe sent, outcome not seen. ``veto`` forbids every further send."""

    reason: str
    veto: str = ""
    wire: Wire = Wire()


Outcome = Receipt | Refused | NotSent | Lost


def veto_of(outcome: Outcome) -> str:
    """Why the write may never be sent again; empty where it may, and where it landed."""
    return "" if isinstance(outcome, Receipt) else outcome.veto


@dataclass(frozen=True, slots=True)
class Found:
    """A look-up saw these objects of ours; more than one is a contradiction. ``vendor_now`` is
    when it began, by the vendor's clock in seconds since the epoch; 0 where that is not told."""

    readings: tuple[Reading, ...]
    source: str = "lookup"
    vendor_now: int = 0


@dataclass(frozen=True, slots=True)
class Absent:
    """A look-up that read to the end of a consistent source and found nothing of ours;
    ``vendor_now`` as of ``Found``."""

    source: str = "lookup"
    vendor_now: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The look-up itself failed (or the source proves nothing); it says nothing of the write.
    ``never``: this vendor shows nothing of the kind, so it is no use to ask again.
    ``retry_after_s`` as a vendor asked that was asked too often."""

    reason: str
    pause: bool = False
    never: bool = False
    retry_after_s: float | None = None


LookUp = Found | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class WebhookFact:
    """One verified event, reduced to what joins it; never more than the vendor signed.

    ``request_key`` is the idempotency key in hex that the event names as its cause; ``owner`` and
    ``owner_key`` are our intent id and key from the object's metadata; ``receipt_ids`` the object
    and its parents; ``operation_words`` the event's type. ``reading`` is the event's snapshot of
    the object, None where the event carries none we can read: then the resolver retrieves.
    """

    event_id: str
    kind: str
    object_id: str
    receipt_ids: tuple[str, ...] = ()
    request_key: str = ""
    owner: str = ""
    owner_key: str = ""
    livemode: bool | None = None
    vendor_account: str | None = None
    vendor_time: int = 0
    api_version: str = ""
    snapshot: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not is_plain(self.event_id):
            # Two events must not become one by what cannot be kept of their ids.
            digest = hashlib.sha256(self.event_id.encode("utf-8", "surrogatepass")).hexdigest()
            object.__setattr__(self, "event_id", f"sha256:{digest}")
        if not is_plain(self.object_id):
            object.__setattr__(self, "object_id", "")
        receipts = tuple(each for each in self.receipt_ids if is_plain(each))
        object.__setattr__(self, "receipt_ids", receipts)
        texts = ("kind", "request_key", "owner", "owner_key", "vendor_account", "api_version")
        _bound(self, texts)


class WebhookRefused(ValueError):
    """The delivery is not genuine or not readable; ``str()`` is safe to answer with."""

"""The shape of a vendor's contract: data that enqueue, sender and resolvers all read.

The data lives in ``outbox.contracts`` because ``enqueue`` freezes method, path, API version and
body in the agent's process, which imports only ``outbox``; the code that talks to the vendor
lives in ``vendors`` and only workers and webhook receivers import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, Self, cast
from uuid import UUID

from outbox.outcomes import LookUp, Outcome, Reading, Unreadable, WebhookFact

# What a side effect may be called, by a tool or by a recipe.
SIDE_EFFECT = r"[a-z][a-z_]{0,39}"


@dataclass(frozen=True, slots=True)
class KeySlot:
    """Where a request carries the key: the name of a ``header``, or the path of a ``body`` field
    or of an ``external_id`` (a field of the object that the vendor keeps unique). ``rendering`` is
    hex64, b64url43 or uuid. Frozen with each request: a vendor's file that changes later never
    gives an intent a second key."""

    slot: Literal["header", "body", "external_id"]
    at: str
    rendering: Literal["hex64", "b64url43", "uuid"] = "hex64"

    @property
    def in_body(self) -> bool:
        """Whether the frozen body carries the key."""
        return self.slot != "header"

    def as_json(self) -> dict[str, str]:
        """The slot as a frozen request keeps it."""
        return asdict(self)

    @classmethod
    def of(cls, frozen: Mapping[str, Any] | None) -> Self | None:
        """The slot that a frozen request names; None where it names none."""
        return cls(**frozen) if frozen else None

    @classmethod
    def of_text(cls, carries: str) -> Self | None:
        """The slot that ``carried`` names, for a look: a header's name may be written otherwise
        there. Raises ``ValueError`` for what it did not write."""
        kept = carries.partition("|")[0]
        if not kept:
            return None
        slot, rendering, at = kept.split(" ", 2)
        return cls(cast(Any, slot), at, cast(Any, rendering))


def slot_text(slot: KeySlot | None) -> str:
    """A slot as text, empty where the adapter knows or there is none; the names of headers have no
    case. What makes a second send safe is that the vendor honours the key in this very place: two
    that differ here are never taken for each other."""
    if slot is None:
        return ""
    at = slot.at if slot.in_body else slot.at.lower()
    return f"{slot.slot} {slot.rendering} {at}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of write at a vendor.

    ``path`` may hold ``{names}`` that are taken out of the request (a capture's object id).
    ``marks`` are places in the body, as paths, that carry our mark: maps that take our id and key,
    or with ``mark_is_text`` fields that take our id. ``shows_key`` says that the vendor's object
    shows the key itself. Neither: the operation leaves no mark and is settled by its target's
    state. ``passes`` names the arguments that go to the vendor as they are, ``passes_all`` all.
    ``money`` names the body fields of amount (minor units) and currency.
    ``check`` raises ``Invalid`` for what this vendor could not carry, before any SQL.
    """

    name: str
    method: str
    path: str
    marks: tuple[tuple[str, ...], ...] = ()
    marks_for: Callable[[Mapping[str, Any]], tuple[tuple[str, ...], ...]] | None = None
    money: tuple[str, str] | None = None
    side_effect: str = "write"
    check: Callable[[Mapping[str, Any]], None] | None = None
    passes: frozenset[str] = frozenset()
    passes_all: bool = False
    mark_is_text: bool = False
    shows_key: bool = False

    @property
    def leaves_mark(self) -> bool:
        """Whether the vendor's object tells whose it is."""
        return bool(self.marks) or self.shows_key


@dataclass(frozen=True, slots=True)
class VendorContract:
    """What a vendor promises about repeats and reads. Seconds throughout; None: no such promise.

    ``window_s`` how long a key is honoured from its first arrival, ``margin_s`` how much earlier
    we stop; ``in_flight_bound_s`` how long after the end of a lease a request may still land;
    ``read_lag_s`` how far the look-up source may lag behind a write.
    ``adapter`` names the code that speaks to the vendor, ``recipe`` what that code is told of this
    one vendor (None where it knows); ``schemes`` are those of an account's ``base_url``.
    ``key_slot`` is where a request carries the key (None: the adapter knows, or nowhere);
    ``tells_owner`` whether the vendor can be asked whose a credential is; ``body`` how a body is
    encoded: ``form`` or ``json``.
    """

    vendor: str
    api_version: str
    operations: Mapping[str, Operation]
    honours_keys: bool
    window_s: float | None
    margin_s: float
    in_flight_bound_s: float
    read_lag_s: float
    can_look_up: bool
    has_webhooks: bool
    adapter: str
    recipe: Any = field(default=None, repr=False)
    key_slot: KeySlot | None = None
    tells_owner: bool = True
    body: Literal["form", "json"] = "form"
    needs_credential: bool = True
    needs_address: bool = False
    schemes: tuple[str, ...] = ("http", "https")
    metadata_max_keys: int = 50
    metadata_key_chars: int = 40
    metadata_value_chars: int = 500
    reserved_metadata: frozenset[str] = field(
        default_factory=lambda: frozenset({"outbox_id", "outbox_key"})
    )


def carried(contract: VendorContract, operation: str) -> str:
    """By what the vendor knows a request again that is frozen now: where it has its key, and its
    marks. It is kept with each row, for the vendor's file may say something else by the time that a
    second send, or finding nothing, is judged. Empty where the adapter knows."""
    if contract.recipe is None:
        return ""
    spec = contract.operations[operation]
    marks = ",".join(sorted(".".join(place) for place in spec.marks))
    kind = "text " if marks and spec.mark_is_text else ""
    return f"{slot_text(contract.key_slot)}|{kind}{marks}"


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials and identity of one account at a vendor, looked up by name in worker and web.

    ``mode`` is ``live`` or ``test``; ``vendor_account`` the vendor's own id of the account (empty
    as long as nobody has said it), which an adapter compares before its first call;
    ``webhook_secrets`` newest first, two at the most while rotating;
    ``base_url`` overrides the vendor's address (the sandbox). ``rate_per_s`` is how many requests a
    second the vendor shall get on the average (None: as many as there are), ``burst`` how many at
    once.
    """

    name: str
    mode: str
    vendor_account: str = ""
    credential: str = field(default="", repr=False)
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    base_url: str = ""
    rate_per_s: float | None = None
    burst: int = 1


class Cutoff(Protocol):
    """The wall-clock limit of one call, owned by the sender, or of one look-up with all its pages.

    A transport calls ``attach`` with its connected socket just before the first byte of the
    request; ``attach`` raises ``TooLate`` when the claim's own time has passed, so nothing leaves.
    At the deadline a watchdog shuts the attached socket from another thread.
    """

    def attach(self, sock: Any) -> None: ...


class TooLate(Exception):
    """The claim's time to start has passed: nothing was sent. An adapter answers ``NotSent``."""


class Unlimited:
    """The cut-off of a call that is only looked at, or has the time-outs of its socket only."""

    def attach(self, sock: Any) -> None:
        """There is no limit to outlive."""


@dataclass(frozen=True, slots=True)
class Call:
    """One intent as an adapter sees it: the frozen request and whose it is.

    ``key`` is the 32-byte idempotency key and ``key_slot`` where the frozen request carries it
    (None: the adapter knows, or nowhere); ``params`` the frozen body; ``recorded_epoch_s`` when
    the intent was recorded. Not ``whole``: the request cannot be opened, so ``params`` is empty
    and the call is good for looks only.
    """

    intent_id: UUID
    key: bytes
    operation: str
    method: str
    path: str
    api_version: str
    params: Mapping[str, Any] = field(repr=False)
    account: Account
    amount_minor: int | None = None
    currency: str | None = None
    recorded_epoch_s: int = 0
    key_slot: KeySlot | None = None
    cutoff: Cutoff = field(default_factory=Unlimited, repr=False)
    whole: bool = True

    @property
    def asked(self) -> Mapping[str, Any] | None:
        """What was asked for, to read an object by; None where that is not known."""
        return self.params if self.whole else None


@dataclass(frozen=True, slots=True)
class Sought:
    """What a list is read for: the objects of intents of one operation and one account, created
    from ``since_epoch_s`` until ``until_epoch_s`` (None: until now). ``owners`` names each intent
    by its id as text, ``keys`` by its key in hex. ``looks`` is for how many look-ups the reading
    stands: it may read as many pages as so many would."""

    operation: str
    api_version: str
    account: Account
    since_epoch_s: int
    until_epoch_s: int | None
    owners: Mapping[str, UUID]
    keys: Mapping[str, UUID]
    cutoff: Cutoff = field(default_factory=Unlimited, repr=False)
    looks: int = 1

    @classmethod
    def of(cls, call: Call, since_epoch_s: int, until_epoch_s: int | None) -> Self:
        """What one look-up seeks."""
        return cls(
            operation=call.operation,
            api_version=call.api_version,
            account=call.account,
            since_epoch_s=since_epoch_s,
            until_epoch_s=until_epoch_s,
            owners={str(call.intent_id): call.intent_id},
            keys={call.key.hex(): call.intent_id},
            cutoff=call.cutoff,
        )


class Listing(Protocol):
    """What one reading of a list showed of the intents that it was made for."""

    def look_up(self, call: Call) -> LookUp:
        """What it shows of one of them: what a look-up of its own would have said."""
        ...


class Vendor(Protocol):
    """What every adapter offers. It sends exactly one request per ``perform``, never retries,
    sleeps, reads a clock or knows a status, and never raises for the vendor's behaviour."""

    @property
    def contract(self) -> VendorContract: ...

    def perform(self, call: Call) -> Outcome:
        """One write under the intent's key."""
        ...

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """Objects of this intent created from then until then (None: until now), from a source
        read to its end: what was sent cannot land later, and a busy account is not read on and on.
        """
        ...

    def shares_list(self, operation: str) -> bool:
        """Whether the objects of all intents of the operation are in one list by time, so that one
        reading of it looks up many."""
        ...

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        """That list, read to its end once for all that are sought. A page that fails makes it
        unreadable for every one of them."""
        ...

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """The one object, checked to be this intent's; Absent where it is not."""
        ...

    def read_webhook(
        self, account: Account, headers: Mapping[str, str], body: bytes, now_epoch_s: int
    ) -> list[WebhookFact]:
        """Verifies the raw bytes first; raises ``WebhookRefused``."""
        ...

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:
        """Reads stored bytes that were verified at receipt: no signature, no age."""
        ...

    def classify(
        self, operation: str, document: Mapping[str, Any], params: Mapping[str, Any] | None
    ) -> Reading | None:
        """The one reading of an object for an operation; None where the document is not that
        operation's object, or lacks what would decide: then the object must be retrieved.
        ``params`` are what was asked for, None where that is not known."""
        ...

    def whoami(self, account: Account) -> str | Unreadable:
        """The vendor's own id of the account behind the credential, or why it is not told."""
        ...

    def close(self) -> None:
        """Drops pooled connections."""
        ...

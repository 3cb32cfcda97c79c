"""Tools and scopes: what an application says once about a kind of write, and whose write it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from outbox.contract import SIDE_EFFECT, Operation, VendorContract, carried
from outbox.contracts import contract_of
from outbox.errors import Invalid
from outbox.policy import MOST_DEPTH

SIDE_EFFECTS_OF_MONEY = frozenset({"charge", "refund", "payout"})

# A model that sends these is confused about who owns the key; they never reach a vendor.
RESERVED_ARGUMENTS = frozenset(
    {"idempotencykey", "toolcallid", "runid", "epoch", "occurrence", "outboxid", "outboxkey"}
)

_NAMED = 8
_KEPT_CHARS = 100
_SIDE_EFFECT = re.compile(rf"{SIDE_EFFECT}\Z")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}\Z")


def is_reserved(name: str) -> bool:
    """Whether an argument's name, however it is spelled, is one that only the harness may set."""
    # What a model names may be long, and is not kept then.
    return _is_reserved(name) if len(name) <= _KEPT_CHARS else _is_reserved.__wrapped__(name)


@lru_cache(maxsize=4096)
def _is_reserved(name: str) -> bool:
    return name.casefold().replace("_", "").replace("-", "") in RESERVED_ARGUMENTS


def shown(name: str) -> str:
    """An argument's name as a message may hold it: it is somebody's input too, and must neither
    flood a message nor steer a terminal."""
    short = name[:40]
    return short if short.isprintable() else short.encode("unicode_escape").decode()


def listed(names: Sequence[str]) -> str:
    """Names of arguments for a message, the first few by name and the rest by number."""
    said = ", ".join(shown(name) for name in names[:_NAMED])
    return said if len(names) <= _NAMED else f"{said} and {len(names) - _NAMED} more"


@dataclass(frozen=True)
class WriteTool:
    """One kind of write that agents may ask for.

    ``identity`` names the arguments that make the key, ``guard`` those that may not differ under
    the same key (a different value raises ``IntentMismatch``); every other argument is free: the
    first value wins. No identity: all arguments are identity. A charge, refund or payout must
    declare both. ``money`` names the arguments of amount (in the currency's smallest unit, an
    integer) and currency. ``request`` is a pure function from the arguments to the vendor's
    parameters; without it, arguments named like vendor parameters pass through and other identity
    fields go to metadata. ``once_per`` is the scope of the key. ``lane`` names arguments whose
    values make an ordered lane: such intents go one at a time, oldest first; with
    ``on_doubt="continue"`` an intent in doubt does not hold its lane. ``resend_when_absent``
    allows a second send at a vendor without keys after confirmed absence. ``ttl_s`` pages a person
    earlier than the default. ``schema`` is a JSON Schema for the arguments; ``strict`` refuses
    reserved argument names instead of stripping them with a note. ``max_depth`` is how many of its
    intents one tenant may have waiting to be sent; one more raises ``Full``.

    Raises ``Invalid`` naming the declaration that is wrong.
    """

    name: str
    vendor: str
    operation: str
    side_effect: str = "write"
    identity: tuple[str, ...] = ()
    guard: tuple[str, ...] = ()
    money: tuple[str, str] | tuple[()] = ()
    request: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    once_per: Literal["run", "epoch", "tenant"] = "run"
    lane: tuple[str, ...] = ()
    on_doubt: Literal["hold", "continue"] = "hold"
    resend_when_absent: bool = False
    ttl_s: float | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    strict: bool = False
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise Invalid("tool.name", "must be a letter and then letters, digits, . _ or -")
        contract = contract_of(self.vendor)
        if not isinstance(self.operation, str) or self.operation not in contract.operations:
            known = ", ".join(sorted(contract.operations))
            raise Invalid("tool.operation", f"{self.vendor} has no such operation; it has {known}")
        self._check_words()
        self._check_fields()
        if self.schema is not None:
            self._check_schema(self.schema)

    def _check_words(self) -> None:
        if not isinstance(self.side_effect, str) or not _SIDE_EFFECT.match(self.side_effect):
            raise Invalid(
                "tool.side_effect",
                "must be a word of small letters, as charge, refund, payout, mail or write",
            )
        if self.once_per not in ("run", "epoch", "tenant"):
            raise Invalid("tool.once_per", "must be run, epoch or tenant")
        if self.on_doubt not in ("hold", "continue"):
            raise Invalid("tool.on_doubt", "must be hold or continue")
        ttl = self.ttl_s
        if ttl is not None and (
            isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0
        ):
            raise Invalid("tool.ttl_s", "must be a positive number of seconds")
        most = self.max_depth
        if most is not None and (
            isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_DEPTH
        ):
            raise Invalid("tool.max_depth", f"must be a whole number from 1 to {MOST_DEPTH}")
        if self.request is not None and not callable(self.request):
            raise Invalid("tool.request", "must be a function of the arguments")

    def _check_fields(self) -> None:
        for label in ("identity", "guard", "lane", "money"):
            names = getattr(self, label)
            if not isinstance(names, tuple | list) or not all(
                isinstance(n, str) and n for n in names
            ):
                raise Invalid(f"tool.{label}", "must be a tuple of argument names")
            if any(is_reserved(n) for n in names):
                raise Invalid(f"tool.{label}", "names a reserved argument")
        both = set(self.identity) & set(self.guard)
        if both:
            raise Invalid("tool.guard", f"{', '.join(sorted(both))} is already identity")
        if self.money and len(self.money) != 2:
            raise Invalid("tool.money", "must be (amount, currency)")
        free = [n for n in self.money if n not in self.identity and n not in self.guard]
        if self.identity and free:
            # Of a free argument the first value wins: another amount would pass for the same.
            raise Invalid("tool.money", f"{', '.join(free)} must be identity or guard")
        if self.side_effect in SIDE_EFFECTS_OF_MONEY and not (self.identity and self.guard):
            raise Invalid(
                "tool.identity" if not self.identity else "tool.guard",
                f"a {self.side_effect} must declare identity and guard",
            )

    def _check_schema(self, schema: Any) -> None:
        if not isinstance(schema, Mapping):
            raise Invalid("tool.schema", "must be a JSON Schema as an object")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise Invalid("tool.schema", f"is not a JSON Schema: {error.message}") from None
        for name in schema.get("properties", {}):
            if is_reserved(name):
                raise Invalid("tool.schema", f"declares the reserved argument {name}")

    @cached_property
    def contract(self) -> VendorContract:
        """The vendor's contract, as data."""
        return contract_of(self.vendor)

    @cached_property
    def spec(self) -> Operation:
        """The operation's data."""
        return self.contract.operations[self.operation]

    @cached_property
    def carries(self) -> str:
        """By what the vendor knows its requests again."""
        return carried(self.contract, self.operation)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The arguments that a write cannot be without, in the order in which they are missed."""
        return tuple(dict.fromkeys((*self.identity, *self.guard, *self.lane, *self.money)))

    @cached_property
    def validator(self) -> Draft202012Validator | None:
        """The compiled schema of the arguments, if one was declared."""
        return Draft202012Validator(self.schema) if self.schema is not None else None


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose write it is: tenant, account by name, run (a job or a conversation) and epoch (the
    inbound message or turn; empty where there is none). All text, 1 to 200 characters."""

    tenant: str
    run_id: str
    account: str = "default"
    epoch: str = ""

    def __post_init__(self) -> None:
        for label in ("tenant", "run_id", "account", "epoch"):
            value = getattr(self, label)
            if not isinstance(value, str):
                raise Invalid(f"scope.{label}", f"must be text, not {type(value).__name__}")
            if not value and label != "epoch":
                raise Invalid(f"scope.{label}", "must not be empty")
            if len(value) > 200:
                raise Invalid(f"scope.{label}", "is longer than 200 characters")
            if "\x00" in value or not value.isprintable():
                raise Invalid(f"scope.{label}", "holds a control character")
            if not unicodedata.is_normalized("NFC", value):
                raise Invalid(f"scope.{label}", "is not in Unicode's composed form (NFC)")

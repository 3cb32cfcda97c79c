"""Canonical values, fingerprints and keys: pure, so that every try computes the same bytes.

Canonical JSON is RFC 8785 by the ``rfc8785`` library. What it cannot carry is refused here with
the path of the field, before any SQL, because a value that Postgres refuses would abort the
caller's transaction.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from operator import methodcaller
from typing import Any
from uuid import UUID

import rfc8785

from outbox.errors import Invalid

Rule = Callable[[Mapping[str, Any]], bytes]

# The rule that new rows are recorded under. A new rule is known (in ``RULES``) for a whole release
# before it is written: processes of two releases that run side by side then find each other's rows.
FINGERPRINT_VERSION = 1
MAX_INTEGER = 2**53 - 1
# Longer texts are no names and no words of a scope, and are not kept.
_WORD_CHARS = 200
_NUMBERS = (int, float, Decimal)


@dataclass(frozen=True, slots=True)
class Limits:
    """What enqueue accepts: canonical bytes of one document, and nesting depth."""

    max_bytes: int = 64 * 1024
    max_depth: int = 32


def parse_json(raw: str | bytes, path: str = "args") -> Any:
    """Raw JSON text as Python values. Refuses duplicate keys, NaN and what does not parse."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in items:
            if name in seen:
                raise Invalid(_within(path, name), "appears twice in one JSON object")
            seen[name] = value
        return seen

    def constant(word: str) -> Any:
        raise Invalid(path, f"{word} is not JSON")

    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError:
        raise Invalid(path, "is not UTF-8") from None
    except RecursionError:
        raise Invalid(path, "is nested too deeply") from None
    except ValueError:
        # The text of the parser's error quotes the document.
        raise Invalid(path, "is not valid JSON, or holds a number too long to read") from None


def cleaned(value: Any, path: str, limits: Limits = Limits(), depth: int = 0) -> Any:
    """``value`` reduced to what JSON, Postgres and RFC 8785 can all carry, or ``Invalid``.

    Tuples become lists; aware datetimes RFC 3339 text in UTC; dates and UUIDs text; a Decimal the
    number it equals; text is brought to Unicode's composed form (NFC). Raises ``Invalid`` naming
    the field for everything else.
    """
    if depth > limits.max_depth:
        raise Invalid(path, f"is nested deeper than {limits.max_depth} levels")
    if _is_clean(value):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, _NUMBERS):
        return _number(value, path)
    if type(value) is dict or isinstance(value, Mapping):
        named = {_name(name, path): item for name, item in value.items()}
        if len(named) < len(value):
            raise Invalid(path, "has one key in two spellings of the same text")
        return {
            name: item
            if depth < limits.max_depth and _is_clean(item)
            else cleaned(item, _within(path, name), limits, depth + 1)
            for name, item in named.items()
        }
    if isinstance(value, list | tuple):
        return [cleaned(v, f"{path}[{i}]", limits, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise Invalid(path, "is a datetime without a time zone")
        try:
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        except OverflowError:
            raise Invalid(path, "is a datetime that UTC cannot express") from None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise Invalid(path, f"is a {type(value).__name__}, which JSON cannot carry")


def _is_clean(value: object) -> bool:
    """Whether a value is sure to be kept as it is, as most are: told by its very type, for a
    subclass is not. ASCII is text in its composed form, and UTF-8."""
    if type(value) is str:
        return value.isascii() and "\x00" not in value
    if type(value) is int:
        return -MAX_INTEGER <= value <= MAX_INTEGER
    return value is None or type(value) is bool


def _name(name: Any, path: str) -> str:
    if type(name) is str and _is_clean(name):
        return name
    if not isinstance(name, str):
        raise Invalid(path, f"has a key that is a {type(name).__name__}, not text")
    return _text(name, _within(path, name))


def _within(path: str, name: str) -> str:
    # A name is somebody's input too: it must not flood a message or steer a terminal.
    short = name[:40]
    return f"{path}.{short if short.isprintable() else short.encode('unicode_escape').decode()}"


def _text(value: str, path: str) -> str:
    if "\x00" in value:
        raise Invalid(path, "holds a NUL character, which Postgres cannot store")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid(path, "holds a lone surrogate, which is not Unicode text") from None
    # A plain str: a subclass (an Enum member) must not reach the encoder as itself. And one
    # spelling of it: the same text in another form must not be another write.
    return unicodedata.normalize("NFC", str.__str__(value))


def _number(value: int | float | Decimal, path: str) -> int | float:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise Invalid(path, "is not a finite number")
        if value and value.adjusted() > 16:
            raise Invalid(path, f"is larger than {MAX_INTEGER}")
        if value == value.to_integral_value():
            return _number(int(value), path)
        # Compared exactly: normalize() would round to the context's digits first.
        if Decimal(repr(float(value))) != value:
            raise Invalid(path, "has more digits than a JSON number carries exactly")
        return float(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(path, "is not a finite number")
        if value.is_integer() and abs(value) <= MAX_INTEGER:
            return int(value)  # 49.0 is 49, and 49 is what the vendor is sent
        if abs(value) > MAX_INTEGER:
            raise Invalid(path, f"is larger than {MAX_INTEGER}")
        return float(value)
    if abs(value) > MAX_INTEGER:
        raise Invalid(path, f"is larger than {MAX_INTEGER}")
    return int(value)


def canonical(value: Any, path: str, limits: Limits = Limits()) -> str:
    """RFC 8785 text of an already cleaned value. Raises ``Invalid`` when it is too long."""
    return within(rfc8785.dumps(value), path, limits)


def within(encoded: bytes, path: str, limits: Limits = Limits()) -> str:
    """Canonical bytes as text. Raises ``Invalid`` when they are too many."""
    if len(encoded) > limits.max_bytes:
        raise Invalid(path, f"is {len(encoded)} bytes; the limit is {limits.max_bytes}")
    return encoded.decode("utf-8")


# An object's canonical text is that of its members, each by itself, with commas between them, in
# the order of their names (RFC 8785, 3.2.1 to 3.2.3): whoever has the members has every object
# that is made of some of them, without writing their values again.


def members(value: Mapping[str, Any]) -> dict[str, bytes]:
    """Of a cleaned object: each member's canonical bytes by its name, in canonical order."""
    return {name: member(name, value[name]) for name in in_order(value)}


def member(name: str, value: Any) -> bytes:
    """The canonical bytes of one member."""
    if isinstance(value, dict):
        return word(name) + b":" + joined(members(value).values())
    return word(name) + b":" + rfc8785.dumps(value)


def joined(in_their_order: Iterable[bytes]) -> bytes:
    """The canonical bytes of the object that has these members, given in canonical order."""
    return b"{" + b",".join(in_their_order) + b"}"


def in_order(names: Collection[str]) -> list[str]:
    """Names in the order of their UTF-16 units. Code points have another order only where some
    are beyond the first plane, so never those of ASCII."""
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=methodcaller("encode", "utf-16-be"))


def hexed(digits: str) -> bytes:
    """The canonical bytes of hex digits, with dashes or without, as text: none is escaped."""
    return b'"%b"' % digits.encode()


def word(text: str) -> bytes:
    """The canonical bytes of a text that comes again and again: a name, or a word of a scope."""
    return _word(text) if len(text) <= _WORD_CHARS else rfc8785.dumps(text)


@lru_cache(maxsize=4096)
def _word(text: str) -> bytes:
    return rfc8785.dumps(text)


def _canonical_json(identity: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(rfc8785.dumps(dict(identity))).digest()


# Every rule that a row may be recorded under, by version. One is taken out only once no row of its
# version can be asked for again.
RULES: dict[int, Rule] = {1: _canonical_json}


def fingerprint(
    identity: Mapping[str, Any], version: int | None = None, *, text: bytes | None = None
) -> bytes:
    """SHA-256 (32 bytes) of the cleaned identity fields by one of ``RULES``: by
    ``FINGERPRINT_VERSION`` unless another is named. ``text`` is their canonical text, where it has
    been made already."""
    rule = RULES[written_version() if version is None else version]
    if text is not None and rule is _canonical_json:
        return hashlib.sha256(text).digest()
    return rule(identity)


def written_version() -> int:
    """The version that new rows are recorded under."""
    return FINGERPRINT_VERSION


def intent_key(
    *,
    tenant: str,
    vendor: str,
    account: str,
    tool: str,
    once_per: str,
    run_id: str,
    epoch: str,
    print_: bytes,
    occurrence: int,
    supersedes: UUID | None,
) -> bytes:
    """The idempotency key (32 bytes), born here and nowhere else.

    A canonical JSON array is an unambiguous encoding: no field can leak into its neighbour. It is
    its elements with commas between them, each canonical by itself; a whole number is its digits.
    """
    scope = {
        "run": ("run", run_id),
        "epoch": ("epoch", run_id, epoch),
        "tenant": ("tenant",),
    }[once_per]
    begins = _key_begins(tenant, vendor, account, scope, tool)
    repeats = rfc8785.dumps(str(supersedes)) if supersedes else b"null"
    ends = b",%b,%d,%b]" % (hexed(print_.hex()), occurrence, repeats)
    return hashlib.sha256(begins + ends).digest()


@lru_cache(maxsize=4096)
def _key_begins(tenant: str, vendor: str, account: str, scope: tuple[str, ...], tool: str) -> bytes:
    """What the keys of one tool's intents of one run have in common."""
    parts = ["outbox-key/1", tenant, vendor, account, scope, tool]
    return rfc8785.dumps(parts)[:-1]


def intent_id(key: bytes) -> UUID:
    """The row's id: a UUID of version 8 made from the key, so every try names the same row."""
    return UUID(intent_id_text(key.hex()))


def intent_id_text(key: str) -> str:
    """The same as text, from the key in hex: a UUID says its version in one digit, and its
    variant in two bits of another."""
    variant = "89ab"[int(key[16], 16) & 0x3]
    return f"{key[:8]}-{key[8:12]}-8{key[13:16]}-{variant}{key[17:20]}-{key[20:32]}"

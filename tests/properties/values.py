"""Arbitrary arguments, other spellings of them, values that are almost them, and what each means.

``meaning`` is the documented rule of equality a second time, by other means than the product's:
fractions for numbers, the decomposed form for text, sets of pairs for objects. It makes no bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

MOST = 2**53 - 1
DEPTH = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Draw = Callable[[st.SearchStrategy[Any]], Any]

# Texts that are one in another form (composed, decomposed, a compatibility sign) and that only
# look alike (a ligature, full width, another case); quotes and brackets of the encoding itself.
_ODD = [
    "\u00e9", "e\u0301", "\u00c5", "A\u030a", "\u212b", "\ufb01", "fi", "\uff21", "A", "a", "ss",
    "\u00df", "\u1e9b\u0323", "\u0323\u0307", "\u0307\u0323", '"', "\\", ",", "[", "\u2028",
    "\x01", "\x7f", "\U0001f600", "\ud7ff", "\ue000", "\uac00", "\u1100\u1161", "", "0", "null",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(_ODD), max_size=3).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6
)
INTEGERS = st.integers(-3, 3) | st.integers(-MOST, MOST) | st.sampled_from([MOST, -MOST])
_FLOATS = st.floats(-MOST, MOST) | st.sampled_from([0.1, -0.0, 1e-7, 5e-324, 0.5])
_MOMENTS = st.integers(86_400, 7_000_000_000).map(
    lambda tenths: datetime(1970, 1, 2, tzinfo=UTC) + timedelta(seconds=tenths / 10)
) | st.sampled_from([datetime(2026, 3, 29, 1, 30, tzinfo=UTC)])
_DAYS = st.dates(date(1970, 1, 1), date(2200, 1, 1)) | st.just(date(2026, 3, 29))
_WRITTEN = st.sampled_from(
    ["2026-03-29T01:30:00Z", "2026-03-29", "0.1", "1", "true", str(UUID(int=1))]
)
LEAVES = (
    st.none()
    | st.booleans()
    | INTEGERS
    | _FLOATS
    | TEXTS
    | _MOMENTS
    | _DAYS
    | st.sampled_from([UUID(int=1), UUID(int=2)])
    | _WRITTEN
)
NAMES = TEXTS | st.sampled_from(["a", "b", "\u00e9", "e\u0301"])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | _objects(inner)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects in which no name stands in two spellings."""
    pairs = st.tuples(NAMES, inner)
    return st.lists(pairs, max_size=3, unique_by=lambda pair: _decomposed(pair[0])).map(dict)


VALUES = st.recursive(LEAVES, _nested, max_leaves=6)

# What no document of ours can carry, among what it can.
_BAD = st.sampled_from(
    [
        "a\x00b",
        "\ud800",
        float("nan"),
        float("inf"),
        MOST + 1,
        -MOST - 1,
        float(2**53),
        1e300,
        Decimal("NaN"),
        Decimal("0.1000000000000000055511151231257827021181583404541015625"),
        Decimal(MOST) + 1,
        Decimal("1E+400"),
        datetime(2026, 1, 1),  # noqa: DTZ001 - without a zone on purpose
        b"bytes",
        {1, 2},
        object,
        1j,
        {1: 2},
        {"a\x00": 1},
        {"\u00e9": 1, "e\u0301": 2},
        {"\udfff": 1},
    ]
) | st.decimals(allow_nan=True)
ANYTHING = st.recursive(LEAVES | _BAD, _nested, max_leaves=6)


class Refused(Exception):
    """The rules do not let this value be carried."""


def meaning(value: Any, depth: int = 0) -> Any:
    """A hashable thing that is equal for two values exactly where they are one value by the
    rules. Raises ``Refused`` for what cannot be carried."""
    if depth > DEPTH:
        raise Refused("depth")
    match value:
        case None:
            return "null"
        case bool():
            return ("truth", value)
        case int() | float() | Decimal():
            return ("number", _fraction(value))
        case str():
            return ("text", _decomposed(value))
        case datetime():
            return ("text", _rfc3339(value))
        case date():
            return ("text", f"{value.year:04}-{value.month:02}-{value.day:02}")
        case UUID():
            return (
                "text",
                f"{value.hex[:8]}-{value.hex[8:12]}-{value.hex[12:16]}-"
                f"{value.hex[16:20]}-{value.hex[20:]}",
            )
        case Mapping():
            pairs = [(_named(name), meaning(item, depth + 1)) for name, item in value.items()]
            if len({name for name, _ in pairs}) < len(pairs):
                raise Refused("one name twice")
            return ("object", frozenset(pairs))
        case list() | tuple():
            return ("list", tuple(meaning(item, depth + 1) for item in value))
    raise Refused(type(value).__name__)


def _fraction(value: float | Decimal) -> Fraction:
    """The number as it is written in JSON: a float by its shortest digits."""
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value) > MOST:
            raise Refused("range")
        exact = Fraction(value)
        if exact.denominator != 1 and Fraction(Decimal(repr(float(value)))) != exact:
            raise Refused("digits")
        return exact
    if value != value or abs(value) > MOST:
        raise Refused("range")
    return Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)


def _named(name: Any) -> str:
    if not isinstance(name, str):
        raise Refused("name")
    return _decomposed(name)


def _decomposed(text: str) -> str:
    if "\x00" in text or any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise Refused("text")
    return unicodedata.normalize("NFD", text)


def _rfc3339(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise Refused("no zone")
    utc = _EPOCH + (moment - _EPOCH)
    fraction = f".{utc.microsecond:06}" if utc.microsecond else ""
    return utc.strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z")


# -- spellings -----------------------------------------------------------------------------------


def respelled(draw: Draw, value: Any) -> Any:
    """The same value written in another way."""
    match value:
        case None | bool() | date() if not isinstance(value, datetime):
            return value
        case int():
            zeros = "0" * draw(st.integers(0, 3))
            return draw(st.sampled_from([value, float(value), Decimal(f"{value}.{zeros}")]))
        case float():
            return draw(st.sampled_from([value, Decimal(repr(value))]))
        case str():
            return unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD"])), value)
        case datetime():
            zone = timezone(timedelta(minutes=draw(st.integers(-14 * 60, 14 * 60))))
            return draw(st.sampled_from([value.astimezone(zone), _rfc3339(value)]))
        case UUID():
            return draw(st.sampled_from([value, str(value)]))
        case Mapping():
            items = draw(st.permutations(list(value.items())))
            return {respelled(draw, name): respelled(draw, item) for name, item in items}
        case list() | tuple():
            kind = draw(st.sampled_from([list, tuple]))
            return kind(respelled(draw, item) for item in value)
    return value


def altered(draw: Draw, value: Any) -> Any:
    """A value that is almost the same; now and then it is the same after all."""
    if isinstance(value, Mapping) and value:
        name = draw(st.sampled_from(list(value)))
        rest = {n: v for n, v in value.items() if n != name}
        change = draw(st.sampled_from(["drop", "rename", "inside"]))
        if change == "drop":
            return rest
        if change == "rename":
            return {**rest, altered(draw, name): value[name]}
        return {**value, name: altered(draw, value[name])}
    if isinstance(value, list | tuple) and value:
        at = draw(st.integers(0, len(value) - 1))
        change = draw(st.sampled_from(["drop", "swap", "inside", "wrap"]))
        items = list(value)
        if change == "drop":
            return items[:at] + items[at + 1 :]
        if change == "swap":
            return items[at:] + items[:at]
        if change == "wrap":
            return [items]
        return [*items[:at], altered(draw, items[at]), *items[at + 1 :]]
    if isinstance(value, bool):
        return draw(st.sampled_from([not value, int(value), str(value).lower()]))
    if isinstance(value, int | float):
        return draw(st.sampled_from([value / 2, -value, str(value), [value], value * (1 + 2**-52)]))
    if isinstance(value, str):
        form = draw(st.sampled_from(["NFKC", "NFKD", "case", "more"]))
        if form == "case":
            return value.swapcase()
        return value + "\u0301" if form == "more" else unicodedata.normalize(form, value)
    return draw(st.sampled_from([None, "", [], {}, "null", str(value)]))


@st.composite
def pairs(draw: Draw, of: st.SearchStrategy[Any] = VALUES) -> tuple[Any, Any]:
    """Two values: one in two spellings, two that are almost one, or any two."""
    one = draw(of)
    how = draw(st.sampled_from(["respelled", "altered", "both", "other"]))
    if how == "other":
        return one, draw(of)
    other = one if how == "respelled" else altered(draw, one)
    return one, other if how == "altered" else respelled(draw, other)

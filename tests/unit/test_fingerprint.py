"""Equal values get equal bytes, different ones different bytes; the rest is refused by name."""

from __future__ import annotations

import enum
import itertools
import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import Invalid
from outbox.fingerprint import (
    MAX_INTEGER,
    Limits,
    canonical,
    cleaned,
    fingerprint,
    intent_id,
    intent_key,
    parse_json,
)


class Word(enum.StrEnum):
    PAID = "paid"


class Level(enum.IntEnum):
    HIGH = 49


class Nowhere(tzinfo):
    """A zone that does not say how far it is from UTC."""

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None

    def dst(self, _: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None) -> str | None:
        return None


def text(value: Any) -> str:
    return canonical(cleaned(value, "args"), "args")


def print_of(value: Any) -> bytes:
    return fingerprint(cleaned({"v": value}, "args"))


EQUAL = [
    [49, 49.0, Decimal("49.00"), Decimal("4.9E+1"), Level.HIGH, "raw 49", "raw 49.0", "raw 4.9e1"],
    [100, 1e2, Decimal("1E+2"), Decimal("100.000"), "raw 1e2", "raw 100.0"],
    [0, -0.0, 0.0, Decimal("-0"), Decimal("0E+20"), Decimal("0E-20"), "raw -0", "raw -0.0"],
    [1e-07, Decimal("1E-7"), "raw 1e-7", "raw 0.0000001"],
    [0.1, Decimal("0.1"), Decimal("0.10"), "raw 0.1"],
    [MAX_INTEGER, float(MAX_INTEGER), Decimal(MAX_INTEGER)],
    ["paid", Word.PAID],
    [[1, 2], (1, 2)],
    [{"a": 1, "b": 2}, OrderedDict(b=2, a=1)],
    [
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=2))),
        "2026-03-29T01:30:00Z",
    ],
    [date(2026, 3, 29), "2026-03-29"],
]


def read(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("raw "):
        return parse_json(value.removeprefix("raw "))
    return value


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: repr(group[0]))
def test_equal_values_written_differently_have_one_fingerprint(group: list[Any]) -> None:
    assert len({print_of(read(value)) for value in group}) == 1
    assert len({text(read(value)) for value in group}) == 1


def test_what_is_sent_is_the_canonical_number() -> None:
    assert (text(49.0), text(-0.0), text(1e2), text(Decimal("49.00"))) == ("49", "0", "100", "49")
    assert cleaned(49.0, "args") == 49
    assert type(cleaned(49.0, "args")) is int


DIFFERENT = [
    49, "49", 49.000000001, 50, "49.0", True, "true", 1, None, "null", False, 0, "", [], {},
    [49], [[49]], {"49": 49}, [1, 2], [2, 1], "a", "A", "ä", "paid ", {"a": None},
]  # fmt: skip


def test_different_values_have_different_fingerprints() -> None:
    for one, other in itertools.combinations(DIFFERENT, 2):
        assert print_of(one) != print_of(other), (one, other)


def test_one_text_in_two_spellings_is_one_value() -> None:
    assert print_of("Cafe\u0301-42") == print_of("Caf\u00e9-42")
    assert cleaned(["e\u0301", {"e\u0301": 1}], "args") == ["\u00e9", {"\u00e9": 1}]


def test_a_key_in_two_spellings_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        cleaned({"a": {"e\u0301": 1, "\u00e9": 2}}, "args")
    assert refused.value.field == "args.a"


REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": [1, {"b": math.nan}]}, "args.a[1].b"),
    "infinity": ({"a": math.inf}, "args.a"),
    "minus infinity": ([-math.inf], "args[0]"),
    "a Decimal NaN": ({"a": Decimal("NaN")}, "args.a"),
    "a signalling NaN": ({"a": Decimal("sNaN")}, "args.a"),
    "a Decimal infinity": ({"a": Decimal("Infinity")}, "args.a"),
    "a huge Decimal": ({"a": Decimal("1E+999999")}, "args.a"),
    "a tiny Decimal": ({"a": Decimal("1E-999999")}, "args.a"),
    "a Decimal beyond a float": ({"a": Decimal("0.12345678901234567890")}, "args.a"),
    "a Decimal beyond its context": ({"a": Decimal("0.1" + "0" * 40 + "1")}, "args.a"),
    "an integer too large": ({"a": MAX_INTEGER + 1}, "args.a"),
    "an integer too small": ({"a": -MAX_INTEGER - 1}, "args.a"),
    "a float too large": ({"a": 1e17}, "args.a"),
    "a 5000 digit integer": ({"a": 10**5000}, "args.a"),
    "a NUL": ({"a": "x\x00y"}, "args.a"),
    "a NUL in a list": ({"a": ["x", "\x00"]}, "args.a[1]"),
    "a NUL in a key": ({"x\x00y": 1}, "args.x\\x00y"),
    "a lone surrogate": ({"a": "\ud800"}, "args.a"),
    "a lone surrogate in a key": ({"\udfff": 1}, "args.\\udfff"),
    "a naive datetime": ({"a": datetime(2026, 1, 1)}, "args.a"),  # noqa: DTZ001
    "a datetime of no zone": ({"a": datetime(2026, 1, 1, tzinfo=Nowhere())}, "args.a"),
    "a datetime before UTC began": (
        {"a": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))},
        "args.a",
    ),
    "a time": ({"a": time(1)}, "args.a"),
    "a duration": ({"a": timedelta(1)}, "args.a"),
    "a set": ({"a": {1}}, "args.a"),
    "bytes": ({"a": b"x"}, "args.a"),
    "a fraction": ({"a": Fraction(1, 3)}, "args.a"),
    "a complex number": ({"a": 1j}, "args.a"),
    "an object": ({"a": object()}, "args.a"),
    "a generator": ({"a": (n for n in [1])}, "args.a"),
    "an integer key": ({"a": {1: 2}}, "args.a"),
    "a null key": ({None: 2}, "args"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_carried_is_refused_by_its_field(what: str) -> None:
    value, field = REFUSED[what]
    with pytest.raises(Invalid) as refused:
        cleaned(value, "args")
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("x" * 5000, "args." + "x" * 40),
        ("\x1b[2J", "args.\\x1b[2J"),
        ("a\nb", "args.a\\nb"),
        ("金額", "args.金額"),
    ],
)
def test_a_field_path_neither_floods_a_message_nor_steers_a_terminal(name: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        cleaned({name: math.nan}, "args")
    assert refused.value.field == field
    with pytest.raises(Invalid) as refused:
        parse_json(f"{{{json.dumps(name)}: 1, {json.dumps(name)}: 2}}")
    assert refused.value.field == field


def test_a_refusal_never_quotes_the_value() -> None:
    for value in ("secret\x00", "secret\ud800", {"secret"}, b"secret"):
        with pytest.raises(Invalid) as refused:
            cleaned({"a": value}, "args")
        assert "secret" not in str(refused.value)
    with pytest.raises(Invalid) as refused:
        parse_json('{"a": secret}')
    assert "secret" not in str(refused.value)
    with pytest.raises(Invalid) as refused:
        canonical({"a": "secret" * 20_000}, "args")
    assert "secret" not in str(refused.value)


RAW: dict[str, tuple[str | bytes, str]] = {
    "not JSON": ("{", "args"),
    "nothing": ("", "args"),
    "two documents": ("{} {}", "args"),
    "NaN": ('{"a": NaN}', "args"),
    "infinity": ('{"a": -Infinity}', "args"),
    "a 5000 digit integer": ('{"a": ' + "9" * 5000 + "}", "args"),
    "100000 lists": ("[" * 100_000 + "]" * 100_000, "args"),
    "100000 objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "args"),
    "a duplicate key": ('{"a": 1, "a": 2}', "args.a"),
    "a duplicate key spelled differently": ('{"a": 1, "\\u0061": 2}', "args.a"),
    "bytes that are not UTF-8": (b'{"a": "\xff"}', "args"),
    "a bare control character": ('{"a": "\n"}', "args"),
}


@pytest.mark.parametrize("what", RAW)
def test_raw_text_that_is_not_one_json_document_is_refused(what: str) -> None:
    raw, field = RAW[what]
    with pytest.raises(Invalid) as refused:
        parse_json(raw)
    assert refused.value.field == field


def test_raw_numbers_too_large_for_a_float_are_refused_and_never_become_null() -> None:
    with pytest.raises(Invalid) as refused:
        cleaned(parse_json('{"x": 1e400}'), "args")
    assert refused.value.field == "args.x"


def test_raw_escapes_are_judged_by_what_they_mean() -> None:
    for raw in ('{"a": "\\u0000"}', '{"a": "\\ud800"}'):
        with pytest.raises(Invalid) as refused:
            cleaned(parse_json(raw), "args")
        assert refused.value.field == "args.a"
    assert text(parse_json('"\\ud83d\\ude00"')) == '"😀"'


def test_depth_is_limited_before_python_gives_up() -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert cleaned(nested(32), "args") == nested(32)
    for depth in (33, 100_000):
        with pytest.raises(Invalid) as refused:
            cleaned(nested(depth), "args")
        assert refused.value.field == "args" + "[0]" * 33
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Invalid):
        cleaned(endless, "args")


def test_size_is_limited_in_bytes_of_the_canonical_text() -> None:
    limits = Limits(max_bytes=12)
    assert canonical("ä" * 5, "args", limits) == '"äääää"'
    with pytest.raises(Invalid) as refused:
        canonical("ä" * 6, "args", limits)
    assert refused.value.field == "args"


def test_a_callers_decimal_context_changes_nothing() -> None:
    with localcontext(Context(prec=3)):
        assert text(Decimal("1234.5")) == "1234.5"
        assert text(Decimal("123456")) == "123456"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_cleaning_twice_is_cleaning_once(value: Any) -> None:
    once = cleaned(value, "args", Limits(max_depth=100))
    assert cleaned(once, "args", Limits(max_depth=100)) == once


@given(JSON)
def test_canonical_text_reads_back_as_the_same_fingerprint(value: Any) -> None:
    limits = Limits(max_depth=100)
    once = cleaned({"v": value}, "args", limits)
    again = cleaned(parse_json(canonical(once, "args", limits)), "args", limits)
    assert fingerprint(once) == fingerprint(again)


@given(st.dictionaries(st.text("abcdefgh", min_size=1), JSON, max_size=6), st.randoms())
def test_the_order_of_names_does_not_count(value: dict[str, Any], chance: Any) -> None:
    names = list(value)
    chance.shuffle(names)
    limits = Limits(max_depth=100)
    shuffled = cleaned({name: value[name] for name in names}, "args", limits)
    assert fingerprint(shuffled) == fingerprint(cleaned(value, "args", limits))


@given(st.integers(-(10**14), 10**14), st.integers(0, 6))
def test_a_whole_number_is_one_number_however_it_is_written(number: int, zeros: int) -> None:
    written = Decimal(number).quantize(Decimal(1).scaleb(-zeros))
    assert print_of(number) == print_of(float(number)) == print_of(written)
    assert print_of(number) == print_of(parse_json(f"{number}.{'0' * (zeros + 1)}"))


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_is_carried_exactly_or_refused(number: Decimal) -> None:
    try:
        kept = cleaned(number, "args")
    except Invalid:
        return
    assert Decimal(json.dumps(kept)) == number


# -- keys ----------------------------------------------------------------------------------------

_SCOPE: dict[str, Any] = {
    "tenant": "acme",
    "vendor": "stripe",
    "account": "default",
    "tool": "charge",
    "once_per": "epoch",
    "run_id": "run-1",
    "epoch": "turn-1",
    "print_": b"\x01" * 32,
    "occurrence": 0,
    "supersedes": None,
}
_OTHER: dict[str, Any] = {
    "tenant": "b",
    "vendor": "sandbox",
    "account": "second",
    "tool": "refund",
    "run_id": "run-2",
    "epoch": "turn-2",
    "print_": b"\x02" * 32,
    "occurrence": 1,
    "supersedes": uuid4(),
}


def test_each_part_of_the_scope_makes_another_key() -> None:
    keys = {intent_key(**_SCOPE)} | {
        intent_key(**{**_SCOPE, name: value}) for name, value in _OTHER.items()
    }
    assert len(keys) == 1 + len(_OTHER)
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize(
    ("once_per", "counts"), [("run", {"run_id"}), ("epoch", {"run_id", "epoch"}), ("tenant", set())]
)
def test_the_key_holds_only_what_the_tool_is_once_per(once_per: str, counts: set[str]) -> None:
    base = {**_SCOPE, "once_per": once_per}
    changed = {
        name
        for name in ("run_id", "epoch")
        if intent_key(**{**base, name: _OTHER[name]}) != intent_key(**base)
    }
    assert changed == counts


def test_the_three_scopes_never_share_a_key() -> None:
    base = {**_SCOPE, "epoch": "", "run_id": ""}
    keys = {intent_key(**{**base, "once_per": o}) for o in ("run", "epoch", "tenant")}
    assert len(keys) == 3


_NAMES = ("tenant", "vendor", "account", "tool", "run_id", "epoch")
_TEXTS = st.fixed_dictionaries({name: st.text('a",[]/\\', max_size=4) for name in _NAMES})


@given(_TEXTS, _TEXTS)
def test_no_part_of_a_scope_leaks_into_its_neighbour(
    one: dict[str, str], other: dict[str, str]
) -> None:
    same = intent_key(**{**_SCOPE, **one}) == intent_key(**{**_SCOPE, **other})
    assert same == (one == other)


@given(
    st.text("ab", min_size=2, max_size=6),
    st.sampled_from(list(itertools.pairwise(_NAMES))),
)
def test_no_letter_can_move_from_one_part_of_a_scope_to_the_next(
    whole: str, pair: tuple[str, str]
) -> None:
    keys = {
        intent_key(**{**_SCOPE, pair[0]: whole[:cut], pair[1]: whole[cut:]})
        for cut in range(len(whole) + 1)
    }
    assert len(keys) == len(whole) + 1


def test_a_key_holds_nothing_that_can_be_read() -> None:
    key = intent_key(**{**_SCOPE, "tenant": "jane@example.com", "run_id": "Jane Doe"})
    assert b"jane" not in key.lower()
    assert "jane" not in key.hex()


def test_the_id_is_the_keys_own_and_a_valid_uuid() -> None:
    key = intent_key(**_SCOPE)
    assert intent_id(key) == intent_id(key)
    assert intent_id(key).version == 8
    assert intent_id(key).variant == "specified in RFC 4122"
    assert isinstance(intent_id(key), UUID)

"""Canonical form, fingerprint and key: equal exactly where the documented rules say so, under every
rule of fingerprints, in every process."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import event, given
from hypothesis import strategies as st

from outbox import fingerprint as fingerprints
from outbox.errors import Invalid
from outbox.fingerprint import RULES, Limits, canonical, cleaned, fingerprint
from outbox.intent import draft
from outbox.tool import Scope, WriteTool
from tests.properties.profiles import bounded
from tests.properties.recomputing import Asked, computed
from tests.properties.values import ANYTHING, LEAVES, VALUES, Refused, meaning, pairs

CHECKOUT = Path(__file__).parents[2]
DEEP = Limits(max_bytes=2**20)


def another_rule(identity: Mapping[str, Any]) -> bytes:
    """A rule as a later release may have: other bytes for the same document."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False)
    return hashlib.sha512(text.encode()).digest()[:32]


@pytest.fixture
def two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fingerprints.RULES, 2, another_rule)


def prints(value: Any) -> set[bytes]:
    """The value's fingerprint by each rule, with the rule's number in it."""
    document = cleaned({"v": value}, "args", DEEP)
    return {b"%d" % version + fingerprint(document, version) for version in RULES}


@given(pairs())
@bounded(180)
def test_two_values_have_one_fingerprint_exactly_where_they_mean_the_same(
    two_rules: None, pair: tuple[Any, Any]
) -> None:
    one, other = pair
    try:
        same = meaning(one) == meaning(other)
    except Refused:  # two names that an alteration made one
        return
    event(f"the same: {same}")
    if same:
        assert prints(one) == prints(other)
    else:
        assert not prints(one) & prints(other)
    texts = {canonical(cleaned(value, "args", DEEP), "args", DEEP) for value in pair}
    assert len(texts) == (1 if same else 2)


@given(ANYTHING)
@bounded(180)
def test_a_value_is_refused_exactly_where_it_cannot_be_carried(value: Any) -> None:
    try:
        meaning(value)
        expected = True
    except Refused:
        expected = False
    event(f"carried: {expected}")
    if not expected:
        with pytest.raises(Invalid) as refused:
            cleaned(value, "args", DEEP)
        assert refused.value.field.startswith("args")
        refused.value.field.encode()
        return
    assert meaning(cleaned(value, "args", DEEP)) == meaning(value), "what is kept is what was said"


@given(VALUES)
@bounded(90)
def test_the_canonical_text_is_json_of_the_very_value_and_is_rfc_8785(value: Any) -> None:
    text = canonical(cleaned(value, "args", DEEP), "args", DEEP)
    assert meaning(json.loads(text)) == meaning(value)
    assert cleaned(json.loads(text), "args", DEEP) == cleaned(value, "args", DEEP)
    names: list[list[str]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names.append([name for name, _ in pairs])
        return dict(pairs)

    json.loads(text, object_pairs_hook=keep)
    for listed in names:
        assert listed == sorted(listed, key=lambda name: name.encode("utf-16-be"))
    assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)), "blanks between the parts"


# Names that text and its UTF-16 units put into different orders, and that are written escaped.
_NAMES = st.text('aB\u00e9\ue000\U0001f600"', min_size=1, max_size=3)
_VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=6,
)
_PASSING = WriteTool(
    "pass",
    vendor="stripe",
    operation="customers.create",
    identity=("a",),
    guard=("\ue000",),
    request=lambda args: {**args, "B": args["a"]},
)


@given(
    st.dictionaries(_NAMES, _VALUES, max_size=5),
    st.integers(0, 9),
    st.text('a/\u00e9"', min_size=1),
)
@bounded(180)
def test_what_is_put_together_of_its_parts_is_what_the_library_writes_of_the_whole(
    value: dict[str, Any], amount: int, run_id: str
) -> None:
    args = cleaned({**value, "a": run_id, "\ue000": amount}, "args", DEEP)
    made = draft(_PASSING, Scope("acme", run_id, account="\u00e9"), args, limits=DEEP)
    parts = {"a": args["a"]}, {"\ue000": args["\ue000"]}, args
    texts = [rfc8785.dumps(part).decode() for part in parts]
    assert [made.identity, made.guard, made.args] == texts
    request = made.columns["request"]
    assert rfc8785.dumps(json.loads(request)).decode() == request
    passed = {**args, "B": args["a"], "metadata": 0}
    assert {**json.loads(request)["params"], "metadata": 0} == passed
    printed = hashlib.sha256(texts[0].encode()).hexdigest()
    key: Any = ["outbox-key/1", "acme", "stripe", "\u00e9", ["run", run_id], "pass"]
    key += [printed, 0, None]
    assert made.key == hashlib.sha256(rfc8785.dumps(key)).digest()


# -- keys ----------------------------------------------------------------------------------------

_WORD = st.sampled_from(["a", "b", "a/b", "a,b", '["a"]', "\u00e9"])


@st.composite
def enqueues(draw: Any) -> Asked:
    """An enqueue out of few words, so that two are often the same."""
    identity = st.sampled_from([1, 1.0, "1", "a", "e\u0301", "\u00e9", ["a"], ("a",)])
    return Asked(
        tool=draw(st.sampled_from(["pay", "pay.a"])),
        once_per=draw(st.sampled_from(["run", "epoch", "tenant"])),
        all_is_identity=draw(st.booleans()),
        tenant=draw(_WORD),
        run_id=draw(_WORD),
        account=draw(_WORD),
        epoch=draw(_WORD),
        occurrence=draw(st.integers(0, 1)),
        supersedes=draw(st.sampled_from([None, UUID(int=1), UUID(int=2)])),
        identity=draw(identity),
        guard=draw(st.integers(1, 2)),
        free=draw(st.sampled_from([None, "memo", {"a": 1}])),
    )


_FIELDS = [name for name in Asked.__dataclass_fields__ if name != "identity"]


@st.composite
def two_enqueues(draw: Any) -> tuple[Asked, Asked]:
    """Two that differ in one thing at the most, in several, or in how their identity is spelled."""
    one: Asked = draw(enqueues())
    other: Asked = draw(enqueues())
    taken = draw(st.lists(st.sampled_from(_FIELDS), max_size=2, unique=True))
    fields = {name: getattr(other if name in taken else one, name) for name in _FIELDS}
    spelled = draw(pairs())
    first, second = draw(st.sampled_from([(one.identity, other.identity), spelled]))
    return Asked(**{**one.__dict__, "identity": first}), Asked(**fields, identity=second)


def owed(asked: Asked) -> Any:
    """What the key is made of, as the README says it."""
    scopes = {"run": (asked.run_id,), "epoch": (asked.run_id, asked.epoch), "tenant": ()}
    said = {"identity": asked.identity}
    if asked.all_is_identity:
        said |= {"guard": asked.guard, "free": asked.free}
    if asked.identity is None:
        raise Refused("missing")
    return (
        asked.tool,
        asked.once_per,
        scopes[asked.once_per],
        asked.tenant,
        asked.account,
        asked.occurrence,
        asked.supersedes,
        meaning(said),
    )


@given(two_enqueues())
@bounded(130)
def test_two_enqueues_have_one_key_exactly_where_all_that_makes_it_is_the_same(
    two_rules: None, two: tuple[Asked, Asked]
) -> None:
    try:
        same = owed(two[0]) == owed(two[1])
    except Refused:
        for asked in two:
            try:
                owed(asked)
            except Refused:
                with pytest.raises(Invalid):
                    asked.drafted()
        return
    event(f"one key: {same}")
    one, other = (asked.drafted() for asked in two)
    assert (one.key == other.key) == (one.id == other.id) == same
    for version, (mine, theirs) in enumerate(zip(one.ever, other.ever, strict=True)):
        assert (mine.key == theirs.key) == same, f"by rule {sorted(RULES)[version]}"
    # Two rules are two keys for one write: that is why a row is sought by each.
    assert not {each.key for each in one.ever[:1]} & {each.key for each in one.ever[1:]}
    assert len(one.ever) == len(RULES)
    written = sorted(RULES).index(fingerprints.written_version())
    assert (one.ever[written].key, one.ever[written].fingerprint) == (
        one.key,
        one.columns["fingerprint"],
    )
    assert not same or (one.identity == other.identity)


# -- other processes -----------------------------------------------------------------------------


def test_another_process_with_another_hash_seed_comes_to_the_same_bytes() -> None:
    asked: list[Asked] = []

    @given(enqueues(), ANYTHING, ANYTHING)
    @bounded(100)
    def collect(one: Asked, identity: Any, free: Any) -> None:
        asked.append(one)
        if not any(isinstance(value, type) for value in (identity, free)):
            asked.append(Asked(**{**one.__dict__, "identity": identity, "free": free}))

    collect()
    here = json.loads(json.dumps([computed(each) for each in asked]))
    assert sum("refused" in each for each in here) > 10, "what is refused is among them"
    assert sum("id" in each for each in here) > 100
    for seed in ("0", "4242"):
        ran = subprocess.run(
            [sys.executable, "-m", "tests.properties.recomputing"],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            input=pickle.dumps(asked),
            capture_output=True,
            check=True,
        )
        assert json.loads(ran.stdout) == here, f"hash seed {seed}"


# -- other releases ------------------------------------------------------------------------------

# The canonical text by hand, from RFC 8785: no code of ours, and none of the library's.
_KNOWN = [
    ({"identity": "in_1"}, '{"identity":"in_1"}'),
    ({"identity": 4900.0}, '{"identity":4900}'),
    (
        {"identity": {"b": [True, None], "a": "e\u0301"}},
        '{"identity":{"a":"\u00e9","b":[true,null]}}',
    ),
    ({"identity": 1e-07}, '{"identity":1e-7}'),
    ({"identity": "\u2028\x01\n"}, '{"identity":"\u2028\\u0001\\n"}'),
]


@pytest.mark.parametrize(("said", "text"), _KNOWN)
def test_what_a_release_has_recorded_every_later_one_comes_to_again(
    said: dict[str, Any], text: str
) -> None:
    """Rule 1 and the key, for ever: a row that was recorded years ago is found by these bytes."""
    made = Asked(identity=said["identity"], epoch="").drafted()
    printed = hashlib.sha256(text.encode()).hexdigest()
    key = f'["outbox-key/1","acme","stripe","default",["run","run"],"pay","{printed}",0,null]'
    assert made.identity == text
    assert made.ever[0].fingerprint.hex() == printed
    assert made.ever[0].key.hex() == hashlib.sha256(key.encode()).hexdigest()
    digest = bytearray(made.ever[0].key[:16])
    digest[6], digest[8] = digest[6] & 15 | 0x80, digest[8] & 63 | 0x80
    assert made.id.bytes == bytes(digest)

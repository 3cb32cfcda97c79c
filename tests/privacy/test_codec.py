"""Codecs and key rings: what seals, what opens, and which settings are refused."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from outbox import Settings
from outbox.codec import (
    PLAIN,
    Sealed,
    codec_of,
    open_bytes,
    open_text,
    readable,
    seal_bytes,
    seal_text,
)
from outbox.errors import SettingsError
from tests.privacy.rings import BOTH, NEW, OLD

COLUMN = "intents.args"
ROW, OTHER = "6f7d1c1e-0000-8000-8000-000000000001", "6f7d1c1e-0000-8000-8000-000000000002"
TEXT = '{"name":"Jané Döe \\u0000"}'


def test_a_plain_value_is_kept_as_the_very_same_object() -> None:
    kept, name = seal_text(PLAIN, TEXT, COLUMN, ROW)
    assert kept is TEXT
    assert open_text(PLAIN, name, kept, COLUMN, ROW) is TEXT
    body = TEXT.encode()
    kept_bytes, name = seal_bytes(PLAIN, body, COLUMN, ROW)
    assert kept_bytes is body
    assert open_bytes(PLAIN, name, kept_bytes, COLUMN, ROW) is body


def test_a_sealed_value_opens_again_and_shows_nothing() -> None:
    codec = codec_of("", OLD)
    kept, name = seal_text(codec, TEXT, COLUMN, ROW)
    assert name == "aesgcm:old"
    assert "Jan" not in kept
    assert open_text(codec, name, kept, COLUMN, ROW) == TEXT


def test_the_same_value_is_sealed_differently_each_time() -> None:
    codec = codec_of("", OLD)
    assert len({seal_text(codec, TEXT, COLUMN, ROW) for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("column", "row"), [("intents.request", ROW), (COLUMN, OTHER), ("intents.arg", f"s{ROW}")]
)
def test_a_value_put_elsewhere_does_not_open(column: str, row: str) -> None:
    codec = codec_of("", OLD)
    kept, name = seal_text(codec, TEXT, COLUMN, ROW)
    with pytest.raises(Sealed, match="belongs to another row"):
        open_text(codec, name, kept, column, row)


def test_a_changed_value_does_not_open() -> None:
    codec = codec_of("", OLD)
    kept, name = seal_bytes(codec, TEXT.encode(), COLUMN, ROW)
    for position in (0, 12, len(kept) - 1):
        changed = bytearray(kept)
        changed[position] ^= 1
        with pytest.raises(Sealed):
            open_bytes(codec, name, bytes(changed), COLUMN, ROW)
    for cut in (b"", kept[:11], kept[:-1]):
        with pytest.raises(Sealed):
            open_bytes(codec, name, cut, COLUMN, ROW)
    with pytest.raises(Sealed):
        open_text(codec, name, "not base64 !", COLUMN, ROW)


def test_the_newest_key_seals_and_every_key_opens() -> None:
    before, after = codec_of("", OLD), codec_of("", BOTH)
    kept, name = seal_text(before, TEXT, COLUMN, ROW)
    assert open_text(after, name, kept, COLUMN, ROW) == TEXT
    kept, name = seal_text(after, TEXT, COLUMN, ROW)
    assert name == "aesgcm:new"
    with pytest.raises(Sealed, match="no key of this process"):
        open_text(before, name, kept, COLUMN, ROW)


def test_plain_values_are_read_by_every_codec() -> None:
    assert readable(PLAIN) == ["plain"]
    assert readable(codec_of("", BOTH)) == ["aesgcm:new", "aesgcm:old", "plain"]
    assert open_text(codec_of("", BOTH), "plain", TEXT, COLUMN, ROW) == TEXT


def test_a_key_under_another_id_does_not_open_it() -> None:
    kept, name = seal_text(codec_of("", OLD), TEXT, COLUMN, ROW)
    swapped = codec_of("", "old:" + NEW.partition(":")[2])
    with pytest.raises(Sealed):
        open_text(swapped, name, kept, COLUMN, ROW)


def test_a_ring_may_be_a_file_with_a_key_to_a_line(tmp_path: Path) -> None:
    file = tmp_path / "ring"
    file.write_text(f"# the newest first\n{NEW}\n\n{OLD} # until all rows are settled\n")
    assert codec_of("", str(file)).reads == ("aesgcm:new", "aesgcm:old")


def test_keys_may_be_in_either_alphabet_of_base64() -> None:
    key = bytes([251, 255]) * 16
    safe = b64encode(key, b"-_").decode()
    assert "-" in safe
    kept, name = seal_text(codec_of("", f"k:{safe}"), TEXT, COLUMN, ROW)
    again = codec_of("", f"k:{b64encode(key).decode()}")
    assert open_text(again, name, kept, COLUMN, ROW) == TEXT


SECRET = b64encode(b"S" * 32).decode()
WRONG = {
    "a key alone": SECRET,
    "a key of 16 bytes": "k:" + b64encode(b"S" * 16).decode(),
    "no base64": "k:" + SECRET[:-1] + "!",
    "an empty key": "k:",
    "an empty id": f":{SECRET}",
    "an id with a space": f"my key:{SECRET}",
    "a key and its id changed round": f"{SECRET}:k",
    "the same id twice": f"k:{SECRET},k:{SECRET}",
    "nothing but a comma": ", ,",
    "a file that is not there": "/nowhere/" + SECRET.replace("/", "_"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_ring_is_refused_by_name_and_shows_no_key(what: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({"OUTBOX_CODEC_KEYS": WRONG[what]})
    ((field, problem),) = error.value.problems
    assert field == "OUTBOX_CODEC_KEYS"
    assert SECRET[:12] not in problem + repr(error.value)


def test_a_ring_is_read_once_with_every_other_fault() -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({"OUTBOX_CODEC_KEYS": "k:", "PORT": "x"})
    assert {field for field, _ in error.value.problems} == {"OUTBOX_CODEC_KEYS", "PORT"}


FACTORY = "tests.privacy.rings:Reversing"


def test_a_codec_of_ones_own_is_named_by_its_factory() -> None:
    codec = Settings.from_env({"OUTBOX_CODEC": FACTORY}).codec
    kept, name = seal_text(codec, TEXT, COLUMN, ROW)
    assert name == "reversing"
    assert open_text(codec, name, kept, COLUMN, ROW) == TEXT
    with pytest.raises(Sealed) as error:
        open_text(codec, name, kept, "intents.request", ROW)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


@pytest.mark.parametrize(
    "factory",
    [
        SECRET,
        f"k:{SECRET}",
        "tests.privacy.rings",
        "tests.privacy.rings:nothing",
        "no.such.module:factory",
        "tests.privacy.rings:without_names",
        "tests.privacy.rings:of_no_reads",
        "tests.privacy.rings:OLD",
    ],
)
def test_a_factory_that_makes_no_codec_is_refused(factory: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({"OUTBOX_CODEC": factory})
    ((field, problem),) = error.value.problems
    assert field == "OUTBOX_CODEC"
    assert SECRET[:12] not in problem


def test_a_factory_and_a_ring_together_are_refused() -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({"OUTBOX_CODEC": FACTORY, "OUTBOX_CODEC_KEYS": OLD})
    assert error.value.problems[0][0] == "OUTBOX_CODEC_KEYS"


def test_without_a_setting_values_are_plain() -> None:
    assert Settings.from_env({}).codec is PLAIN


def test_no_repr_shows_a_key() -> None:
    settings = Settings.from_env({"OUTBOX_CODEC_KEYS": f"k:{SECRET}"})
    for thing in (settings, settings.codec):
        assert SECRET[:12] not in repr(thing)
        assert "S" * 8 not in repr(thing)

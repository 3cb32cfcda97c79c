"""How personal data is kept: as it is, or sealed. It lies in four columns only (``intents.args``,
``request`` and ``receipt``, ``webhook_inbox.body``), each with a column beside it that names the
codec, and its key, that wrote the value. So rows of different codecs and keys live side by side.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from outbox.errors import Denied, Invalid

PLAIN_NAME = "plain"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}\Z")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


class Codec(Protocol):
    """What seals and opens values. Called from many threads at once; holds no connection.

    ``bound_to`` names the row and the column that a value belongs to: a codec authenticates it, so
    that a value put elsewhere does not open. ``open`` raises any error for what it cannot open.
    """

    @property
    def writes(self) -> str:
        """The name of codec and key that ``seal`` works by now, as it is kept beside the value."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Every name that ``open`` knows. Rows of other names are left alone."""
        ...

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        """The value as it is kept."""
        ...

    def open(self, name: str, sealed: bytes, bound_to: bytes) -> bytes:
        """The value again, from what ``seal`` made when ``writes`` was ``name``."""
        ...


class Plain:
    """Values are kept as they are. Nothing of this class is called for them."""

    writes = PLAIN_NAME
    reads = (PLAIN_NAME,)

    def __repr__(self) -> str:
        return "Plain()"

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:  # noqa: ARG002 - the protocol's
        """The same bytes."""
        return plain

    def open(self, name: str, sealed: bytes, bound_to: bytes) -> bytes:  # noqa: ARG002
        """The same bytes; raises for the name of any other codec."""
        if name != PLAIN_NAME:
            raise KeyError(name)
        return sealed


PLAIN: Codec = Plain()


class Sealed(Denied):
    """A value that this process cannot open: its key is missing here, or the value was changed or
    put into another row. ``str()`` names the column and the codec's name, never a value."""

    def __init__(self, column: str, name: str, *, known: bool) -> None:
        self.column = column
        self.name = name
        why = (
            "it was changed, or belongs to another row"
            if known
            else "no key of this process opens it: see OUTBOX_CODEC_KEYS"
        )
        super().__init__("sealed", f"{column} is sealed by {name}: {why}")


def readable(codec: Codec) -> list[str]:
    """The names of all values that a process with this codec can open."""
    return sorted({PLAIN_NAME, *codec.reads})


def seal_bytes(codec: Codec, plain: bytes, column: str, owner: str) -> tuple[bytes, str]:
    """What is kept of a value, and the name beside it. ``owner`` is the row, by what never
    changes of it."""
    name = codec.writes
    if name == PLAIN_NAME:
        return plain, name
    return codec.seal(plain, _bound(column, owner)), name


def open_bytes(codec: Codec, name: str, kept: bytes, column: str, owner: str) -> bytes:
    """The value again. Raises ``Sealed``."""
    if name == PLAIN_NAME:
        return kept
    if name not in codec.reads:
        raise Sealed(column, name, known=False)
    try:
        return codec.open(name, kept, _bound(column, owner))
    except Exception:
        # Without its cause: a codec's error may quote what it was given.
        raise Sealed(column, name, known=True) from None


def seal_text(codec: Codec, plain: str, column: str, owner: str) -> tuple[str, str]:
    """``seal_bytes`` for a column of text, where a sealed value is kept in base64."""
    if codec.writes == PLAIN_NAME:
        return plain, PLAIN_NAME
    kept, name = seal_bytes(codec, plain.encode(), column, owner)
    return b64encode(kept).decode(), name


def open_text(codec: Codec, name: str, kept: str, column: str, owner: str) -> str:
    """The text again. Raises ``Sealed``."""
    if name == PLAIN_NAME:
        return kept
    try:
        sealed = b64decode(kept, validate=True)
        return open_bytes(codec, name, sealed, column, owner).decode()
    except ValueError:
        raise Sealed(column, name, known=True) from None


def _bound(column: str, owner: str) -> bytes:
    return json.dumps(["outbox", column, owner]).encode()


def codec_of(factory: str, keys: str) -> Codec:
    """The codec of the settings ``OUTBOX_CODEC`` and ``OUTBOX_CODEC_KEYS``; plain where both are
    empty. Raises ``Invalid`` naming the setting, and showing nothing of its value."""
    if factory and keys:
        raise Invalid("OUTBOX_CODEC_KEYS", "is for the built-in codec; OUTBOX_CODEC names another")
    if factory:
        return _checked(_made(factory))
    if keys:
        from outbox.codec_aesgcm import AesGcm, ring_of

        return AesGcm(ring_of(keys))
    return PLAIN


def _made(factory: str) -> object:
    if not _FACTORY.match(factory):
        raise Invalid("OUTBOX_CODEC", "must be module:factory")
    module, _, name = factory.partition(":")
    try:
        make = cast(Callable[[], object], getattr(import_module(module), name))
        return make()
    except Exception as error:
        problem = f"cannot be imported and called: {type(error).__name__}"
        raise Invalid("OUTBOX_CODEC", problem) from None


def _checked(made: Any) -> Codec:
    for name in ("seal", "open"):
        if not callable(getattr(made, name, None)):
            raise Invalid("OUTBOX_CODEC", f"makes a {type(made).__name__}, which has no {name}()")
    reads, writes = getattr(made, "reads", None), getattr(made, "writes", None)
    if not isinstance(reads, tuple) or not all(isinstance(n, str) for n in reads):
        raise Invalid("OUTBOX_CODEC", "its codec's `reads` must be a tuple of names")
    if not isinstance(writes, str) or not _NAME.match(writes) or writes not in reads:
        raise Invalid(
            "OUTBOX_CODEC",
            "its codec's `writes` must be one of `reads`: 1 to 100 letters, digits and ._:/-",
        )
    return cast(Codec, made)

"""AES-256-GCM under a ring of keys: the newest seals, every one opens."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from outbox.errors import Invalid

_FIELD = "OUTBOX_CODEC_KEYS"
_NONCE_BYTES = 12
_KEY_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")


class AesGcm:
    """Each value under a nonce of its own: 12 random bytes, then ciphertext and tag. A key is good
    for some 2^32 values. ``ring`` is from id to key of 32 bytes, the newest first.

    Raises ``Invalid`` where the library ``cryptography`` is not installed.
    """

    def __init__(self, ring: Mapping[str, bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise Invalid(
                _FIELD, "needs a library: pip install 'outbox-resolve[encryption]'"
            ) from None
        self._keys = {f"aesgcm:{id_}": AESGCM(key) for id_, key in ring.items()}
        self.reads = tuple(self._keys)
        self.writes = self.reads[0]

    def __repr__(self) -> str:
        return f"AesGcm(writes={self.writes!r}, reads={self.reads!r})"

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        """Nonce, ciphertext and tag, by the newest key."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._keys[self.writes].encrypt(nonce, plain, bound_to)

    def open(self, name: str, sealed: bytes, bound_to: bytes) -> bytes:
        """The value; raises for another key, another row or column, and for a changed byte."""
        return self._keys[name].decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)


def ring_of(setting: str) -> dict[str, bytes]:
    """Keys by id, newest first, from ``id:base64key,id2:...`` or from a file that holds the same,
    also one to a line, with comments after ``#``.

    Raises ``Invalid`` naming the entry by its number, never by its text: it may be a key.
    """
    listed = _read(setting) if _is_path(setting) else setting
    lines = (line.partition("#")[0] for line in listed.splitlines())
    entries = [part.strip() for line in lines for part in line.split(",") if part.strip()]
    ring: dict[str, bytes] = {}
    for number, entry in enumerate(entries, 1):
        id_, colon, text = entry.partition(":")
        if not colon or not _ID.match(id_):
            raise Invalid(
                _FIELD,
                f"entry {number} is not id:base64key; an id is 1 to 32 letters, digits, - and _",
            )
        key = _key(text)
        if key is None or len(key) != _KEY_BYTES:
            raise Invalid(_FIELD, f"entry {number}: the key must be {_KEY_BYTES} bytes in base64")
        if id_ in ring:
            raise Invalid(_FIELD, f"entry {number} has the id of an earlier one")
        ring[id_] = key
    if not ring:
        raise Invalid(_FIELD, "holds no key")
    return ring


def _is_path(setting: str) -> bool:
    return ":" not in setting or setting[0] in "/.~"


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="ascii")
    except (OSError, ValueError, RuntimeError):
        raise Invalid(_FIELD, "is no list of id:base64key, and no file that can be read") from None


def _key(text: str) -> bytes | None:
    try:
        return b64decode(text.strip().translate(str.maketrans("-_", "+/")), validate=True)
    except ValueError:
        return None

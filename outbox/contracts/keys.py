"""How a key is written for a vendor, and whose it is when a vendor shows it again; pure.

One digest of 32 bytes, rendered as the vendor takes it: ``hex64`` (64 characters), ``b64url43``
(43, for limits such as 45) or ``uuid`` (a UUID of version 4 out of the first 16 bytes).
"""

from __future__ import annotations

import base64
import re
from uuid import UUID

from outbox.fingerprint import intent_id

RENDERED_CHARS = {"hex64": 64, "b64url43": 43, "uuid": 36}

_HEX64 = re.compile(r"[0-9a-f]{64}")
_UUID = re.compile(r"[0-9a-f]{32}")
_B64URL43 = re.compile(r"[A-Za-z0-9_-]{43}")


def rendered(key: bytes, rendering: str) -> str:
    """The key as text that a vendor takes."""
    assert len(key) == 32, "a key is 32 bytes"
    if rendering == "hex64":
        return key.hex()
    if rendering == "b64url43":
        return base64.urlsafe_b64encode(key).decode().rstrip("=")
    assert rendering == "uuid", "a rendering that nobody knows"
    return str(UUID(bytes=key[:16], version=4))


def key_in(text: str) -> str:
    """The key in hex that a text renders; empty where it renders none, or not all of it (uuid)."""
    text = text.strip()
    if _B64URL43.fullmatch(text):
        key = base64.urlsafe_b64decode(text + "=")
        if rendered(key, "b64url43") == text:
            return key.hex()
    digits = _digits(text)
    return digits if _HEX64.fullmatch(digits) else ""


def _digits(text: str) -> str:
    """The hex digits of a text that may be in capitals, in braces, or with or without dashes:
    vendors keep a mark in a spelling of their own."""
    text = text.strip().lower().removeprefix("urn:uuid:")
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    return text.replace("-", "")


def owner_in(text: str) -> str:
    """The id of the intent that a mark names: by the id itself, or by its key in any rendering,
    however the vendor spells its digits; empty for what is no mark of an outbox."""
    key = key_in(text)
    if key:
        return str(intent_id(bytes.fromhex(key)))
    digits = _digits(text)
    if not _UUID.fullmatch(digits):
        return ""
    named = UUID(digits)
    if named.version not in (4, 8):
        return ""
    # The id and the uuid rendering are the same bytes of the key under another version.
    raw = bytearray(named.bytes)
    raw[6] = (raw[6] & 0x0F) | 0x80
    return str(UUID(bytes=bytes(raw)))

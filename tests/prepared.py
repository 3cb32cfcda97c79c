"""What a session has prepared, as a proxy hears it: a statement comes with its text once, and after
that by its name."""

from __future__ import annotations

import re

_PARSE = re.compile(rb"P....(_pg3_\d+)\x00([^\x00]+)\x00", re.DOTALL)
_NAME = re.compile(rb"\x00(_pg3_\d+)\x00")


class Prepared:
    """Of one connection."""

    def __init__(self) -> None:
        self._texts: dict[bytes, bytes] = {}

    def heard(self, data: bytes) -> bytes:
        """The data, with the text of every statement that it names."""
        for name, text in _PARSE.findall(data):
            self._texts[name] = text
        named = (self._texts.get(name, b"") for name in _NAME.findall(data))
        return data + b"".join(named)

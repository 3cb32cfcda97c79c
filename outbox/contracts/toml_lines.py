"""Where in a TOML text a value is written: the parser of the standard library does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]


class Lines:
    """Line numbers, from 1, of every table and value of a text that parses.

    The text is parsed again and again, a line longer each time: what a longer text holds more was
    written by the statement that it ends with. Slow, exact, and asked for only to tell of faults.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {(): 1}
        lines = [line + "\n" for line in text.split("\n")]
        begins = 1
        for number in range(1, len(lines) + 1):
            try:
                document = tomllib.loads("".join(lines[:number]))
            except tomllib.TOMLDecodeError:
                continue  # inside a value of several lines: it began at ``begins``
            for place in _places(document, ()):
                self._lines.setdefault(place, begins)
            begins = number + 1

    def of(self, place: Place) -> int:
        """The line of the value at this place, or of the nearest table around it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]


def _places(value: Any, at: Place) -> Iterator[Place]:
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _places(item, (*at, name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _places(item, (*at, position))

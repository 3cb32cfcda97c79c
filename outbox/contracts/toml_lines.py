"""Where in a TOML text a value is written: the parser of the standard library does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

# What a line may end inside of (a string of several lines, brackets), and what may hold a bracket
# or a quote that means nothing (any string, a comment).
_TOKENS = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'"
    r"|\#[^\n]*|[\[{]|[\]}]|\n|[^\"'\#\[\]{}\n]+",
    re.DOTALL,
)  # fmt: skip
_DEEPER = {"[": 1, "{": 1, "]": -1, "}": -1}


class Lines:
    """Line numbers, from 1, of every table and value of a text that parses.

    The text is taken apart into its statements, and each is parsed by itself in the table that it
    stands in: what it holds begins on its first line.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {(): 1}
        self._lengths: dict[Place, int] = {}
        table: Place = ()
        for line, statement in _statements(text):
            try:
                said = tomllib.loads(statement)
            except tomllib.TOMLDecodeError:
                continue  # a text that does not parse after all: the table around it is told
            if statement.lstrip(" \t").startswith("["):
                table = self._header(said, line)
            else:
                for place in _places(said, ()):
                    self._lines.setdefault((*table, *place), line)

    def of(self, place: Place) -> int:
        """The line of the value at this place, or of the nearest table around it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def _header(self, said: Any, line: int) -> Place:
        """The table that a header begins: of an array of tables a new one, and its last one where
        the header leads through it."""
        place: Place = ()
        while said:
            ((name, said),) = said.items()
            place = (*place, name)
            self._lines.setdefault(place, line)
            if isinstance(said, list):
                said, self._lengths[place] = None, self._lengths.get(place, 0) + 1
            if place in self._lengths:
                place = (*place, self._lengths[place] - 1)
                self._lines.setdefault(place, line)
        return place


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement of a text with its first line, from 1; no comments, no empty lines."""
    line, begins, depth, parts = 1, 1, 0, list[str]()
    for token in (found.group() for found in _TOKENS.finditer(text + "\n")):
        parts.append(token)
        line += token.count("\n")
        depth += _DEEPER.get(token, 0)
        if token == "\n" and depth <= 0:  # noqa: S105 - a line's end
            statement = "".join(parts)
            if statement.strip() and not statement.lstrip().startswith("#"):
                yield begins, statement
            begins, depth, parts = line, 0, []


def _places(value: Any, at: Place) -> Iterator[Place]:
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _places(item, (*at, name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _places(item, (*at, position))

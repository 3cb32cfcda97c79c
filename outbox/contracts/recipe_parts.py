"""How the parts of a recipe are picked out of its document, for checks and for building."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outbox.contracts.toml_lines import Place

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def path_of(text: str) -> tuple[str, ...]:
    """A dotted path as its steps; empty for the whole document."""
    return tuple(text.split(".")) if text else ()


def statuses_of(answer: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The statuses of a rule as spans, first and last."""
    given = answer["status"]
    listed = given if isinstance(given, list) else [given]
    return tuple(
        (int(one[0]) * 100, int(one[0]) * 100 + 99) if isinstance(one, str) else (one, one)
        for one in listed
    )


def covers(answer: Mapping[str, Any], span: tuple[int, int]) -> bool:
    """Whether one of the rule's spans holds all of this one."""
    return any(low <= span[0] and span[1] <= high for low, high in statuses_of(answer))


def parts_of(document: Mapping[str, Any], part: str) -> Iterator[tuple[str, Place, Any]]:
    """For each operation its name, and its own ``part`` or else the vendor's, with its place;
    (name, place of the operation, None) where there is neither."""
    for name, operation in document["operations"].items():
        if part in operation:
            yield name, ("operations", name, part), operation[part]
        elif part in document:
            yield name, (part,), document[part]
        else:
            yield name, ("operations", name), None

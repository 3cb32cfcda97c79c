"""Where a list goes on, out of a Link header as RFC 8288 writes it; pure.

What cannot be read to its end says nothing: taken for the end of a list it would prove an absence.
"""

from __future__ import annotations

import re

_TARGET = re.compile(r"[\s,]*+<([^>]*)>")
_PARAMETER = re.compile(
    r"""\s*+;\s*+(?:([!#$%&'*+.^`|~\w-]++)(?:\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s";,]++)))?)?"""
)
_END = re.compile(r"\s*+(?:,|$)")


def next_link(header: str) -> str | None:
    """The target of the link whose relations hold ``next``; None where there is none. Raises
    ``ValueError`` for a header that cannot be read in full, and for one with two of them."""
    found: dict[str, None] = {}
    place = 0
    while header[place:].strip(" \t,"):
        target = _TARGET.match(header, place)
        if target is None:
            raise ValueError("no link where one must begin")
        relations, place = _relations(header, target.end())
        if "next" in relations:
            found[target[1].strip()] = None
    if len(found) > 1:
        raise ValueError("two ways to go on")
    return next(iter(found), None)


def _relations(header: str, place: int) -> tuple[list[str], int]:
    """The relations of one link, and where the next link begins."""
    relations: list[str] | None = None
    while (part := _PARAMETER.match(header, place)) is not None:
        place = part.end()
        if (part[1] or "").lower() != "rel" or relations is not None:
            continue  # the first of them counts
        value = part[3] if part[2] is None else part[2].replace("\\", "")
        if value is None:
            raise ValueError("a relation without a word")
        relations = value.lower().split()
    end = _END.match(header, place)
    if end is None:
        raise ValueError("a link that does not end")
    return relations or [], end.end()

"""Vendors that a file describes: the setting ``OUTBOX_VENDORS`` names such files (recipes).

A recipe is read whole, and every fault in it is told with the line it is on; a vendor whose file
has one is not known at all.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outbox.contract import VendorContract
from outbox.contracts.recipe_building import contract_from
from outbox.contracts.recipe_checks import contradictions
from outbox.contracts.recipe_faults import schema_faults
from outbox.contracts.toml_lines import Lines

MAX_CHARS = 64 * 1024
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class RecipeFaults(ValueError):
    """A recipe that cannot be followed; ``faults`` are all of them as (line from 1, problem)."""

    def __init__(self, faults: list[tuple[int, str]]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"line {line}: {problem}" for line, problem in faults))


def read_recipe(text: str) -> VendorContract:
    """The contract that a recipe's text describes. Raises ``RecipeFaults`` with every fault."""
    if len(text) > MAX_CHARS:
        raise RecipeFaults([(1, f"a recipe has at most {MAX_CHARS} characters")])
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser's message holds a position and no more than a character or a key of the file.
        raise RecipeFaults([(_line_in(str(error), text), f"is not TOML: {error}")]) from None
    faults = list(schema_faults(document))
    # A missing part is of the whole document: what leans on it can be judged no more.
    broken = {str(place[0]) for place, _ in faults if place}
    broken |= {problem.split(" ")[0] for place, problem in faults if not place}
    faults += contradictions(document, frozenset(broken))
    if faults:
        lines = Lines(text)
        told = sorted({(lines.of(place), problem) for place, problem in faults})
        raise RecipeFaults(told)
    return contract_from(document)


def read_recipes(said: str) -> tuple[list[VendorContract], list[str]]:
    """The contracts of all files that ``said`` names (files and folders of ``*.toml``, separated by
    commas), and every problem as text with its file and line."""
    contracts: list[VendorContract] = []
    problems: list[str] = []
    of: dict[str, Path] = {}
    for path in _files(said, problems):
        try:
            contract = read_recipe(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            problems.append(f"cannot read {path}")
        except RecipeFaults as found:
            problems += [f"{path}:{line}: {problem}" for line, problem in found.faults]
        else:
            if contract.vendor in of:
                problems.append(f"{path}: {contract.vendor} is described by {of[contract.vendor]}")
            of[contract.vendor] = path
            contracts.append(contract)
    return contracts, problems


def _files(said: str, problems: list[str]) -> Iterator[Path]:
    for name in [part.strip() for part in said.split(",") if part.strip()]:
        path = Path(name)
        # Of a name that cannot even be looked up (too long, in a locked folder) it says no.
        if not os.path.isdir(path):
            yield path
            continue
        found = sorted(path.glob("*.toml"))
        if not found:
            problems.append(f"{path} holds no .toml file")
        yield from found


def _line_in(message: str, text: str) -> int:
    told = _AT_LINE.search(message)
    return int(told.group(1)) if told else text.count("\n") + 1

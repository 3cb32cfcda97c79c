"""One fault that is put in, and what finds it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.mutate import Edit


@dataclass(frozen=True, slots=True)
class Mutant:
    """``timelines`` are the ones that are known to find it, of ``scenarios`` more are searched
    where those no longer do; ``test`` is a test's node id, for what no timeline can show."""

    name: str
    edits: tuple[Edit, ...]
    scenarios: tuple[str, ...] = ("keys", "no_keys", "absent")
    timelines: tuple[str, ...] = ()
    test: str = ""


def one(name: str, module: str, old: str, new: str, **more: object) -> Mutant:
    return Mutant(name, (Edit(module, old, new),), **more)  # type: ignore[arg-type]

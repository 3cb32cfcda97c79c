"""A fault put into one of our own modules as it is imported: text for text, in memory only."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Edit:
    """``old`` stands exactly once in ``module``, and becomes ``new``."""

    module: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """The module's file."""
        return ROOT / (self.module.replace(".", "/") + ".py")

    def problem(self) -> str:
        """Why it cannot be made; empty where it can."""
        found = self.path.read_text().count(self.old)
        return "" if found == 1 else f"{self.module}: {found} places instead of one: {self.old!r}"


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str):  # type: ignore[no-untyped-def]
        """Compiled each time: what lies beside it is of the sound module."""
        path = self.get_filename(fullname)
        source = decode_source(self.get_data(path))
        for edit in self._edits:
            source = source.replace(edit.old, edit.new)
        return compile(source, path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, edits: Mapping[str, Sequence[Edit]]) -> None:
        self._edits = edits

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Ours, for the modules that have a fault."""
        edits = self._edits.get(fullname)
        if edits is None:
            return None
        loader = _Loader(fullname, str(edits[0].path), edits)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(edits[0].path))


def install(edits: Sequence[Edit]) -> None:
    """From here on the modules are imported with their faults. None may be imported yet."""
    by_module: dict[str, list[Edit]] = {}
    for edit in edits:
        assert edit.module not in sys.modules, f"{edit.module} is imported already"
        by_module.setdefault(edit.module, []).append(edit)
    sys.meta_path.insert(0, _Finder(by_module))

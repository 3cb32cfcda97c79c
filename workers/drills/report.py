"""What a drill reports: rows, each with its own ``ok``, as a table, tab-separated or as JSON.

A drill is a module with

    COLUMNS: tuple[Column, ...]     # what each row has; `workers.cli_output` shows it
    LEGEND: tuple[str, ...]         # lines beneath the table: what its words mean
    def run(progress: Progress) -> Iterable[Row]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workers.cli_errors import CheckFound
from workers.cli_output import Column, named, say, show_json, show_rows
from workers.cli_run import Run

Value = str | int | float | bool | None
_OK = Column("ok")


@dataclass(frozen=True, slots=True)
class Row:
    """One line. ``values`` are by column, in the table's order. ``ok`` is false only where the row
    is wrong: another strategy that doubles where it is known to does what the drill expects."""

    values: Mapping[str, Value]
    ok: bool


class Progress:
    """Says on stderr how far a drill is, with the seconds since it began."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(f"{self.elapsed_s:5.1f} s  {text}", file=sys.stderr, flush=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the drill began."""
        return time.monotonic() - self._began


def report(
    run: Run,
    columns: Sequence[Column],
    legend: Sequence[str],
    drill: Callable[[Progress], Iterable[Row]],
) -> None:
    """Runs the drill and shows its rows. Raises ``CheckFound`` where one is wrong.

    JSON: ``{"schema": 1, "ok": bool, "rows": [{..., "ok": bool}]}``, a row's names as in COLUMNS.
    """
    show(run, columns, legend, list(drill(Progress())))


def show(run: Run, columns: Sequence[Column], legend: Sequence[str], rows: Sequence[Row]) -> None:
    """Shows finished rows. Raises ``CheckFound`` where one is wrong, or where there is none."""
    shown = [*columns, _OK]
    lines = [{**row.values, "ok": row.ok} for row in rows]
    right = sum(row.ok for row in rows)
    if run.json:
        ok = bool(rows) and right == len(rows)
        show_json({"ok": ok, "rows": [named(shown, line) for line in lines]})
    else:
        show_rows(run, shown, lines)
        for line in legend:
            say(line)
        say(f"{right} of {len(rows)} rows are as they must be")
    if right < len(rows) or not rows:
        raise CheckFound

"""Data on stdout: a table on a terminal, tab-separated with a header when piped, or JSON.

Ids of ours are never cut: what does not fit folds or is left out, and JSON and pipes have
everything.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any
from uuid import UUID

import click

from workers.cli_run import Run

_GAP = 2
_FOLD_MIN = 16
# Wider than any id of ours, and than one behind a word: "verdict:" and a UUID.
_WIDEST = 44
_EVENT_ID_MOST, _EVENT_ID_SHORT = 40, 12


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a list. ``rank`` 0 stays whatever the width; higher ranks are left out first.
    Only one that ``folds`` may be squeezed, to a few words a line; ``kind`` says how a value is
    written for people: ``span`` and ``left`` are seconds, ``money`` has its currency beside it, a
    long ``event`` id is shown by its beginning."""

    name: str
    rank: int = 0
    folds: bool = False
    kind: str = "text"
    head: str = ""
    right: bool = False


def show_rows(
    run: Run, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], next_: Any = None
) -> None:
    """A list. JSON: ``{"schema": 1, "items": [...], "next": ...}``."""
    if run.json:
        items = [named(columns, row) for row in rows]
        show_json({"items": items, "next": plain(next_)})
        return
    if not sys.stdout.isatty():
        click.echo("\t".join(c.name for c in columns))
        for row in rows:
            click.echo("\t".join(_cell(row.get(c.name)) for c in columns))
    else:
        _table(columns, rows)
    if next_ is not None:
        click.echo(f"more: --after {next_}", err=True)


def named(columns: Sequence[Column], row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a list as JSON has it."""
    return {c.name: plain(row.get(c.name)) for c in columns}


def show_item(run: Run, fields: Mapping[str, Any], kinds: Mapping[str, str] = {}) -> None:
    """One thing. JSON: the object itself with ``"schema": 1``."""
    if run.json:
        show_json({name: plain(value) for name, value in fields.items()})
        return
    shown = {n: v for n, v in fields.items() if not _is_nested(v)}
    if not sys.stdout.isatty():
        click.echo("field\tvalue")
        for name, value in shown.items():
            click.echo(f"{name}\t{_cell(value)}")
        return
    # Never folded: a key or a hash must be copied in one piece.
    width = max(len(_head(name)) for name in shown)
    for name, value in shown.items():
        click.echo(f"{_head(name):<{width}}  {written(value, kinds.get(name, 'text'))}")


def _is_nested(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(part, Mapping) for part in value)
    return isinstance(value, Mapping)


def _head(name: str) -> str:
    return name.replace("_", " ").removesuffix(" s")


def show_json(body: Mapping[str, Any]) -> None:
    """One JSON object on one line."""
    click.echo(json_line(body))


def json_line(body: Mapping[str, Any]) -> str:
    """One JSON object as text that drives no terminal and is UTF-8 whatever it holds."""
    made = json.dumps({"schema": 1, **body}, ensure_ascii=False, separators=(", ", ": "))
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in made)


def say(text: str) -> None:
    """One line of talk, on stderr."""
    click.echo(printable(text), err=True)


def plain(value: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, ids as text, seconds to the millisecond."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def written(value: Any, kind: str = "text") -> str:
    """A value for a person."""
    if value is None or value == "":
        return "-"
    if kind in ("span", "left"):
        return span(float(value)) if kind == "span" or value > 0 else "none"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(", ".join(str(v) for v in value)) or "-"
    return printable(str(value))


def span(seconds: float) -> str:
    """A duration for a person: its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    named = [
        f"{value} {unit}"
        for value, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
        if value
    ]
    return " ".join(named[:2]) or "0 s"


def money(amount_minor: int | None, currency: str | None) -> str | None:
    """An amount in the currency's smallest unit, as the vendor takes it."""
    return None if amount_minor is None else f"{amount_minor} {currency or ''}".strip()


def _cell(value: Any) -> str:
    made = plain(value)
    if made is None:
        return ""
    if isinstance(made, bool):
        return "yes" if made else "no"
    if isinstance(made, list):
        return printable(",".join(str(v) for v in made))
    if isinstance(made, dict):
        return printable(json.dumps(made, ensure_ascii=False))
    return printable(str(made))


def printable(text: str) -> str:
    """The text on one line: what a vendor or a caller named must not drive the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def _table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(shutil.get_terminal_size().columns, 40)
    columns = [c for c in columns if c.name != "currency"]  # it stands beside its amount
    cells = [[_brief(row, c) for c in columns] for row in rows]
    natural = {
        c.name: max([len(_header(c)), *(len(line[n]) for line in cells)])
        for n, c in enumerate(columns)
    }
    # One long name must not push the others out of the picture.
    columns = [replace(c, folds=c.folds or natural[c.name] > _WIDEST) for c in columns]
    kept = _fitting(columns, natural, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in kept:
        table.add_column(
            _header(column),
            no_wrap=not column.folds,
            min_width=natural[column.name] if not column.folds else None,
            overflow="fold",
            justify="right" if column.right else "left",
            header_style="bold",
        )
    for line in cells:
        by_name = dict(zip((c.name for c in columns), line, strict=True))
        table.add_row(*(Text(by_name[c.name], style=_style(by_name, c.name)) for c in kept))
    Console(width=width, height=25, highlight=False).print(table)
    missing = [c.name for c in columns if c not in kept]
    if missing:
        say(f"(too narrow for {', '.join(missing)}; --json and pipes have them)")


def _header(column: Column) -> str:
    return column.head or _head(column.name)


def _brief(row: Mapping[str, Any], column: Column) -> str:
    """A value in a list: a duration in one unit, an amount with its currency."""
    value = row.get(column.name)
    if column.kind == "money" and value is not None:
        return printable(f"{value} {row.get('currency') or ''}".strip())
    if column.kind == "event" and len(str(value)) > _EVENT_ID_MOST:
        return f"{written(value)[:_EVENT_ID_SHORT]}…"
    if column.kind not in ("span", "left") or value is None:
        return written(value)
    if column.kind == "left" and value <= 0:
        return "none"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if value < limit:
            return f"{int(value // size)} {unit}"
    return f"{int(value // 86400)} d"


def _fitting(columns: Sequence[Column], natural: Mapping[str, int], width: int) -> list[Column]:
    """The columns that fit side by side; rank 0 stays and folds if it must."""
    kept = list(columns)
    while True:
        needs = sum(_needs(c, natural[c.name]) + _GAP for c in kept) - _GAP
        last = max(c.rank for c in kept)
        if needs <= width or last == 0:
            return kept
        kept = [c for c in kept if c.rank != last]  # an amount goes with its currency


def _needs(column: Column, natural: int) -> int:
    return min(natural, _FOLD_MIN) if column.folds else natural


_RED = frozenset({"failed_poison", "failed", "mismatch", "stale"})
_YELLOW = frozenset({"unknown", "retryable", "in_flight", "parked", "awaiting_approval", "open"})
_GREEN = frozenset({"succeeded", "joined", "ok"})


def _style(row: Mapping[str, str], name: str) -> str:
    if name not in ("status", "state"):
        return ""
    word = row[name]
    return (
        "red"
        if word in _RED
        else "yellow"
        if word in _YELLOW
        else "green"
        if word in _GREEN
        else ""
    )

"""What a run tells: one JSON object, a table, and a picture."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.bench.peers import PYTHON
from tests.bench.rows import Result

# What is smaller is in the JSON alone.
_LEAST_BYTES = 0.5


def as_json(
    results: Sequence[Result],
    machine: dict[str, Any],
    told: Mapping[str, Any] | None = None,
    *,
    whole: bool = True,
) -> dict[str, Any]:
    """``ok`` and ``rows``; of each row the median ``ratio`` (None: nothing counts) with ``low`` and
    ``high``, the medians of both sides in ``unit``, and ``why`` it is not ok. ``told`` is what
    measurements say beside their rows: ``growth``, where that was measured. Not ``whole``: rows
    that were asked for are not there yet, and that is not ok either."""
    return {
        "ok": whole and bool(results) and all(result.ok for result in results),
        "whole": whole,
        "machine": machine,
        **(told or {}),
        "rows": [_row(result) for result in results],
    }


def _row(result: Result) -> dict[str, Any]:
    row = result.row
    low, high = result.spread or (None, None)
    return {
        "name": row.name,
        "title": row.title,
        "against": row.against,
        "ratio": result.ratio,
        "low": low,
        "high": high,
        "goal": row.goal,
        "sense": row.sense,
        "unit": row.unit,
        "ours": median(pair.ours for pair in result.pairs) if result.pairs else None,
        "reference": median(pair.reference for pair in result.pairs) if result.pairs else None,
        "repetitions": len(result.pairs),
        "void": result.void,
        "ok": result.ok,
        "why": result.why_not,
    }


def kept(told: dict[str, Any], folder: Path) -> Path:
    """`latest.json`. Written after each group: an hour's work is not lost with the next one."""
    folder.mkdir(exist_ok=True)
    path = folder / "latest.json"
    path.write_text(json.dumps(told, indent=1) + "\n")
    return path


def written(told: dict[str, Any], folder: Path) -> tuple[Path, Path | None]:
    """`latest.json`, and `latest.png` where the peers' environment has what draws it."""
    path, picture = kept(told, folder), folder / "latest.png"
    picture.unlink(missing_ok=True)
    if PYTHON.exists():
        plot = Path(__file__).with_name("plot.py")
        subprocess.run([str(PYTHON), str(plot), str(path), str(picture)], check=False)
    return path, picture if picture.exists() else None


def show(told: dict[str, Any], console: Console) -> None:
    """The table, for a person."""
    table = Table("row", "against", "ratio", "spread", "goal", "ours", "reference", "ok")
    for row in told["rows"]:
        sense = "at least" if row["sense"] == "at least" else "at most"
        spread = f"{_said(row['low'])} to {_said(row['high'])}" if row["repetitions"] else "-"
        table.add_row(
            Text(f"{row['name']}: {row['title']}"), Text(row["against"]), _said(row["ratio"]),
            spread, f"{sense} {row['goal']:g}", f"{_said(row['ours'])} {row['unit']}",
            _said(row["reference"]), "yes" if row["ok"] else Text("NO: " + row["why"]),
        )  # fmt: skip
    console.print(table)
    if "growth" in told:
        _show_bytes(told["growth"], console)


def _show_bytes(growth: Mapping[str, Any], console: Console) -> None:
    table = Table(f"of {growth['intents']:,} intents", "bytes for each")
    for name, count in growth["bytes_per_intent"].items():
        if count >= _LEAST_BYTES:
            table.add_row(name, f"{count:g}")
    console.print(table)


def _said(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

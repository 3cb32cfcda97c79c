"""Draws a run: `plot.py latest.json latest.png`, with the peers' environment, which has the
library; each bar is a ratio as a share of its goal, to the right of 1 is met."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def main(source: Path, target: Path) -> None:
    """Writes the picture; where no repetition counts, the row has no bar."""
    rows = [row for row in json.loads(source.read_text())["rows"] if row["ratio"]][::-1]
    figure, axes = plt.subplots(figsize=(10, 1 + 0.4 * max(len(rows), 1)))
    for place, row in enumerate(rows):
        shares = sorted(_share(row, row[name]) for name in ("ratio", "low", "high"))
        share = _share(row, row["ratio"])
        around = [[share - shares[0]], [shares[2] - share]]
        color = "tab:green" if row["ok"] else "tab:red"
        axes.barh(place, share, xerr=around, color=color, ecolor="black", capsize=3)
        axes.text(0.012, place, f"{row['ratio']:.3g} ({row['sense']} {row['goal']:g})",
                  transform=axes.get_yaxis_transform(), va="center", fontsize=8)  # fmt: skip
    axes.axvline(1.0, color="black", linestyle="--")
    axes.set_yticks(range(len(rows)), [f"{r['name']}\n{r['against']}" for r in rows], fontsize=8)
    axes.set_xlabel("median ratio as a share of its goal, with the spread of the repetitions")
    axes.set_xlim(left=0)
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def _share(row: dict[str, Any], ratio: float) -> float:
    share: float = ratio / row["goal"] if row["sense"] == "at least" else row["goal"] / ratio
    return share


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

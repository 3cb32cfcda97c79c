"""What ``outbox demo`` prints: what each strategy did under each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from workers.demo_faults import Fault
from workers.demo_others import STRATEGIES


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``told`` is what the agent heard last, ``effects`` what the vendor's
    own ledger counts, ``pages`` how often a person was paged."""

    strategy: str
    fault: str
    requests: int
    effects: int
    told: str
    status: str
    settled_by: str
    pages: int
    ok: bool


def show(rows: list[Row], shown: tuple[Fault, ...], *, as_json: bool) -> None:
    """Prints all of it: one JSON object, or the table."""
    ours = [r for r in rows if r.strategy == "outbox"]
    if as_json:
        body = {"schema": 1, "ok": all(r.ok for r in ours), "rows": [asdict(r) for r in rows]}
        print(json.dumps(body))
        return
    for line in _lines(rows, shown):
        print(line)


def _lines(rows: list[Row], shown: tuple[Fault, ...]) -> Iterator[str]:
    """The table; 80 columns. Of the others only what the vendor's ledger and the agent say."""
    by_key = {(r.strategy, r.fault): r for r in rows}
    head = f"{'fault':25} {'sent':>4} {'done':>4} {'told':8} {'settled by':10} {'pages':>5}"
    others = "  ".join(["naive", "verify", "new key"])
    yield f"{head}   {others}"
    for fault in shown:
        ours = by_key["outbox", fault.name]
        line = (
            f"{fault.title:25} {ours.requests:4} {ours.effects:4} {ours.told:8} "
            f"{ours.settled_by or '-':10} {ours.pages:5}"
        )
        rest = "  ".join(
            f"{_short(by_key[s, fault.name]):{w}}"
            for s, w in zip(STRATEGIES, (5, 6, 7), strict=True)
        )
        yield f"{line}   {rest}{'' if ours.ok else '   BROKEN'}".rstrip()
    yield ""
    yield "sent: requests on the wire; done: effects in the vendor's own ledger; told: the agent."
    yield "naive, verify, new key: the others' effects; ! where what the agent was told is false."
    broken = [r.fault for r in rows if r.strategy == "outbox" and not r.ok]
    doubled = sum(1 for r in rows if r.strategy != "outbox" and r.effects > 1)
    false = sum(1 for r in rows if r.strategy != "outbox" and not r.ok)
    yield (
        f"ours: {len(shown) - len(broken)} of {len(shown)} rows keep the promise; the others "
        f"doubled {doubled} charges and said {false} false words."
    )


def _short(row: Row) -> str:
    return f"{row.effects}{'' if row.ok else ' !'}"

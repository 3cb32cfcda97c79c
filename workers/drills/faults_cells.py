"""The cells of ``outbox drill faults``: which fault strikes which path under which contract, and
the intents that one cell is for us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outbox import WriteTool
from vendors.sandbox.limbo_faults import DRIFTED, MODES
from vendors.sandbox.limbo_paths import BY_NAME, CONTRACTS, PATHS, SAFE, WritePath

LATE_S = 90.0
# The heavy tail: log-uniform from the one to the other, its quantiles over the paths.
TAIL_FROM_S, TAIL_TO_S = 40.0, 7200.0
ROWS = ("one", "two", "three", "four")
_BATCH, _ROW = "data.insert_many", "data.insert"
_VALUES: Mapping[str, Any] = {
    "billing.charge": {"amount": 4900, "currency": "usd", "customer": "ann"},
    _BATCH: {"rows": list(ROWS)},
    _ROW: {"values": "one"},
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One intent of a cell: its arguments, and the plan by which the vendor treats it. ``target``
    is the object that it changes, if it changes one."""

    args: Mapping[str, Any]
    plan: Mapping[str, Any]
    target: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault on one path under one contract."""

    fault: str
    path: WritePath
    contract: str
    late_s: float = 0.0

    @property
    def keyed(self) -> bool:
        """Whether the vendor honours a key here."""
        return self.path.takes_key(self.contract)

    @property
    def readable(self) -> bool:
        """Whether anything reads the write back."""
        return self.path.read_lag_s is not None

    @property
    def split(self) -> bool:
        """Whether the batch is one intent a row: where no key resumes it."""
        return self.path.rows and not self.keyed

    @property
    def vendor(self) -> str:
        """The vendor's file whose contract this is."""
        if self.keyed:
            return "limbo_keys" if self.readable else "limbo_keys_unread"
        return "limbo_plain" if self.readable else "limbo_unread"

    @property
    def tool(self) -> WriteTool:
        """The tool that an application would declare for this path."""
        path = BY_NAME[_ROW] if self.split else self.path
        charges = path.name == "billing.charge"
        return WriteTool(
            path.name.replace(".", "_"),
            vendor=self.vendor,
            operation=path.name,
            side_effect="charge" if charges else "write",
            identity=("case",),
            guard=("amount", "currency") if charges else (),
            money=("amount", "currency") if charges else (),
            request=_request,
            resend_when_absent=True,
        )

    def pieces(self) -> Iterator[Piece]:
        """The cell's intents, in order."""
        case = f"{self.contract}-{self.path.name}-{self.fault}"
        plan = {"mode": self.fault, "after_s": self.late_s}
        if self.path.by_target:
            target = f"{case}-target"
            changed = {"target": target, self.path.field: self.path.shows}
            yield Piece({"case": case, "body": changed}, plan, target)
        elif self.split:
            for number, row in enumerate(ROWS):
                if self.fault == "partial_batch":
                    # Of the rows that went out one after the other, the first half was done.
                    done = number < len(ROWS) // 2
                    plan = {"mode": "timeout_after" if done else "timeout_before"}
                yield Piece({"case": f"{case}-{row}", "body": {"values": row}}, plan)
        else:
            body: dict[str, Any] = dict(_VALUES.get(self.path.name, {self.path.field: "hello"}))
            args: dict[str, Any] = {n: body[n] for n in ("amount", "currency") if n in body}
            yield Piece({**args, "case": case, "body": body}, plan)

    def corrected(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments after the caller has read that a field was renamed."""
        field = BY_NAME[_ROW].field if self.split else self.path.field
        body = dict(args["body"])
        body[field + DRIFTED] = body.pop(field)
        return {**args, "body": body}


def cells() -> Iterator[Cell]:
    """Every cell: a batch is cut short only where there is one; what is safe by nature takes no
    key under either contract and is struck once."""
    for contract in CONTRACTS:
        for fault in MODES:
            for number, path in enumerate(PATHS):
                if fault != "partial_batch" or path.rows:
                    yield Cell(fault, path, contract, _late_s(fault, number))
    for fault in MODES:
        for number, path in enumerate(SAFE):
            if fault != "partial_batch":
                yield Cell(fault, path, CONTRACTS[0], _late_s(fault, number))


def _late_s(fault: str, number: int) -> float:
    if fault == "timeout_late":
        return LATE_S
    if fault != "timeout_late_tail":
        return 0.0
    part = (number + 0.5) / len(PATHS)
    return float(TAIL_FROM_S * (TAIL_TO_S / TAIL_FROM_S) ** part)


def _request(args: Mapping[str, Any]) -> Mapping[str, Any]:
    body: Mapping[str, Any] = args["body"]
    return body

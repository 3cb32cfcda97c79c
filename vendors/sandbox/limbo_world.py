"""What is true at the LIMBO vendor: its clock, its objects, and every effect that ever was.

The clock runs, and can be moved on; what is held until a later time happens in order once the
clock is there, whatever the caller does meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vendors.sandbox.ledger import dumps, wall_s
from vendors.sandbox.limbo_paths import WritePath

Json = dict[str, Any]
Said = tuple[int, Json, Mapping[str, str]]
REPLAYED = {"Idempotent-Replayed": "true"}


@dataclass(frozen=True, slots=True)
class Write:
    """One write as it arrived: its path and contract, what names it (our mark in it, or the object
    it changes), its key if the contract honours one, and the body."""

    path: WritePath
    contract: str
    call: str
    key: str | None
    body: Json


@dataclass(slots=True)
class _Kept:
    """What is kept under a key. ``said`` None: it was cut short, and a repeat goes on with it."""

    digest: str
    object: Json | None = None
    said: Said | None = None


@dataclass(slots=True)
class World:
    """``effects`` are rows {call, path, row, object, at}, never taken back; ``row`` numbers what
    one write of many rows did."""

    effects: list[Json] = field(default_factory=list)
    _objects: dict[tuple[str, str], list[Json]] = field(default_factory=dict)
    _states: dict[tuple[str, str], str] = field(default_factory=dict)
    _keys: dict[str, _Kept] = field(default_factory=dict)
    _held: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _offset_s: float = 0.0
    _at: float | None = None

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Unix seconds on the vendor's clock; while held work happens, the moment it was due."""
        return wall_s() + self._offset_s if self._at is None else self._at

    def advance(self, seconds: float) -> None:
        """Moves the clock on; what falls due happens."""
        self._offset_s += seconds
        self.happen()

    def hold(self, after_s: float, work: Callable[[], object]) -> None:
        """Keeps work for later."""
        heapq.heappush(self._held, (self.now + after_s, next(self._numbers), work))

    def happen(self) -> None:
        """Does what has fallen due, each at its own time."""
        now = self.now
        while self._held and self._held[0][0] <= now:
            self._at, _, work = heapq.heappop(self._held)
            work()
        self._at = None

    # -- writes ------------------------------------------------------------------------------

    def write(self, asked: Write, *, rows: int | None = None) -> Said:
        """Executes one write, or replays it under its key. ``rows`` cuts a write of many rows
        short after so many of them: that answer is for nobody."""
        if asked.key is None:
            return self._execute(asked, _Kept(""), rows)
        digest = dumps([asked.path.name, asked.body])
        kept = self._keys.setdefault(f"{asked.contract}:{asked.key}", _Kept(digest))
        if kept.digest != digest:
            error = {"code": "key_reused", "message": "The key was used with other parameters."}
            return 409, {"error": error}, {}
        if kept.said is not None:
            return kept.said[0], kept.said[1], {**kept.said[2], **REPLAYED}
        said = self._execute(asked, kept, rows)
        if rows is None:
            kept.said = said
        return said

    def refuse(self, asked: Write) -> Said:
        """Refuses one write for good, and keeps the refusal under its key."""
        said: Said = (402, {"error": {"code": "refused", "message": "Declined."}}, {})
        if asked.key is not None:
            kept = self._keys.setdefault(f"{asked.contract}:{asked.key}", _Kept(""))
            if kept.said is not None:
                return kept.said[0], kept.said[1], {**kept.said[2], **REPLAYED}
            kept.said = said
        return said

    def _execute(self, asked: Write, kept: _Kept, rows: int | None) -> Said:
        if asked.path.by_target:
            return self._change(asked)
        made = kept.object or self._insert(asked)
        kept.object = made
        wanted = len(asked.body[asked.path.field]) if asked.path.rows else 1
        while made["done"] < (wanted if rows is None else rows):
            self._effect(asked, made["id"], made["done"])
            made["done"] += 1
        made["state"] = "complete" if made["done"] == wanted else "partial"
        return 201, dict(made), {}

    def _insert(self, asked: Write) -> Json:
        made = {
            "id": f"{asked.path.name.replace('.', '_')}_{next(self._numbers)}",
            "reference": asked.body.get("reference"),
            "created_at": self.now,
            "done": 0,
        }
        for name in ("amount", "currency"):
            if name in asked.body:
                made[name] = asked.body[name]
        self._objects.setdefault((asked.contract, asked.path.name), []).append(made)
        return made

    def _change(self, asked: Write) -> Said:
        """A refund or a change of state is refused the second time; an upsert is done again."""
        place = asked.contract, asked.call
        if place in self._states and asked.path.method != "PUT":
            return 409, {"error": {"code": "already", "message": "It is so already."}}, {}
        if place not in self._states:
            self._states[place] = asked.path.shows
            self._effect(asked, asked.call, 0)
        return 200, {"id": asked.call, "state": asked.path.shows, "at": self.now}, {}

    def _effect(self, asked: Write, object_id: str, row: int) -> None:
        self.effects.append(
            {
                "call": asked.call,
                "path": asked.path.name,
                "row": row,
                "object": object_id,
                "at": self.now,
            }
        )

    # -- reads -------------------------------------------------------------------------------

    def listed(self, path: WritePath, contract: str, reference: str) -> Said:
        """The objects with this mark that the list shows by now."""
        if path.read_lag_s is None:
            return 404, {"error": {"code": "no_list", "message": "Nothing can be read here."}}, {}
        until = self.now - path.read_lag_s
        known = self._objects.get((contract, path.name), [])
        items = [o for o in known if o["reference"] == reference and o["created_at"] <= until]
        return 200, {"items": items}, {}

    def shown(self, contract: str, target: str) -> Said:
        """The object that a write was to change."""
        state = self._states.get((contract, target), "as_it_was")
        return 200, {"id": target, "state": state, "at": self.now}, {}

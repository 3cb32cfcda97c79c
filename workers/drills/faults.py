"""``outbox drill faults``: the LIMBO benchmark's twelve faults on its eleven write paths, under its
two contracts, on simulated time.

Each cell is one write: an intent of the real outbox, sent by the real sender to a vendor that is a
process of its own, and settled by the real resolvers; hours of the vendor's and of the database's
clock pass in seconds. What a batch writes is one intent a row, or one intent where a key resumes
it. A caller whose arguments no longer fit reads the refusal and asks again, as a new intent.

Facts and published figures: "Where Does Exactly-Once Live?" (arXiv 2609.29095, repository
``jaxblack/limbo-bench``): how often frontier models doubled the write, natively, and three models
with keys everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from outbox import Scope
from workers.cli_output import Column
from workers.drills.faults_cells import ROWS, Cell, Piece, cells
from workers.drills.report import Progress, Row, Value
from workers.drills.simulated import TENANT, Simulated, open_simulated

# Hours: past the longest TTL, and past quiescence at a vendor without keys and the verifying look
# after a re-send there.
HORIZON_H = 6
# How often the write was doubled, in percent. Natively: six frontier models (the heavy tail: three,
# and what says plainly that nothing was done: all four such faults together); with keys: three.
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "native": {
        "timeout_before": 0.0,
        "timeout_after": 0.5,
        "timeout_late": 56.0,
        "timeout_late_tail": 63.7,
        "500_before": 0.0,
        "500_after": 7.7,
        "partial_batch": 18.3,
        "duplicate_delivery": 74.2,
        "503_transient": 0.2,
        "429": 0.2,
        "outage": 0.2,
        "schema_drift": 0.2,
    },
    "keys": {
        "timeout_after": 0.0,
        "timeout_late": 2.0,
        "timeout_late_tail": 0.0,
        "500_after": 0.0,
        "partial_batch": 0.0,
        "duplicate_delivery": 0.0,
    },
}
COLUMNS: tuple[Column, ...] = (
    Column("contract"),
    Column("fault"),
    Column("path"),
    Column("key", rank=3),
    Column("once", right=True),
    Column("doubled", head="twice", right=True),
    Column("unknown", right=True),
    Column("told", rank=2),
    Column("paged"),
    Column("published_doubled_pct", rank=1, head="published %", right=True),
)
LEGEND: tuple[str, ...] = (
    "once, twice: effects in the vendor's world, four for a batch of four rows;",
    "unknown: intents of which nobody here can know; published: how often models wrote twice",
    "(arXiv 2609.29095). A time-out is a lost connection: nobody waits for it. Late: 90 s after",
    "the send, or 40 s to 2 h, log-uniform over the paths.",
    "social.x, native: no key, and nothing to read back; a second delivery there leaves no trace",
    "that any client could see. billing.refund, tickets.status and data.upsert are safe by nature",
    "and beside the eleven.",
)
_UNSURE = ("unknown", "accepted")


@dataclass(slots=True)
class Drilled:
    """One intent of a cell: its answer, and that of the corrected one after a refusal."""

    piece: Piece
    intent_id: UUID
    call: str
    corrected: UUID | None = None

    @property
    def intents(self) -> list[UUID]:
        """Both, as far as there are two."""
        return [self.intent_id, *([self.corrected] if self.corrected else [])]


@dataclass(slots=True)
class Tally:
    """What a cell came to. ``rows`` are its single writes, ``once`` and ``doubled`` how many of
    them took effect so often; ``told`` what was told last of each intent, ``false`` whether any of
    it is not so; ``paged`` whether a person ever was, ``open`` how many intents are asked about."""

    intents: int = 0
    rows: int = 0
    effects: int = 0
    once: int = 0
    doubled: int = 0
    unknown: int = 0
    open: int = 0
    told: set[str] = field(default_factory=set)
    false: bool = False
    paged: bool = False

    def count(self, done: Sequence[int], told: Sequence[str], *, paged: bool, asked: bool) -> None:
        """Adds one write: how often each of its rows took effect, and what was told of its intent,
        and of the corrected one after it."""
        *before, last = told
        self.intents += 1
        self.rows += len(done)
        self.effects += sum(done)
        self.once += sum(n == 1 for n in done)
        self.doubled += sum(n > 1 for n in done)
        self.unknown += last in _UNSURE
        self.open += asked
        self.told.add(last)
        self.paged = self.paged or paged
        self.false = self.false or (last == "settled" and 0 in done)
        self.false = self.false or (last == "failed" and any(done)) or "settled" in before

    @property
    def is_asked_of(self) -> bool:
        """Nobody here can know, all of it is told so, and a person was paged and is asked still."""
        return self.unknown == self.open == self.intents and self.paged


def run(progress: Progress) -> Iterable[Row]:
    """A row a cell. Raises ``ServersError`` where no Postgres can be started."""
    return drilled(list(cells()), progress)


def drilled(chosen: Sequence[Cell], progress: Progress) -> list[Row]:
    """The rows of these cells."""
    progress.say("starting Postgres and the vendor")
    with open_simulated() as world:
        progress.say(f"enqueuing {len(chosen)} cells")
        made = {cell: _enqueued(world, cell) for cell in chosen}
        world.limbo.plan({one.call: dict(one.piece.plan) for all_ in made.values() for one in all_})
        world.work()
        _correct(world, made)
        for hour in range(1, HORIZON_H + 1):
            world.pass_time(hour * 3600.0)
            progress.say(f"{hour} h have passed for the vendor and the database")
            # Whom a vendor asked to wait was refused later.
            _correct(world, made)
        return _rows(world, made)


def _enqueued(world: Simulated, cell: Cell) -> list[Drilled]:
    tool, scope = cell.tool, Scope(tenant=TENANT, run_id="run", account=cell.contract)
    made = []
    with world.store.transaction() as tx:
        for piece in cell.pieces():
            answer = world.outbox.enqueue(tx.connection, tool, scope, piece.args)
            call = piece.target or str(answer.intent_id)
            made.append(Drilled(piece, answer.intent_id, call))
    return made


def _correct(world: Simulated, made: Mapping[Cell, Sequence[Drilled]]) -> None:
    """What a caller does who was told that a field is not known: other arguments, a new intent."""
    for cell, all_ in made.items():
        if cell.fault == "schema_drift":
            _ask_again(world, cell, [one for one in all_ if one.corrected is None])


def _ask_again(world: Simulated, cell: Cell, made: Sequence[Drilled]) -> None:
    tool, scope = cell.tool, Scope(tenant=TENANT, run_id="run", account=cell.contract)
    told = world.answers([one.intent_id for one in made])
    for one in made:
        if told[one.intent_id].told != "failed":
            continue
        with world.store.transaction() as tx:
            answer = world.outbox.enqueue(
                tx.connection,
                tool,
                scope,
                cell.corrected(one.piece.args),
                supersedes=one.intent_id,
            )
        one.corrected = answer.intent_id
        call = one.piece.target or str(answer.intent_id)
        world.limbo.plan({call: dict(one.piece.plan)})


def _rows(world: Simulated, made: Mapping[Cell, Sequence[Drilled]]) -> list[Row]:
    effects = Counter((e["call"], e["row"]) for e in world.limbo.effects())
    everyone = [i for all_ in made.values() for one in all_ for i in one.intents]
    answers, paged, asked = world.answers(everyone), world.paged(), world.asked()
    rows = []
    for cell, all_ in made.items():
        tally = Tally()
        for one in all_:
            tally.count(
                _effects(cell, one, effects),
                [answers[i].told for i in one.intents],
                paged=any(i in paged for i in one.intents),
                asked=one.intents[-1] in asked,
            )
        rows.append(_row(cell, tally))
    return rows


def _effects(cell: Cell, one: Drilled, effects: Mapping[tuple[str, int], int]) -> list[int]:
    """How often each row of the write took effect, under either of its two intents."""
    calls = {one.call, *(str(i) for i in one.intents)}
    rows = len(ROWS) if cell.path.rows and not cell.split else 1
    return [sum(effects.get((call, row), 0) for call in calls) for row in range(rows)]


def _row(cell: Cell, tally: Tally) -> Row:
    published = {} if cell.path.by_target else PUBLISHED[cell.contract]
    values: dict[str, Value] = {
        "contract": cell.contract,
        "fault": cell.fault,
        "path": cell.path.name,
        "key": cell.keyed,
        "once": tally.once,
        "doubled": tally.doubled,
        "unknown": tally.unknown,
        "told": ", ".join(sorted(tally.told)),
        "paged": tally.paged,
        "published_doubled_pct": published.get(cell.fault),
    }
    return Row(values, not tally.false and _as_promised(cell, tally))


def _as_promised(cell: Cell, tally: Tally) -> bool:
    """What the outbox owes a cell: one effect wherever a key or a read can bring it about, and
    where nothing can, no second effect of ours and a person who knows of it."""
    if cell.fault == "outage":
        return tally.effects == 0 and tally.is_asked_of
    if cell.fault == "duplicate_delivery" and not cell.keyed and not cell.path.by_target:
        # Not our doing, and no client's to prevent. Whatever reads back shows it.
        seen = tally.is_asked_of if cell.readable else tally.told == {"settled"}
        return tally.doubled == tally.rows and seen
    if cell.keyed or cell.readable or cell.fault in ("503_transient", "429", "schema_drift"):
        return tally.once == tally.rows and tally.told == {"settled"} and not tally.paged
    return tally.doubled == 0 and tally.is_asked_of

"""What the consumer is handed: every result once, and the last word of each intent the one that
the ledger says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox import Settlement
from outbox.answers import answer_of

if TYPE_CHECKING:
    from tests.sim.ground import Ground

_CONSUMER = "billing"


@dataclass(slots=True)
class Results:
    """One timeline's. ``handed`` are their numbers, ``last`` the newest of each intent."""

    ground: Ground
    handed: list[int] = field(default_factory=list)
    last: dict[UUID, Settlement] = field(default_factory=dict)

    def consume(self, *, keep: bool) -> None:
        """A consumer takes its results, and may roll back."""
        agent = self.ground.agent
        taken = self.ground.outbox.settlements(agent, consumer=_CONSUMER)
        if not keep:
            agent.rollback()
            return
        agent.commit()
        self.handed += [one.id for one in taken]
        self.last.update({one.intent_id: one for one in taken})

    def problems(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
        """Rules that are broken, of all the intents as they are at the end."""
        every = self.ground.rows("SELECT id, intent_id, kind FROM outbox.settlements")
        settled = [row["intent_id"] for row in every if row["kind"] == "settled"]
        if len(settled) > len(set(settled)):
            yield 10, "an intent was settled twice"
        numbers = sorted(row["id"] for row in every)
        if sorted(self.handed) != numbers:
            yield 11, f"results {numbers}, delivered {sorted(self.handed)}"
        for row in rows:
            yield from last_words(row, self.last.get(row["id"]))


def last_words(row: Mapping[str, Any], last: Settlement | None) -> Iterator[tuple[int, str]]:
    """A consumer books what it was handed last: it must be what an agent would be told."""
    if last is None:
        if row["settled_at"] is not None or row["contradicted_at"] is not None:
            yield 11, f"{row['status']}, and the consumer was handed nothing"
        return
    answer = answer_of(row)
    if last.told != answer.told:
        yield 10, f"told as {answer.told}, and the consumer was last handed {last.told}"
    elif (last.business_status, last.receipt_id) != (answer.business_status, answer.receipt_id):
        yield 10, f"the consumer was last handed {last.business_status} of {last.receipt_id}"

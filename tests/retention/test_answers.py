"""Pruning changes no answer: two intents with one history, of which one was emptied and the other
in somebody's hands meanwhile, are told, found, handed out and joined alike ever after."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from outbox import Outbox, WriteTool
from outbox.errors import IntentMismatch, OutboxError
from tests.cli.desk import CHARGE
from tests.retention.attic import KEPT, ONCE, TURN, Attic, arguments, epoch_of
from tests.retention.histories import HISTORIES, History

TOOLS = {"run": CHARGE, "epoch": TURN, "tenant": ONCE}
_numbers = itertools.count()
# What tells two rows apart whatever their history is.
_OWN = ("id", "seq", "key", "fingerprint", "identity", "request_sha256", "supersedes")
# What may come long after, as changes of the object that the event shows.
NEWS: Mapping[str, Mapping[str, Any]] = {
    "the same once more": {},
    "by its receipt alone": {"marked": False},
    "a second object": {"id": "pi_second_object"},
    "another amount": {"amount": 999, "amount_received": 999},
    "taken back": {"status": "canceled"},
}


class Life:
    """One intent of a history."""

    def __init__(self, attic: Attic, tool: WriteTool, history: History) -> None:
        self.attic, self.tool = attic, tool
        self.invoice = f"in_life_{next(_numbers)}"
        self.id = history(attic, tool, self.invoice)
        mine = "SELECT id FROM outbox.intents WHERE identity LIKE '%%' || %(invoice)s || '%%'"
        rows = attic.desk.sql(mine + " ORDER BY seq", {"invoice": f'"{self.invoice}"'})
        self.ids = [row["id"] for row in rows]
        # The run has heard of it: what guards its twin is kept, and tested elsewhere.
        Outbox(attic.desk.settings).wait(self.id, timeout_s=0)

    def plain(self, told: Any) -> str:
        """Without what is this one's and no other's."""
        text = repr(told)
        for number, id_ in enumerate(self.ids):
            for own in (str(id_), id_.hex[:12], id_.hex[:8]):
                text = text.replace(own, f"OWN {number}")
        return text.replace(self.invoice, "OWN")

    def enqueued(self, scope: Any = None, more: Any = None, **changes: Any) -> str:
        """What a repeat of the write is answered, taken back again."""
        outbox = Outbox(self.attic.desk.settings)
        args = arguments(self.invoice, **changes)
        with self.attic.desk.connect(autocommit=False) as connection:
            try:
                answer = outbox.enqueue(
                    connection, self.tool, scope or epoch_of(self.tool), args, **(more or {})
                )
                # Of a free value that differs from one that is gone nothing can be said.
                found = replace(answer, notes=(), xid="", recorded_at=None)
                if not answer.deduplicated:
                    found = replace(found, intent_id=UUID(int=0))
            except IntentMismatch as error:
                return self.plain((error.intent_id, error.fields))
            except OutboxError as error:
                return self.plain((type(error).__name__, str(error)))
            finally:
                connection.rollback()
        return self.plain(found)

    def answers(self) -> dict[str, str]:
        """Everything that anybody may ask."""
        later = replace(epoch_of(self.tool), epoch="turn-2")
        elsewhere = replace(epoch_of(self.tool), run_id="run-2")
        waited = Outbox(self.attic.desk.settings).wait(self.id, timeout_s=0)
        found = {
            "wait": self.plain(replace(waited, recorded_at=None)),
            "repeat": self.enqueued(),
            "repeat with another memo": self.enqueued(memo="another"),
            "repeat without one": self.enqueued(memo=None),
            "repeat with another amount": self.enqueued(amount=1201),
            "repeat in another currency": self.enqueued(currency="eur"),
            "in a later turn": self.enqueued(later),
            "in another run": self.enqueued(elsewhere),
            "once more": self.enqueued(more={"occurrence": 1}),
            "instead of it": self.enqueued(more={"supersedes": self.id}),
        }
        rows = self.attic.results(f"new-{next(_numbers)}")
        mine = [replace(s, id=0, at=None) for s in rows if s.intent_id == self.id]
        found["handed to a new consumer"] = self.plain(mine)
        return found

    def after(self, news: Mapping[str, Any]) -> str:
        """What an event makes of it."""
        changes = dict(news)
        if "id" in changes:
            changes["id"] = f"pi_new_{self.id.hex[:12]}"
        number = self.attic.event(self.id, **changes)
        (joined,) = self.attic.desk.sql(
            "SELECT state, intent_id, detail FROM outbox.webhook_inbox WHERE id = %(id)s",
            {"id": number},
        )
        row = self.attic.row(self.id, f"{KEPT}, verify_at, due_at, retracted_at")
        shown = {name: value for name, value in row.items() if name not in _OWN}
        times = {name: value is not None for name, value in shown.items() if name[-3:] == "_at"}
        questions = self.attic.desk.sql(
            "SELECT reasons, detail FROM outbox.escalations WHERE intent_id = %(id)s "
            "ORDER BY closed_at",
            {"id": self.id},
        )
        told = self.attic.desk.settlements(self.id)
        return self.plain((joined, {**shown, **times}, questions, told))


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("tool", TOOLS)
def test_what_was_pruned_answers_as_what_was_not(attic: Attic, tool: str, history: str) -> None:
    pairs = {
        news: [Life(attic, TOOLS[tool], HISTORIES[history]) for _ in range(2)] for news in NEWS
    }
    attic.days(401)
    with contextlib.ExitStack() as held:
        for _, other in pairs.values():
            held.enter_context(attic.held("intents", other.id))
        attic.prune()
    for one, other in pairs.values():
        assert attic.is_empty(one.id)
        assert attic.is_empty(other.id) is (history == "landed_and_redacted")
    assert attic.broken() == []
    one, other = pairs["the same once more"]
    assert one.answers() == other.answers()
    assert {n: one.after(NEWS[n]) for n, (one, _) in pairs.items()} == {
        n: other.after(NEWS[n]) for n, (_, other) in pairs.items()
    }
    assert attic.broken() == []

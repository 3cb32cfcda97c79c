"""Processes with different keys over one ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from outbox.codec import codec_of
from outbox.settings import Settings
from outbox.store.connection import Store
from resolvers import escalating, joining
from resolvers.directory import Directory
from resolvers.looking import Looker
from resolvers.receiving import receive
from tests.resolvers.deliveries import event, signed
from tests.workers.floor import SECRET, WAIT_S, Floor
from workers.sender import Sender

PERSON = "Jane-Doe-of-1-Elm-Street"


def settings(floor: Floor, keys: str) -> Settings:
    """The floor's settings with these keys."""
    return replace(floor.settings, codec=codec_of("", keys))


class Process:
    """A worker and a web process of one ring of keys."""

    def __init__(self, floor: Floor, keys: str) -> None:
        self.floor = floor
        self.store = Store(settings(floor, keys))
        self.directory: Directory = floor.directory
        self.sender: Sender = floor.new_sender(self.store)
        self.looker = Looker(self.store, self.directory)

    def drain(self) -> int:
        """One drain; returns how many rows it claimed."""
        return self.sender.drain(budget_s=WAIT_S)

    def join(self) -> int:
        """Joins the events that are due."""
        return joining.join_once(self.store, self.directory)

    def escalate(self) -> None:
        """What is due for a person."""
        escalating.escalate_once(self.store, self.directory)

    def receive(self, body: dict[str, Any]) -> None:
        """One genuine delivery."""
        sent = signed(body, int(self.now()), SECRET)
        told = receive(
            self.store,
            self.directory,
            vendor="stripe",
            account="default",
            headers=sent.headers,
            body=sent.body,
        )
        assert told[0] == 200, told

    def now(self) -> float:
        """The database's clock."""
        (row,) = self.floor.sql("SELECT EXTRACT(EPOCH FROM outbox.clock())::float8 AS at")
        return float(row["at"])


@contextmanager
def process(floor: Floor, keys: str) -> Iterator[Process]:
    opened = Process(floor, keys)
    try:
        yield opened
    finally:
        opened.looker.close()
        opened.store.close()


def landed_event(floor: Floor, intent_id: UUID, object_id: str) -> dict[str, Any]:
    """An event that shows the intent's object paid, with a person in it."""
    row = floor.row(intent_id)
    made = event({"outbox_id": str(intent_id), "outbox_key": bytes(row["key"]).hex()})
    made["data"]["object"] |= {
        "id": object_id,
        "amount": row["amount_minor"],
        "amount_received": row["amount_minor"],
        "currency": row["currency"],
        "description": PERSON,
    }
    return made


def everything(floor: Floor) -> str:
    """All that the ledger holds, as text; what is bytes as UTF-8 where it is that."""
    tables = floor.sql(
        "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'outbox'"
    )
    found = []
    for table in tables:
        for row in floor.sql(f"SELECT * FROM outbox.{table['name']}"):
            for value in row.values():
                raw = bytes(value) if isinstance(value, bytes | memoryview) else None
                found.append(raw.decode(errors="replace") if raw is not None else str(value))
    return "\n".join(found)

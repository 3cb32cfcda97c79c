"""A ledger with a past: settled intents, the events that joined them, and what pruning left."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg

from outbox import Answer, Outbox, Scope, WriteTool
from outbox.outcomes import Business, Reading, Receipt, Refused, Standing
from outbox.store.intents import Intent
from outbox.store.invariants import OF_INTENTS
from outbox.store.invariants_beside import BESIDE
from resolvers.joining import join_once
from resolvers.pruning import Order, Pruned, prune
from tests.cli.desk import CHARGE, Desk
from tests.resolvers.deliveries import event

DAY_S = 86400.0
OLD_S = 400 * DAY_S
PERSON = "Jane-Doe-of-1-Elm-Street"
# Everything of a row that something may be decided, found or told by.
KEPT = (
    "id, seq, version, tenant, vendor, account, mode, vendor_account, tool, operation, run_id, "
    "epoch, occurrence, once_per, supersedes, key, fingerprint, identity, guard, request_sha256, "
    "carries, receipt_id, amount_minor, currency, status, doubt, business_status, business_word, "
    "failure_code, settled_by, settled_at, told_at, created_at, note, lane, gate, contradicted_at"
)
TURN = replace(CHARGE, name="charge_turn", once_per="epoch")
ONCE = replace(CHARGE, name="charge_once", once_per="tenant")
SCOPE = Scope(tenant="acme", run_id="run-1")
_numbers = itertools.count()


def arguments(invoice: str, **changes: Any) -> dict[str, Any]:
    return {"invoice_id": invoice, "amount": 1200, "currency": "usd", "memo": PERSON, **changes}


def epoch_of(tool: WriteTool) -> Scope:
    return replace(SCOPE, epoch="turn-1") if tool.once_per == "epoch" else SCOPE


@dataclass
class Attic:
    desk: Desk

    # -- a past ----------------------------------------------------------------------------------

    def enqueue(self, tool: WriteTool = CHARGE, invoice: str = "", **more: Any) -> Answer:
        invoice = invoice or f"in_old_{next(_numbers)}"
        with self.desk.connect(autocommit=False) as connection:
            return Outbox(self.desk.settings).enqueue(
                connection, tool, epoch_of(tool), arguments(invoice), **more
            )

    def reading(self, row: Intent, **changes: Any) -> Reading:
        base = Reading(
            f"pi_{row.id.hex[:12]}",
            Standing.LANDED,
            Business.PAID,
            "succeeded",
            owner=str(row.id),
            amount_minor=row.amount_minor,
            currency=row.currency,
            livemode=False,
            vendor_time=1_780_000_000,
            document=json.dumps({"description": PERSON}),
        )
        return replace(base, **changes)

    def landed(self, tool: WriteTool = CHARGE, **more: Any) -> UUID:
        intent_id = self.enqueue(tool, **more).intent_id
        row = self.desk.leased(intent_id)
        self.desk.record(row, Receipt(self.reading(row)))
        return intent_id

    def refused(self, tool: WriteTool = CHARGE, **more: Any) -> UUID:
        intent_id = self.enqueue(tool, **more).intent_id
        self.desk.record(self.desk.leased(intent_id), Refused("card_declined", covers_key=True))
        return intent_id

    def event(self, intent_id: UUID, *, marked: bool = True, **of_object: Any) -> int:
        """An event about the intent, stored and joined; its number in the inbox."""
        row = self.desk.row(intent_id)
        key = bytes(row.key).hex()
        marks = {"outbox_id": str(intent_id), "outbox_key": key}
        made = event(marks, key=key) if marked else event()
        made["data"]["object"] |= {
            "id": row.receipt_id or f"pi_{intent_id.hex[:12]}",
            "description": PERSON,
            **of_object,
        }
        number = self.desk.keep(made["id"], "new", json.dumps(made).encode())
        assert join_once(self.desk.store, self.desk.directory) == 1
        return number

    def days(self, days: float) -> None:
        """Days go by."""
        self.desk.forward(days * DAY_S)

    def doubt_clock(self, why: str = "stepped") -> None:
        """The database's clock is in doubt, as a heartbeat says it."""
        self.desk.sql(
            "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
            "VALUES ('clock', 'clock', '', %(why)s, 'heartbeat', outbox.clock())",
            {"why": why},
        )

    def prune(self, **changes: Any) -> dict[str, Pruned]:
        """Everything that is old enough; by kind, what became of it."""
        order = Order(**{"older_than_s": OLD_S, "by": "alice", **changes})
        return {pruned.what: pruned for pruned in prune(self.desk.store, order)}

    def kept(self, **changes: Any) -> dict[str, int]:
        """Why intents were kept, of which none was emptied."""
        intents = self.prune(**changes)["intents"]
        assert intents.done == 0
        return dict(intents.kept)

    # -- what is there ---------------------------------------------------------------------------

    def row(self, intent_id: UUID, columns: str = "*") -> Mapping[str, Any]:
        (found,) = self.desk.sql(
            f"SELECT {columns} FROM outbox.intents WHERE id = %(id)s", {"id": intent_id}
        )
        return found

    def is_empty(self, intent_id: UUID) -> bool:
        """Whether it was emptied, and of everything."""
        row = self.row(intent_id, "args, request, receipt")
        assert set(row.values()) == {None} or row["args"] is not None
        return row["args"] is None

    def body(self, number: int) -> Any:
        """What is left of an event's body; ``gone`` where the event itself is."""
        rows = self.desk.sql(
            "SELECT body FROM outbox.webhook_inbox WHERE id = %(id)s", {"id": number}
        )
        return rows[0]["body"] if rows else "gone"

    def broken(self) -> list[str]:
        """The rules of the ledger that doctor finds broken."""
        rules = {one.check for one in (*OF_INTENTS, *BESIDE) if one.rule is not None}
        items = self.desk.invoke("doctor", "--json").json["items"]
        return [f["check"] for f in items if f["check"] in rules | {"guard_missing"}]

    def results(self, consumer: str) -> list[Any]:
        """What a consumer has not had yet."""
        with self.desk.connect(autocommit=False) as connection:
            return Outbox(self.desk.settings).settlements(connection, consumer)

    @contextlib.contextmanager
    def held(self, table: str, row_id: UUID | int) -> Iterator[psycopg.Connection[Any]]:
        """Somebody's transaction that holds a row."""
        with self.desk.connect(autocommit=False) as connection:
            connection.execute(
                f"SELECT FROM outbox.{table} WHERE id = %s FOR UPDATE".encode(), [row_id]
            )
            yield connection
            connection.rollback()

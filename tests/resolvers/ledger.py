"""A ledger for the tests: real intents and escalations, and a clock that can be moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from outbox import Outbox, Scope, Settings, WriteTool
from outbox.contract import Account
from outbox.policy import Policy
from outbox.store import escalations, intents
from outbox.store.connection import Store
from resolvers.directory import Directory
from tests.statements import Statements
from vendors.registry import build

SECRET = "whsec_of_the_test"
ACCOUNT = Account(
    "default",
    "test",
    credential="sk_test_nowhere",
    webhook_secrets=(SECRET,),
    vendor_account="acct_ledger",
)
CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)
ARGS: Mapping[str, Any] = {
    "amount": 1200,
    "currency": "usd",
    "customer": "cus_jane",
    "description": "for Jane Doe, 1 Elm Street",
}
_numbers = itertools.count()


@dataclass
class Ledger:
    settings: Settings
    store: Store
    directory: Directory = field(repr=False)
    statements: Statements = field(repr=False)

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Runs a statement of the test's own over a connection of its own."""
        return self.statements(statement, params)

    def forward(self, seconds: float) -> None:
        """Moves the database's clock."""
        self.sql("UPDATE outbox.test_clock SET offset_s = offset_s + %(s)s", {"s": seconds})

    def freeze(self) -> int:
        """Stops the database's clock on a whole second and returns it; ``forward`` still moves."""
        (row,) = self.sql("SELECT date_trunc('second', outbox.clock()) AS at")
        self.sql(
            "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
            f"$$ SELECT '{row['at'].isoformat()}'::timestamptz "
            "+ (SELECT offset_s FROM outbox.test_clock) * INTERVAL '1 second' $$"
        )
        self.sql("UPDATE outbox.test_clock SET offset_s = 0")
        return int(row["at"].timestamp())

    def now(self) -> int:
        """The database's clock in seconds since the epoch."""
        (row,) = self.sql("SELECT EXTRACT(EPOCH FROM outbox.clock())::bigint AS at")
        return int(row["at"])

    def intent(self, **given: Any) -> UUID:
        """A new intent, recorded and never sent."""
        args = {**ARGS, "invoice_id": f"in_{next(_numbers)}", **given}
        connection = self.statements.connection()
        with connection.transaction():
            answer = Outbox(self.settings).enqueue(
                connection, CHARGE, Scope(tenant="acme", run_id="run-1"), args
            )
        return answer.intent_id

    def escalate(self, intent_id: UUID, *reasons: str) -> UUID:
        """Asks a person about an intent."""
        with self.store.transaction() as tx:
            row = intents.lock(tx, intent_id)
            assert row is not None
            return escalations.open_for_intent(tx, row, list(reasons or ("ttl",)), {})

    def close(self, escalation_id: UUID) -> None:
        """Closes a question."""
        with self.store.transaction() as tx:
            assert escalations.close(tx, escalation_id, by="test", verdict="settled")

    def pages(self) -> list[dict[str, Any]]:
        """Every page in the order it was written."""
        return self.sql("SELECT * FROM outbox.pages ORDER BY id")

    def inbox(self) -> list[dict[str, Any]]:
        """Every stored event."""
        return self.sql("SELECT * FROM outbox.webhook_inbox ORDER BY id")


@contextmanager
def open_ledger(database: str, policy: Policy | None = None, **changes: Any) -> Iterator[Ledger]:
    settings = Settings(
        database_url=database,
        policy=policy or replace(Policy(), page_group_from=10**6),
        accounts={("stripe", "default"): ACCOUNT},
    )
    settings = replace(settings, **changes)
    vendor = build("stripe")
    store = Store(settings)
    statements = Statements(database)
    try:
        yield Ledger(settings, store, Directory(settings, {"stripe": vendor}), statements)
    finally:
        statements.close()
        store.close()
        vendor.close()

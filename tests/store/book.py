"""A ledger for the store's tests: real rows in a real database, and a clock that can be moved."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, create_engine

from outbox import Answer, Outbox, Scope, Settings, WriteTool
from outbox.contract import Account
from outbox.contracts import CONTRACTS
from outbox.outcomes import Business, Reading, Receipt, Standing
from outbox.policy import Policy
from outbox.store import intents
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from outbox.store.intents import Intent
from outbox.store.sendable import Sendable
from outbox.testing import settable_clock
from tests.statements import Statements

ACCOUNT = Account("default", "test", credential="sk_test_x")
CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)
TURN = replace(CHARGE, name="charge_turn", once_per="epoch")
ONCE = replace(CHARGE, name="charge_once", once_per="tenant")
LANED = replace(CHARGE, name="charge_in_order", lane=("customer",))
PASSING = replace(CHARGE, name="charge_passing", lane=("customer",), on_doubt="continue")
SCOPE = Scope(tenant="acme", run_id="run-1")

WAIT_S = 10.0
_numbers = itertools.count()


def charge(invoice: str | None = None, **changes: Any) -> dict[str, Any]:
    """Arguments of a charge; another invoice each time unless one is named."""
    invoice = invoice or f"in_{next(_numbers)}"
    base = {"amount": 4900, "currency": "usd", "customer": "cus_1", "invoice_id": invoice}
    return {**base, **changes}


def wait_until(holds: Callable[[], bool]) -> None:
    """Asks again every few milliseconds; fails after WAIT_S."""
    limit = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < limit, "it never came true"
        threading.Event().wait(0.005)


def plain(database: str) -> str:
    """The database's URL as psycopg takes it."""
    return database.replace("+psycopg", "", 1)


def reading(row: Intent, receipt_id: str = "pi_1", **changes: Any) -> Reading:
    """An object that this intent made."""
    base = Reading(
        receipt_id=receipt_id,
        standing=Standing.LANDED,
        business=Business.PAID,
        word="succeeded",
        owner=str(row.id),
        amount_minor=row.amount_minor,
        currency=row.currency,
        livemode=False,
        vendor_time=1_790_000_000,
        document=json.dumps({"id": receipt_id}),
    )
    return replace(base, **changes)


def receipt(row: Intent, receipt_id: str = "pi_1", **changes: Any) -> Receipt:
    return Receipt(reading(row, receipt_id, **changes))


@dataclass
class Book:
    """One database with the product's own parts over it."""

    settings: Settings
    store: Store
    outbox: Outbox
    engine: Engine = field(repr=False)
    statements: Statements = field(repr=False)

    @property
    def url(self) -> str:
        return plain(self.settings.database_url)

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """A statement of the test's own, over a connection of the test's own."""
        return self.statements(statement, params)

    def value(self, statement: str, params: Mapping[str, Any] | None = None) -> Any:
        """The one value of a statement."""
        return next(iter(self.sql(statement, params)[0].values()))

    def count(self, table: str = "intents") -> int:
        return int(self.value(f"SELECT count(*) FROM outbox.{table}"))

    def forward(self, seconds: float) -> None:
        """Moves the database's clock."""
        self.sql("UPDATE outbox.test_clock SET offset_s = offset_s + %(s)s", {"s": seconds})

    def enqueue(
        self,
        tool: WriteTool = CHARGE,
        scope: Scope = SCOPE,
        args: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Answer:
        """One intent in a transaction of its own."""
        connection = self.statements.connection()
        with connection.transaction():
            return self.outbox.enqueue(connection, tool, scope, args or charge(), **more)

    def row(self, intent_id: UUID) -> Intent:
        with self.store.transaction() as tx:
            found = intents.read(tx, intent_id)
        assert found is not None
        return found

    def claimer(
        self,
        *accounts: Account,
        owner: str = "worker",
        window_s: float | None = 3600.0,
        lease_s: float = 60.0,
    ) -> Claimer:
        operations = tuple(sorted(CONTRACTS["stripe"].operations))
        sendable = tuple(
            Sendable("stripe", account, window_s, operations) for account in accounts or (ACCOUNT,)
        )
        return Claimer(self.store, sendable, owner=owner, lease_s=lease_s)

    def in_flight(self, tool: WriteTool = CHARGE, **more: Any) -> Intent:
        """A new intent, claimed."""
        answer = self.enqueue(tool, **more)
        (row,) = [r for r in self.claimer().claim(64) if r.id == answer.intent_id]
        return row


@contextmanager
def open_book(database: str, redis_url: str = "", policy: Policy | None = None) -> Iterator[Book]:
    settings = Settings(
        database_url=database,
        redis_url=redis_url,
        policy=policy or Policy(),
        accounts={("stripe", "default"): ACCOUNT},
    )
    statements = Statements(database)
    if not statements("SELECT to_regclass('outbox.test_clock') AS clock")[0]["clock"]:
        settable_clock(database)
    book = Book(
        settings, Store(settings, size=16), Outbox(settings), create_engine(database), statements
    )
    try:
        yield book
    finally:
        book.outbox.close()
        book.store.close()
        book.engine.dispose()
        statements.close()

"""A ledger of a test module's own, its clock, the product's parts over it, and what must always
hold of it. The vendor is nowhere: what it says is the test's to say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from outbox import Answer, Outbox, Scope, Settings, WriteTool
from outbox.contract import Account
from outbox.outcomes import Lost
from outbox.policy import Policy
from outbox.store import intents, records
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from outbox.store.escalations import DOUBT_REASONS
from outbox.store.intents import Intent
from outbox.store.invariants import OF_INTENTS, Invariant
from outbox.store.invariants_beside import BESIDE
from outbox.testing import settable_clock
from resolvers.directory import Directory
from tests.statements import Statements
from vendors.registry import build

SECRET = "whsec_of_the_test"
ACCOUNT = Account(
    "default",
    "test",
    credential="sk_test_nowhere",
    webhook_secrets=(SECRET,),
    vendor_account="acct_here",
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
# True only for a while: some job has yet to come by. Everything else holds at every commit.
UNTIL_A_TICK = frozenset(
    {
        "lease_long_expired",
        "ended_epoch_still_waits",
        "overdue_without_escalation",
        "due_and_not_sent",
        "webhook_waits",
        "doubt_closed_and_still_asked",
        "settlement_not_taken",
        "transaction_held_open",
    }
)
_TABLES = """
SELECT string_agg(format('outbox.%I', relname), ', ') AS names FROM pg_class
WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')
    AND relname NOT IN ('test_clock', 'alembic_version', 'registrations')
"""
_numbers = itertools.count()


@dataclass(repr=False)
class Scene:
    """One database with the product's parts over it."""

    settings: Settings
    store: Store
    directory: Directory = field(repr=False)
    outbox: Outbox
    sql: Statements = field(repr=False)
    _broken: dict[bool, str] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return "Scene(...)"  # it is an argument of every example that is shown

    def now(self) -> int:
        """The database's clock in whole seconds of the epoch."""
        return int(self.sql("SELECT EXTRACT(EPOCH FROM outbox.clock())::float8 AS s")[0]["s"])

    def forward(self, seconds: float) -> None:
        """Moves the database's clock."""
        self.sql("UPDATE outbox.test_clock SET offset_s = offset_s + %(s)s", {"s": seconds})

    def enqueue(self, invoice: str = "", tool: WriteTool = CHARGE, **scope: Any) -> Answer:
        """One intent in a transaction of its own."""
        args = {"amount": 1200, "currency": "usd", "customer": "cus_1"}
        args["invoice_id"] = invoice or f"in_{next(_numbers)}"
        connection = self.sql.connection()
        with connection.transaction():
            return self.outbox.enqueue(
                connection, tool, Scope(**{"tenant": "acme", "run_id": "run", **scope}), args
            )

    def claimer(self, store: Store) -> Claimer:
        """What a worker claims by."""
        policy = self.settings.policy
        return Claimer(store, self.directory.sendable(), owner="worker", lease_s=policy.lease_s)

    def lost(self) -> Intent:
        """A new intent that was sent, and whose answer was never seen."""
        answer = self.enqueue()
        (row,) = [r for r in self.claimer(self.store).claim(64) if r.id == answer.intent_id]
        with self.store.transaction() as tx:
            lost = records.Ended(row, Lost("deadline"), row.last_sent_at, look_in_s=3600.0)
            records.record(tx, [lost])
        return self.row(row.id)

    def written_to(self) -> str:
        """A place in the server's log: where it is the same, nothing was written."""
        return str(self.sql("SELECT pg_current_wal_insert_lsn()::text AS at")[0]["at"])

    def empty(self) -> None:
        """No row of an earlier example, and the real time."""
        (left,) = self.sql(_TABLES)
        self.sql(f"TRUNCATE {left['names']} RESTART IDENTITY")
        self.sql("UPDATE outbox.test_clock SET offset_s = 0")

    def ledger(self) -> tuple[list[Intent], list[tuple[UUID, int]], int]:
        """What is committed: every row, the attempts whose lease ended without an answer, and how
        much is in the logs."""
        rows = self.sql(f"SELECT {intents.COLUMNS} FROM outbox.intents ORDER BY seq")
        expired = self.sql(
            "SELECT intent_id, lease_no FROM outbox.attempts WHERE outcome = 'lease_expired'"
        )
        (logged,) = self.sql(
            "SELECT (SELECT count(*) FROM outbox.attempts) "
            "+ (SELECT count(*) FROM outbox.events) AS n"
        )
        return (
            [intents.as_intent(row, self.store.codec) for row in rows],
            [(row["intent_id"], row["lease_no"]) for row in expired],
            int(logged["n"]),
        )

    def row(self, intent_id: UUID) -> Intent:
        """The row as it stands."""
        with self.store.transaction() as tx:
            found = intents.read(tx, intent_id)
        assert found is not None
        return found

    def broken(self, *, after_ticks: bool = False) -> list[str]:
        """The invariants that some row breaks now, each with the row; all of them once every job
        has come by."""
        if after_ticks not in self._broken:
            self._broken[after_ticks] = _asked(after_ticks=after_ticks)
        rows = self.sql.connection().execute(
            self._broken[after_ticks].encode(), self.params, prepare=True
        )
        return [f"{row['name']}: {row['id']}" for row in rows]

    @property
    def params(self) -> Mapping[str, Any]:
        """What the invariants are asked with, by this scene's own policy and accounts."""
        policy = self.settings.policy
        return {
            "marked": ["payment_intents.create"],
            "keyless": [],
            "doubts": sorted(DOUBT_REASONS),
            "reached": ["stripe/default"],
            "tick_expire_s": policy.tick_expire_s,
            "tick_escalate_s": policy.tick_escalate_s,
            "page_tries": len(policy.page_tries_s),
            "clock_step_s": policy.clock_step_s,
            "least_retention_s": 0.0,  # what is over is pruned at once here
            "due_s": 60.0,
            "idle_s": self.settings.idle_in_transaction_timeout_s,
        }


def _asked(*, after_ticks: bool) -> str:
    """Every invariant in one question."""

    def one(invariant: Invariant) -> str:
        return f"SELECT '{invariant.check}' AS name, r.id FROM ({invariant.broken}) r"

    asked = [i for i in (*OF_INTENTS, *BESIDE) if after_ticks or i.check not in UNTIL_A_TICK]
    return " UNION ALL ".join(map(one, asked))


@contextmanager
def open_scene(database: str, **changes: Any) -> Iterator[Scene]:
    """``changes`` are settings."""
    settings = Settings(
        database_url=database,
        policy=replace(Policy(), page_group_from=10**6),
        accounts={("stripe", "default"): ACCOUNT},
    )
    settings = replace(settings, **changes)
    vendor = build("stripe")
    settable_clock(database)
    statements = Statements(database)
    # One large question, asked again and again: it is not to be planned each time.
    statements("SET plan_cache_mode = force_generic_plan")
    statements("SET jit = off")
    scene = Scene(
        settings,
        Store(settings),
        Directory(settings, {"stripe": vendor}),
        Outbox(settings),
        statements,
    )
    try:
        yield scene
    finally:
        scene.outbox.close()
        scene.store.close()
        scene.sql.close()
        vendor.close()

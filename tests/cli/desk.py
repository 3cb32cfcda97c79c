"""A triage desk for the tests: a real ledger with a movable clock, the sandbox as its vendor, and
the command line as people and scripts run it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from click.testing import CliRunner, Result
from psycopg.rows import dict_row

from outbox import Outbox, Scope, Settings, WriteTool
from outbox.outcomes import Lost, Outcome, Receipt
from outbox.store import escalations, inbox, intents, records
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from outbox.store.intents import Intent
from resolvers.directory import Directory
from tests.cli.ran import WAIT_S, Ran, ended, read_terminal
from tests.statements import Statements
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from workers.cli import root

SCRIPT = Path(sys.executable).with_name("outbox")
CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency"),
    money=("amount", "currency"),
    request=lambda args: {
        "amount": args["amount"],
        "currency": args["currency"],
        "confirm": True,
        "payment_method": args.get("payment_method", "pm_card_visa"),
    },
)
CAPTURE = WriteTool(
    "capture_payment",
    vendor="stripe",
    operation="payment_intents.capture",
    side_effect="charge",
    identity=("payment_intent",),
    guard=("amount",),
    request=lambda args: {"payment_intent": args["payment_intent"]},
)
_numbers = itertools.count()


@dataclass
class Desk:
    env: dict[str, str]
    settings: Settings
    store: Store
    directory: Directory = field(repr=False)
    sandbox: Sandbox
    vendor_account: str
    statements: Statements = field(repr=False)

    # -- the ledger ------------------------------------------------------------------------

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """A statement of the test's own, over a connection of its own."""
        return self.statements(statement, params)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        url = self.settings.database_url.replace("+psycopg", "")
        return psycopg.connect(url, autocommit=autocommit, row_factory=dict_row)

    def forward(self, seconds: float) -> None:
        """Moves the database's clock."""
        self.sql("UPDATE outbox.test_clock SET offset_s = offset_s + %(s)s", {"s": seconds})

    def quiet(self) -> None:
        """Moves on until nothing that was sent can still land."""
        policy = self.settings.policy
        self.forward(policy.lease_s + policy.quiet_after_s(self.contract) + 1)

    @property
    def contract(self) -> Any:
        found = self.directory.contract("stripe")
        assert found is not None
        return found

    def enqueue(self, tool: WriteTool = CHARGE, tenant: str = "acme", **args: Any) -> UUID:
        """A new intent, never sent."""
        if tool is CHARGE:
            args = {"invoice_id": f"in_{next(_numbers)}", "amount": 1200, "currency": "usd", **args}
        with self.connect(autocommit=False) as connection:
            answer = Outbox(self.settings).enqueue(
                connection, tool, Scope(tenant=tenant, run_id="run-1"), args
            )
        return answer.intent_id

    def keep(self, event_id: str, state: str, body: bytes | None = b"{}", **more: Any) -> int:
        """An event as it lies in the inbox; its number there."""
        with self.store.transaction() as tx:
            assert inbox.keep(
                tx,
                vendor="stripe",
                account="default",
                mode="test",
                event_id=event_id,
                kind="payment_intent.succeeded",
                body=body,
                state=state,
                **more,
            )
        (row,) = self.sql(
            "SELECT id FROM outbox.webhook_inbox WHERE event_id = %(id)s", {"id": event_id}
        )
        return int(row["id"])

    def claim(self) -> list[Intent]:
        """Leases what is due, as a worker does."""
        policy = self.settings.policy
        claimer = Claimer(
            self.store, self.directory.sendable(), owner="worker-1", lease_s=policy.lease_s
        )
        return claimer.claim(64)

    def leased(self, intent_id: UUID) -> Intent:
        """The one row, leased with whatever else was due."""
        return next(row for row in self.claim() if row.id == intent_id)

    def perform(self, row: Intent) -> Outcome:
        """The call itself, for real."""
        reached = self.directory.reach(row.vendor, row.account)
        assert reached is not None
        return reached[0].perform(row.call(reached[1]))

    def record(self, row: Intent, outcome: Outcome) -> None:
        with self.store.transaction() as tx:
            records.record(tx, [records.Ended(row, outcome, started_at=row.last_sent_at)])

    def lost(self, *, landed: bool = False, **args: Any) -> tuple[UUID, str]:
        """An intent in doubt and, if it landed, the object that the vendor made of it."""
        intent_id = self.enqueue(**args)
        row = self.leased(intent_id)
        object_id = ""
        if landed:
            outcome = self.perform(row)
            assert isinstance(outcome, Receipt)
            object_id = outcome.reading.receipt_id
        self.record(row, Lost("no reply"))
        return intent_id, object_id

    def succeeded(self, **args: Any) -> tuple[UUID, str]:
        """An intent that landed and was answered."""
        intent_id = self.enqueue(**args)
        row = self.leased(intent_id)
        outcome = self.perform(row)
        assert isinstance(outcome, Receipt)
        self.record(row, outcome)
        return intent_id, outcome.reading.receipt_id

    def escalate(self, intent_id: UUID, *reasons: str, **detail: Any) -> UUID:
        """Asks a person about an intent."""
        with self.store.transaction() as tx:
            row = intents.lock(tx, intent_id)
            assert row is not None
            return escalations.open_for_intent(tx, row, list(reasons or ("ttl",)), detail)

    def row(self, intent_id: UUID) -> Intent:
        with self.store.transaction() as tx:
            found = intents.read(tx, intent_id)
        assert found is not None
        return found

    def escalation(self, escalation_id: UUID) -> dict[str, Any]:
        (found,) = self.sql(
            "SELECT * FROM outbox.escalations WHERE id = %(id)s", {"id": escalation_id}
        )
        return found

    def events(self, intent_id: UUID, kind: str) -> list[dict[str, Any]]:
        return self.sql(
            "SELECT * FROM outbox.events WHERE intent_id = %(id)s AND kind = %(kind)s ORDER BY id",
            {"id": intent_id, "kind": kind},
        )

    @contextlib.contextmanager
    def held(self, table: str, row_id: UUID) -> Iterator[Callable[[int], None]]:
        """Holds a row's lock. The block's value waits until so many others want it: then each has
        read what it judges, and none has written."""
        with self.connect(autocommit=False) as connection:
            connection.execute(f"SELECT FROM outbox.{table} WHERE id = %s FOR UPDATE", [row_id])
            yield self._until_waiting
            connection.rollback()

    def _until_waiting(self, count: int) -> None:
        give_up = time.monotonic() + WAIT_S
        waiting = (
            "SELECT count(*) AS n FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with self.connect() as connection:
            while connection.execute(waiting).fetchall()[0]["n"] < count:
                assert time.monotonic() < give_up, "nobody waits for the row"
                select.select([], [], [], 0.01)

    def settlements(self, intent_id: UUID) -> list[tuple[str, str, str]]:
        rows = self.sql(
            "SELECT kind, status, told FROM outbox.settlements WHERE intent_id = %(id)s "
            "ORDER BY id",
            {"id": intent_id},
        )
        return [(r["kind"], r["status"], r["told"]) for r in rows]

    # -- the command line ------------------------------------------------------------------

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """The console script with pipes, as a script of somebody's starts it."""
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *args],
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, stdin: str = "", **env: str) -> Ran:
        return ended(self.start(*args, **env), stdin)

    def terminal(
        self, *args: str, columns: int = 80, answer: str = "", no_stderr: bool = False, **env: str
    ) -> Ran:
        """The console script on a terminal of its own; stderr apart, unless asked to look on."""
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *args],
            env={**self.env, "COLUMNS": str(columns), "TERM": "xterm-256color", **env},
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(slave)
        if answer:
            os.write(master, answer.encode())
        out = read_terminal(master, process)
        assert process.stderr is not None
        with process.stderr as pipe:
            err = pipe.read().decode()
        os.close(master)
        return Ran(process.wait(WAIT_S), out, err)

    def invoke(self, *args: str, **env: str) -> Ran:
        """The same command in this process, for breadth."""
        result: Result = CliRunner(env={**self.env, **env}).invoke(root, list(args))
        return Ran(result.exit_code, result.stdout, result.stderr)


@contextlib.contextmanager
def open_desk(database: str, sandbox: Sandbox) -> Iterator[Desk]:
    name = f"desk{os.getpid()}x{next(_numbers)}"
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database,
        "STRIPE_API_KEY": sandbox.api_key(name),
        "STRIPE_API_BASE": sandbox.url,
        "OUTBOX_ACTOR": "alice",
        "OUTBOX_LOCK_TIMEOUT_S": "20",
        "OUTBOX_STATEMENT_TIMEOUT_S": "20",
    }
    settings = Settings.from_env(env)
    vendor = build("stripe", connect_s=2.0, read_s=5.0)
    store = Store(settings)
    directory = Directory(settings, {"stripe": vendor})
    account = settings.accounts["stripe", "default"]
    directory.learn("stripe", replace(account, vendor_account=f"acct_{name}"))
    statements = Statements(database)
    yield Desk(env, settings, store, directory, sandbox, f"acct_{name}", statements)
    statements.close()
    store.close()
    vendor.close()

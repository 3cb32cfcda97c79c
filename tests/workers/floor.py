"""The consuming side in one process: a real ledger, the sandbox vendor, the real Stripe adapter,
and a database clock that can be moved. Nothing runs by itself; the test says what happens next."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

import psycopg

from outbox import Outbox, Scope, Settings, WriteTool
from outbox.contract import Vendor
from outbox.doorbell import Doorbell
from outbox.errors import Unreachable
from outbox.store.connection import Store
from outbox.testing import Clock
from resolvers import escalating, joining, sweeping
from resolvers.directory import Directory
from resolvers.looking import Looker
from tests.statements import Statements
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from workers import testing
from workers.sender import Sender
from workers.testing import WEBHOOK_SECRET, OutboxBox, open_box

WAIT_S = 30.0
SECRET = WEBHOOK_SECRET
new_account = testing.new_account
CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)
# Look-ups (lists and events), and not the read that tells whose credential it is.
READS = "GET /v1/[pe]*"
CARD: Mapping[str, Any] = {
    "amount": 4900,
    "currency": "usd",
    "customer": "cus_demo",
    "confirm": True,
    "payment_method": "pm_card_visa",
    "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
}
# Small waits between a vendor's lost answer and the next step, so that a test waits little.
FAST: Mapping[str, str] = {
    "OUTBOX_PROFILE": "demo",
    "OUTBOX_NOT_SENT_FIRST_S": "0.05",
    "OUTBOX_NOT_SENT_MAX_S": "0.2",
    "OUTBOX_LOOKS_S": "0.05,0.1,0.2",
    "OUTBOX_RESENDS_S": "0.05,0.1,0.2",
}
# The real periods: time passes by the clock that the test moves.
PRODUCTION: Mapping[str, str] = {}
_numbers = itertools.count()


def in_lane(on_doubt: Literal["hold", "continue"] = "hold") -> WriteTool:
    """A charge in the lane of its customer."""
    return WriteTool(
        f"charge_in_lane_{on_doubt}",
        vendor="stripe",
        operation="payment_intents.create",
        side_effect="charge",
        identity=("invoice_id",),
        guard=("amount", "currency", "customer"),
        money=("amount", "currency"),
        lane=("customer",),
        on_doubt=on_doubt,
    )


def wait_until(holds: Callable[[], object], limit_s: float = WAIT_S) -> None:
    """Asks again every 20 ms; fails when it never came true."""
    limit = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < limit, "it never came true"
        threading.Event().wait(0.02)


def query(
    database: str, statement: str, params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Runs a statement of the test's own, over a connection of its own."""
    statements = Statements(database)
    try:
        return statements(statement, params)
    finally:
        statements.close()


def enqueue(
    settings: Settings,
    count: int = 1,
    *,
    over: psycopg.Connection[Any] | None = None,
    tool: WriteTool = CHARGE,
    run: str = "",
    account: str = "default",
    **args: Any,
) -> list[UUID]:
    """New intents, each for an invoice of its own, in one committed transaction: ``over`` a
    connection that is open, or over a new one."""
    outbox = Outbox(settings)
    run = run or f"run-{next(_numbers)}"
    with contextlib.ExitStack() as closing:
        if over is None:
            url = settings.database_url.replace("+psycopg", "")
            over = closing.enter_context(psycopg.connect(url))
        else:
            closing.enter_context(over.transaction())
        answers = outbox.enqueue_many(
            over,
            tool,
            [
                (
                    Scope(tenant="acme", run_id=run, account=account),
                    {**CARD, "invoice_id": f"in_{next(_numbers)}", **args},
                )
                for _ in range(count)
            ],
        )
    outbox.close()
    return [answer.intent_id for answer in answers]


@dataclass
class Floor:
    """What a test of the consuming side needs beyond a box: many senders, single jobs, and reads of
    every table."""

    box: OutboxBox
    statements: Statements = field(repr=False)
    told_to_stop: threading.Event = field(default_factory=threading.Event)
    senders: list[Sender] = field(default_factory=list)
    lookers: list[Looker] = field(default_factory=list)
    # What a test provokes on purpose: checks of the oracle that may have failed at its end.
    provoked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.settings: Settings = self.box.settings
        self.sandbox: Sandbox = self.box.sandbox
        self.account: str = self.box.account
        self.clock: Clock = self.box.clock
        self.store: Store = self.box.store
        self.directory: Directory = self.box.directory

    @cached_property
    def sender(self) -> Sender:
        """The sender of this floor."""
        return self.new_sender()

    @cached_property
    def looker(self) -> Looker:
        """The resolver of this floor."""
        return self.new_looker()

    def new_sender(self, store: Store | None = None) -> Sender:
        """One more sender, as another process has one."""
        made = Sender(
            store or self.store,
            self.directory,
            Doorbell("", timeout_s=0.1),
            owner=f"sender-{len(self.senders)}",
            stopping=self.told_to_stop.is_set,
            jitter=lambda: 0.5,
        )
        self.senders.append(made)
        return made

    def new_looker(self) -> Looker:
        """One more resolver."""
        made = Looker(self.store, self.directory)
        self.lookers.append(made)
        return made

    def enqueue(self, count: int = 1, **args: Any) -> list[UUID]:
        """New charges; ``tool`` and ``run`` besides the arguments of the charge."""
        return enqueue(self.settings, count, over=self.statements.connection(), **args)

    def one(self, **args: Any) -> UUID:
        """One new charge."""
        return self.enqueue(1, **args)[0]

    def drain(self) -> int:
        """One drain of the first sender; what it cut comes back and is recorded too."""
        return self.sender.drain(budget_s=WAIT_S)

    def drain_beside(self, sender: Sender | None = None) -> threading.Thread:
        """The same in a thread of its own. A database that is away ends it; that is no failure."""
        draining = sender or self.sender

        def run() -> None:
            with contextlib.suppress(Unreachable):
                draining.drain(budget_s=WAIT_S)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def expire(self) -> None:
        """Expired leases, ended epochs, re-sends that may not go."""
        sweeping.expire_once(self.store, self.directory)
        sweeping.withdraw_once(self.store, self.directory)

    def look(self) -> int:
        """Every look-up that is due, to its end."""
        return self.looker.once()

    def escalate(self) -> None:
        """What is due for a person."""
        escalating.escalate_once(self.store, self.directory)

    def round(self) -> None:
        """One round of everything."""
        self.expire()
        joining.join_once(self.store, self.directory)
        self.look()
        self.escalate()
        self.drain()

    def settle(self, limit_s: float = WAIT_S) -> None:
        """Rounds until nothing is unsettled."""

        def settled() -> bool:
            self.round()
            return not self.sql("SELECT id FROM outbox.intents WHERE settled_at IS NULL LIMIT 1")

        wait_until(settled, limit_s)

    def advance(self, seconds: float) -> None:
        """Time passes for the database and for the vendor, or goes back."""
        (moved,) = self.sql(
            "UPDATE outbox.test_clock SET offset_s = offset_s + %(s)s RETURNING offset_s",
            {"s": seconds},
        )
        self.sandbox.set_account(self.account, clock_offset_s=moved["offset_s"])

    def jump(self, intent_id: UUID) -> float:
        """Time passes until the row is due; returns how much."""
        (row,) = self.sql(
            "SELECT EXTRACT(EPOCH FROM due_at - outbox.clock())::float8 AS left_s "
            "FROM outbox.intents WHERE id = %(id)s",
            {"id": intent_id},
        )
        left_s = max(float(row["left_s"]) + 0.1, 0.0)
        self.advance(left_s)
        return left_s

    def until(self, seconds: float, intent_id: UUID) -> None:
        """Time passes until so many seconds after the row's first claim."""
        (row,) = self.sql(
            "SELECT EXTRACT(EPOCH FROM outbox.clock() - first_sent_at)::float8 AS age_s "
            "FROM outbox.intents WHERE id = %(id)s",
            {"id": intent_id},
        )
        self.advance(seconds - float(row["age_s"]))

    def in_zone(self, zone: str, now: str) -> None:
        """A database whose administrator chose that zone, at that moment."""
        self.sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', "
            f"current_database(), '{zone}'); END $$"
        )
        (row,) = self.sql(
            f"SELECT EXTRACT(EPOCH FROM TIMESTAMPTZ '{now}' - outbox.clock())::float8 AS left_s"
        )
        self.advance(float(row["left_s"]))

    # -- what is there -----------------------------------------------------------------------

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Runs a statement of the test's own."""
        return self.statements(statement, params)

    def row(self, intent_id: UUID) -> dict[str, Any]:
        """The intent as the database has it."""
        (row,) = self.sql("SELECT * FROM outbox.intents WHERE id = %(id)s", {"id": intent_id})
        return row

    def status(self, intent_id: UUID) -> str:
        """The intent's status."""
        return str(self.row(intent_id)["status"])

    def statuses(self) -> dict[str, int]:
        """How many intents there are of each status."""
        rows = self.sql("SELECT status, count(*) AS n FROM outbox.intents GROUP BY status")
        return {row["status"]: row["n"] for row in rows}

    def attempts(self, intent_id: UUID) -> list[dict[str, Any]]:
        """The intent's attempts in order."""
        return self.sql(
            "SELECT * FROM outbox.attempts WHERE intent_id = %(id)s ORDER BY id", {"id": intent_id}
        )

    def outcomes(self, intent_id: UUID) -> list[str]:
        """What each attempt came to; a late word is marked."""
        return [a["outcome"] + (" (late)" if a["late"] else "") for a in self.attempts(intent_id)]

    def escalations(self) -> list[dict[str, Any]]:
        """Every question, the oldest first."""
        return self.sql("SELECT * FROM outbox.escalations ORDER BY opened_at, id")

    def posts(self, intent_id: UUID | None = None) -> list[dict[str, Any]]:
        """The writes that reached the vendor, of one intent or of all."""
        key = bytes(self.row(intent_id)["key"]).hex() if intent_id else None
        return [
            r
            for r in self.sandbox.requests(self.account, key=key)
            if r["method"] == "POST" and r["origin"] == "client"
        ]

    def reads(self) -> list[dict[str, Any]]:
        """The reads that reached the vendor; whose the account is was asked before."""
        reads = [r for r in self.sandbox.requests(self.account) if r["method"] == "GET"]
        return [r for r in reads if r["path"] != "/v1/account"]

    def pages(self) -> list[dict[str, Any]]:
        """Every page that was written, in order."""
        return self.sql("SELECT dedup_key, action, body FROM outbox.pages ORDER BY id")

    def effects(self, intent_id: UUID) -> int:
        """How often the intent took effect at the vendor."""
        found = self.sandbox.oracle(self.account)["effects_by_intent"].get(str(intent_id))
        return int(found["count"]) if found else 0

    def violations(self) -> list[dict[str, Any]]:
        """Promises that the wire shows broken; none, always."""
        found: list[dict[str, Any]] = self.sandbox.oracle(self.account)["violations"]
        return found


@contextmanager
def open_floor(
    database: str,
    sandbox: Sandbox,
    env: Mapping[str, str] = FAST,
    *,
    vendor: Callable[[Vendor], Vendor] = lambda built: built,
    pool: int = 12,
    **more: str,
) -> Iterator[Floor]:
    """A floor over a migrated database and an account of its own. ``vendor`` may wrap the
    adapter; ``more`` are further settings by name."""

    def directory_of(settings: Settings) -> Directory:
        policy = settings.policy
        built = build("stripe", connect_s=policy.connect_s, read_s=policy.call_deadline_s)
        return Directory(settings, {"stripe": vendor(built)})

    with open_box(
        database, sandbox, {**env, **more}, directory_of=directory_of, connections=pool
    ) as box:
        floor = Floor(box, Statements(database))
        try:
            yield floor
        finally:
            for sender in floor.senders:
                sender.close()
            for looker in floor.lookers:
                looker.close()
            floor.statements.close()
    # Whatever a test did, the wire must show no broken promise.
    assert [v for v in floor.violations() if v["check"] not in floor.provoked] == []

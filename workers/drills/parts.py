"""What a drill runs on: an embedded Postgres, the sandbox vendor as a process of its own, and
outboxes over both. No setting of the user's is read, and no database of the user's is touched."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from outbox import Answer, Scope, WriteTool
from outbox.doorbell import Doorbell
from outbox.store import intents, reading
from outbox.store.connection import Store
from outbox.store.due import next_due_in_s
from outbox.store.intents import Intent
from outbox.testing import Databases, settable_clock
from resolvers.directory import Directory
from vendors.sandbox.client import Sandbox
from workers.drills.report import Progress
from workers.sender import Sender
from workers.testing import OutboxBox, open_box, open_servers

TENANT = "drill"
# Held until the drill lets it go, or ends.
HELD_S = 1e6


class Parts:
    """The running parts of one drill."""

    def __init__(self, folder: Path, sandbox: Sandbox, databases: Databases) -> None:
        self.folder = folder
        self.sandbox = sandbox
        self._databases = databases
        self._template = databases.template()

    @contextmanager
    def box(self, env: Mapping[str, str] | None = None) -> Iterator[OutboxBox]:
        """An outbox with a database and a vendor's account of its own; ``env`` are settings by
        name. Time passes when it is told to."""
        settings = {"OUTBOX_PAGERS": "none", **(env or {})}
        with (
            self._databases.fresh(self._template) as url,
            open_box(url, self.sandbox, settings, clock=settable_clock(url)) as box,
        ):
            yield box


@contextmanager
def open_parts(progress: Progress) -> Iterator[Parts]:
    """Starts the parts, and stops them. Raises ``ServersError`` where there is no Postgres to
    start, ``SandboxRefused``."""
    progress.say("starting Postgres and the sandbox vendor")
    with ExitStack() as stopping:
        folder = Path(stopping.enter_context(tempfile.TemporaryDirectory(prefix="outbox-drill-")))
        servers = stopping.enter_context(open_servers())
        databases = Databases(servers.database_url)
        stopping.callback(databases.close)
        sandbox = stopping.enter_context(Sandbox.start(folder / "vendor.sqlite"))
        yield Parts(folder, sandbox, databases)


def ask(
    box: OutboxBox,
    tool: WriteTool,
    args: Mapping[str, Any],
    *,
    epoch: str = "",
    store: Store | None = None,
) -> Answer:
    """What an agent's tool does: records the intent in a transaction of its own, over ``store``
    where it is not the box's. Raises what ``enqueue`` raises, and ``Unreachable``."""
    scope = Scope(tenant=TENANT, run_id="run_1", epoch=epoch)
    with (store or box.store).transaction() as tx:
        return box.outbox.enqueue(tx.connection, tool, scope, args)


def next_moment(box: OutboxBox) -> bool:
    """Lets time pass until something falls due, and does it; nothing is sent. False where nothing
    waits."""
    with box.store.transaction() as tx:
        wait_s = next_due_in_s(tx)
    if wait_s is None:
        return False
    box.travel(wait_s)
    box.resolve()
    return True


def row_of(box: OutboxBox, answer: Answer) -> Intent:
    """The intent as the ledger has it."""
    with box.store.transaction() as tx:
        row = intents.read(tx, answer.intent_id)
    assert row is not None, "an answer is of a row"
    return row


def attempts_of(box: OutboxBox, answer: Answer) -> list[dict[str, Any]]:
    """Each attempt of the intent: lease_no, outcome, late and more."""
    with box.store.transaction() as tx:
        return reading.attempts(tx, answer.intent_id)


def history_of(box: OutboxBox, answer: Answer) -> list[dict[str, Any]]:
    """All that happened to the intent, in order: at, actor, kind, what, detail."""
    with box.store.transaction() as tx:
        return reading.history(tx, answer.intent_id)


def posts(sandbox: Sandbox, account: str) -> list[dict[str, Any]]:
    """The writes that clients sent; what the transport sent once more is nobody's doing."""
    return [
        r for r in sandbox.requests(account) if r["method"] == "POST" and r["origin"] == "client"
    ]


@contextmanager
def another_worker(
    box: OutboxBox, *, store: Store | None = None, directory: Directory | None = None
) -> Iterator[Sender]:
    """A second consumer of the same ledger, as another process has one."""
    sender = Sender(
        store or box.store,
        directory or box.directory,
        Doorbell("", timeout_s=box.settings.redis_timeout_s),
        owner="another worker",
        stopping=lambda: False,
        jitter=lambda: 0.5,
    )
    try:
        yield sender
    finally:
        sender.close()

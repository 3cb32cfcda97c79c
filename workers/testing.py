"""A box for tests of code that uses the outbox: a ledger, the fake vendor and the consuming side,
in the test's own process. Nothing runs by itself; the test says what happens next.

    def test_a_lost_answer_charges_once(outbox_box: OutboxBox) -> None:
        outbox_box.fault("lost_ack", attempts=[1])
        intent = collect(outbox_box.outbox, "in_1")     # the code that is tested
        outbox_box.drain()                              # sent; the answer is lost
        outbox_box.travel(5)                            # the first look-up is due after 5 s
        outbox_box.resolve()
        outbox_box.assert_one_effect(intent)

The pytest plugin makes the fixture; `open_box` is the same without pytest.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from outbox import Answer, Invalid, Outbox, Settings
from outbox.doorbell import Doorbell
from outbox.store import intents, listing
from outbox.store.connection import Store
from outbox.testing import Clock, prepare
from resolvers import escalating, joining, pagers, paging, sweeping
from resolvers.directory import Directory
from resolvers.identifying import identify
from resolvers.looking import Looker
from resolvers.receiving import OK, receive
from vendors.sandbox.client import Sandbox
from vendors.sandbox.sender import signature
from workers.sender import Sender
from workers.servers import Servers
from workers.testing_effects import Effects, effects_of
from workers.testing_settling import Worked, settle

WEBHOOK_SECRET = "whsec_of_the_box"  # noqa: S105 - the sandbox's, which guards nothing
_MEMORY = Path("/dev/shm")  # noqa: S108 - the servers make a private folder in it
_ROOM_BYTES = 2 << 30
_DRAIN_S = 60.0
_EVERYTHING = 10_000
_numbers = itertools.count()


class OutboxBox:
    """One test's outbox. ``outbox`` is what the code under test takes; ``database_url`` is
    SQLAlchemy's URL of the database it is in, ``settings`` the rest; ``sandbox`` is the vendor,
    shared with other tests, and ``account`` this test's own account at it.

    ``store`` and ``directory`` are the consuming side's connections and adapters.
    """

    def __init__(
        self,
        settings: Settings,
        sandbox: Sandbox,
        account: str,
        clock: Clock,
        store: Store,
        directory: Directory,
    ) -> None:
        self.settings = settings
        self.sandbox = sandbox
        self.account = account
        self.clock = clock
        self.store = store
        self.directory = directory
        self.outbox = Outbox(settings)
        self._delivered: set[str] = set()

    @property
    def database_url(self) -> str:
        """SQLAlchemy's URL of the test's database."""
        return self.settings.database_url

    # -- what goes wrong, and when ---------------------------------------------------------------

    def fault(self, kind: str, **fields: Any) -> None:
        """Lets the vendor or the way to it fail for this test's account: "lost_ack",
        "lost_request", "hang", "stored_500_no_object", "rate_limited_429" ... ``attempts=[1]``
        strikes each key's first request only. `vendors.sandbox.client` has all kinds and fields;
        an unknown one raises ``SandboxRefused``."""
        self.sandbox.fault(kind, account=self.account, **fields)

    def travel(self, seconds: float) -> None:
        """Lets so much time pass, for the database and for the vendor. Nothing happens by itself:
        ``drain`` and ``resolve`` do what has become due."""
        if not 0 <= seconds < float("inf"):
            raise Invalid("seconds", "must be a number from 0: time does not go back")
        self.sandbox.set_account(self.account, clock_offset_s=self.clock.advance(seconds))

    # -- what a worker does ------------------------------------------------------------------

    def drain(self) -> int:
        """Sends what is due, as a worker does, until nothing is; returns how many intents were
        claimed. A call lasts as long as its deadline at the most."""
        return self._sender.drain(budget_s=_DRAIN_S)

    def resolve(self) -> int:
        """Runs every resolver job until none has anything due: ended leases, webhooks that came,
        look-ups, questions, pages. Returns how much was done. A re-send that it allows goes out
        with the next ``drain``."""
        total = 0
        while done := sum(job() for job in self._jobs):
            total += done
        return total

    def deliver_webhooks(self) -> int:
        """Delivers the vendor's events since the last call, oldest first, each signed and once, to
        the receiver that the web process has; returns how many. ``resolve`` joins them."""
        fresh = [
            event
            for event in self.sandbox.objects(self.account, "events")
            if event["id"] not in self._delivered
        ]
        with self.store.transaction() as tx:
            now_epoch_s = int(intents.now(tx).timestamp())
        for event in fresh:
            self._deliver(event, now_epoch_s)
        return len(fresh)

    def settle(self, within_s: float = 3600.0) -> bool:
        """Lets time pass from one due moment to the next, working and delivering webhooks, until
        every intent is settled, or until ``within_s`` have passed; returns whether all are."""
        parts = Worked(self.store, self.drain, self.resolve, self.deliver_webhooks, self.travel)
        return settle(parts, within_s)

    # -- what came of it ---------------------------------------------------------------------

    def assert_one_effect(self, intent: Answer | UUID | str | bytes) -> None:
        """Fails unless the vendor applied this intent exactly once and the ledger says so, with
        that very object as the receipt. ``intent`` is an answer, an id or an idempotency key."""
        __tracebackhide__ = True  # the test's own line is the one to show
        effects = self._effects(intent)
        if problem := effects.not_one():
            raise AssertionError(effects.told(problem))

    def assert_no_effect(self, intent: Answer | UUID | str | bytes) -> None:
        """Fails if the vendor applied this intent, or if the ledger says that it did."""
        __tracebackhide__ = True  # the test's own line is the one to show
        effects = self._effects(intent)
        if problem := effects.not_none():
            raise AssertionError(effects.told(problem))

    def escalations(self) -> list[dict[str, Any]]:
        """The open questions for a person: id, intent_id, reasons, opened_at and more."""
        with self.store.transaction() as tx:
            return listing.escalations(tx, limit=_EVERYTHING)

    def pages(self) -> list[dict[str, Any]]:
        """Every page that was sent, in order: action, severity, summary, details and more."""
        targets = [spec.partition(":") for spec in self.settings.pagers or ()]
        files = [Path(rest) for scheme, _, rest in targets if scheme == "file"]
        written = [path.read_text() for path in files if path.exists()]
        return [json.loads(line) for text in written for line in text.splitlines()]

    def close(self) -> None:
        """Ends threads and connections; look-ups that hang are cut."""
        if "_sender" in self.__dict__:
            self._sender.close()
        if "_looker" in self.__dict__:
            self._looker.close(limit_s=0.0)
        self.outbox.close()
        self.directory.close()
        self.store.close()

    # -- the parts, built when first used --------------------------------------------------------

    @cached_property
    def _sender(self) -> Sender:
        return Sender(
            self.store,
            self.directory,
            Doorbell("", timeout_s=self.settings.redis_timeout_s),
            owner="box",
            stopping=lambda: False,
            jitter=lambda: 0.5,
        )

    @cached_property
    def _looker(self) -> Looker:
        return Looker(self.store, self.directory)

    @cached_property
    def _jobs(self) -> tuple[Callable[[], int], ...]:
        store, directory = self.store, self.directory
        targets = pagers.parse(self.settings)
        return (
            lambda: sweeping.expire_once(store, directory),
            lambda: sweeping.withdraw_once(store, directory),
            lambda: joining.join_once(store, directory),
            self._looker.once,
            lambda: escalating.escalate_once(store, directory),
            lambda: paging.page_once(store, targets, self.settings),
        )

    def _deliver(self, event: dict[str, Any], now_epoch_s: int) -> None:
        body = json.dumps(event).encode()
        status, text = receive(
            self.store,
            self.directory,
            vendor="stripe",
            account="default",
            headers={"Stripe-Signature": signature([WEBHOOK_SECRET], body, now_epoch_s)},
            body=body,
        )
        assert status == OK, f"the webhook {event['id']} was answered with {status}: {text}"
        self._delivered.add(event["id"])

    def _effects(self, intent: Answer | UUID | str | bytes) -> Effects:
        with self.store.transaction() as tx:
            return effects_of(tx, self.sandbox, self.account, intent)


def new_account() -> str:
    """A vendor account that no other test uses, in any process."""
    return f"b{os.getpid()}x{next(_numbers)}"


@contextmanager
def open_box(
    database_url: str,
    sandbox: Sandbox,
    env: Mapping[str, str] | None = None,
    *,
    directory_of: Callable[[Settings], Directory] = Directory.of,
    connections: int = 12,
    clock: Clock | None = None,
) -> Iterator[OutboxBox]:
    """A box over a migrated database and an account of its own. ``env`` are settings by name;
    ``clock`` is that of a database which the caller has just made: it is used as it stands.

    Raises ``Denied`` for a database that is no test's or an environment with live credentials,
    ``SettingsError`` for a schema or a setting that is wrong, ``Unreachable``.
    """
    clock = clock or prepare(database_url)
    account = new_account()
    sandbox.set_account(account, any_customer=True)
    settings = Settings.from_env(
        {
            "DATABASE_URL": database_url,
            "STRIPE_API_KEY": sandbox.api_key(account),
            "STRIPE_API_BASE": sandbox.url,
            "STRIPE_WEBHOOK_SECRET": WEBHOOK_SECRET,
            **(env or {}),
        }
    )
    store, directory = Store(settings, size=connections), directory_of(settings)
    box = OutboxBox(settings, sandbox, account, clock, store, directory)
    try:
        problems = [
            problem for _, _, problem in identify(store, directory, directory.policy.connect_s)
        ]
        assert not problems, problems
        yield box
    finally:
        box.close()


@contextmanager
def open_servers(*, valkey: bool = False) -> Iterator[Servers]:
    """Embedded servers for tests alone: in memory where there is room, and without the waits that
    keep rows through a loss of power. Raises ``ServersError``."""
    with _in_memory():
        started = Servers.start(
            valkey=valkey, postgres_settings={"fsync": "off", "max_connections": "200"}
        )
    with started:
        yield started


@contextmanager
def _in_memory() -> Iterator[None]:
    # The servers' data lie in their run folder, so that whatever kills us leaves none behind, and
    # that folder is made where temporary ones are.
    before = tempfile.tempdir
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        tempfile.tempdir = str(_MEMORY)
    try:
        yield
    finally:
        tempfile.tempdir = before

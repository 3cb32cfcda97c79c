"""The outbox's own parts over the LIMBO vendor, on a clock that is moved: hours pass in seconds.

The ledger is an embedded Postgres of the drill's own, the vendor a process of its own; the sender
and the resolvers are the product's, in this process, and nothing runs by itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

from outbox import Outbox, Settings, schema
from outbox.answers import Answer, answer_of
from outbox.doorbell import Doorbell
from outbox.store import listing, reading
from outbox.store.connection import Store
from outbox.store.due import next_due_in_s
from outbox.testing import settable_clock
from resolvers import escalating, pagers, paging, sweeping
from resolvers.directory import Directory
from resolvers.looking import Looker
from vendors.sandbox import RECIPES
from vendors.sandbox.limbo_client import Limbo
from vendors.sandbox.limbo_paths import CONTRACTS
from workers.sender import Sender
from workers.testing import open_servers

VENDORS = ("limbo_keys", "limbo_keys_unread", "limbo_plain", "limbo_unread")
TENANT = "drill"
_CONNECTIONS = 12
_DRAIN_S = 600.0
# Time passes from one due moment to the next, and by no less than this and this part of what has
# passed: rows that fall due one after the other are done together, a little later than they could.
_LEAST_S, _PART = 5.0, 0.2
_MOST_ROWS = 100_000
# One page an intent, so that each can be counted; and no breaker: the drill's faults are its own
# doing, and one call's outage shall not hold up the calls beside it.
_SETTINGS = {"OUTBOX_PAGE_GROUP_FROM": "1000000", "OUTBOX_BREAKER_FAILURES": "1000000000"}


class Simulated:
    """A ledger, its consuming side and the vendor. ``outbox`` is the agent's side."""

    def __init__(self, settings: Settings, limbo: Limbo, pages: Path) -> None:
        self.limbo = limbo
        self.outbox = Outbox(settings)
        self.store = Store(settings, size=_CONNECTIONS)
        self.elapsed_s = 0.0
        self._pages = pages
        self._clock = settable_clock(settings.database_url)
        self._directory = directory = Directory.of(settings)
        bell = Doorbell("", timeout_s=settings.redis_timeout_s)
        self._sender = Sender(
            self.store,
            directory,
            bell,
            owner="drill",
            stopping=lambda: False,
            jitter=lambda: 0.5,
        )
        self._looker = Looker(self.store, directory)
        targets = pagers.parse(settings)
        self._jobs: tuple[Callable[[], int], ...] = (
            lambda: sweeping.expire_once(self.store, directory),
            lambda: sweeping.withdraw_once(self.store, directory),
            self._looker.once,
            lambda: escalating.escalate_once(self.store, directory),
            lambda: paging.page_once(self.store, targets, settings),
        )

    def work(self) -> int:
        """One round of what a worker does: every resolver job once, then what is due is sent.
        Returns how much was done."""
        return sum(job() for job in self._jobs) + self._sender.drain(budget_s=_DRAIN_S)

    def pass_time(self, until_s: float) -> None:
        """Works, and lets time pass, until so many seconds have passed or nothing waits."""
        while self.work():
            pass
        while self.elapsed_s < until_s:
            with self.store.transaction() as tx:
                due_s = next_due_in_s(tx)
            if due_s is None:
                if not self.work():
                    return
                continue
            step_s = max(due_s, _LEAST_S, self.elapsed_s * _PART)
            self.travel(min(step_s, until_s - self.elapsed_s))
            # What this leaves is done at the next step.
            self.work()
        while self.work():
            pass

    def travel(self, seconds: float) -> None:
        """So much time passes, for the vendor and for the database."""
        self.limbo.advance(seconds)
        self._clock.advance(seconds)
        self.elapsed_s += seconds

    def answers(self, intent_ids: Sequence[UUID]) -> dict[UUID, Answer]:
        """What the agent is told of each now."""
        with self.store.transaction() as tx:
            return {i: answer_of(row) for i, row in reading.look(tx, intent_ids).items()}

    def asked(self) -> set[UUID]:
        """The intents of which a person is asked now."""
        return set(self._questions(closed=False))

    def paged(self) -> set[UUID]:
        """The intents of which a person was ever paged."""
        lines = self._pages.read_text("utf-8").splitlines() if self._pages.exists() else []
        sent = [page for page in map(json.loads, lines) if page["action"] == "trigger"]
        marks = "\n".join(page["dedup_key"] for page in sent)
        return {i for i, question in self._questions(closed=True).items() if question in marks}

    def _questions(self, *, closed: bool) -> dict[UUID, str]:
        with self.store.transaction() as tx:
            found = listing.escalations(tx, limit=_MOST_ROWS, everything=closed)
        return {row["intent_id"]: str(row["id"]) for row in found if row["intent_id"]}

    def close(self) -> None:
        """Ends threads and connections."""
        self._sender.close()
        self._looker.close(limit_s=0.0)
        self._directory.close()
        self.outbox.close()
        self.store.close()


@contextmanager
def open_simulated() -> Iterator[Simulated]:
    """All of it, started for one drill and ended with it, under the outbox's own defaults. Raises
    ``ServersError`` where no Postgres can be started, ``LimboRefused``."""
    with ExitStack() as closing:
        servers = closing.enter_context(open_servers())
        schema.upgrade(servers.database_url)
        limbo = closing.enter_context(Limbo.start())
        folder = servers.run_dir / "drill"
        folder.mkdir(mode=0o700)
        pages = folder / "pages.jsonl"
        settings = Settings.from_env(
            {
                "DATABASE_URL": servers.database_url,
                "OUTBOX_VENDORS": str(_recipes(folder)),
                "OUTBOX_ACCOUNTS": str(_accounts(folder, limbo)),
                "OUTBOX_PAGERS": f"file:{pages}",
                **_SETTINGS,
            }
        )
        simulated = Simulated(settings, limbo, pages)
        closing.callback(simulated.close)
        yield simulated


def _recipes(folder: Path) -> Path:
    """A folder with our recipes alone."""
    recipes = folder / "vendors"
    recipes.mkdir()
    for name in VENDORS:
        shutil.copy(RECIPES / f"{name}.toml", recipes)
    return recipes


def _accounts(folder: Path, limbo: Limbo) -> Path:
    """One account for each vendor and contract."""
    accounts = folder / "accounts.toml"
    accounts.write_text(
        "".join(
            f'[{vendor}.{contract}]\nmode = "test"\ncredential = "drill"\n'
            f'vendor_account = "limbo"\nbase_url = "{limbo.address(contract)}"\n'
            for vendor in VENDORS
            for contract in CONTRACTS
        ),
        encoding="utf-8",
    )
    return accounts

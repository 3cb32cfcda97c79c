"""The works with a network of our own: a proxy before Postgres, before Valkey and before the
vendor, and a watch that says how long settling took by the database's clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from outbox.policy import Policy
from tests.drills.proxy import Proxy
from tests.drills.works import Works, open_works
from tests.workers.floor import wait_until
from workers.stack import Stack

# The demo's leases, and the patience of a busy machine where nothing is asserted of it.
SHORT: Mapping[str, str] = {
    "OUTBOX_CALL_DEADLINE_S": "1.5",
    "OUTBOX_START_LIMIT_S": "1",
    "OUTBOX_LOOK_DEADLINE_S": "4",
    "OUTBOX_LEASE_S": "3",
}
# How many times longer than by the settings alone, and than all takes here when nothing is wrong,
# a busy machine may need: what is asserted is the order of magnitude.
_AT_MOST = 2.0
_NOISE = 3.0


@dataclass(kw_only=True)
class BehindProxies(Works):
    """One running product whose every connection passes a proxy. The test's own statements and
    enqueues go straight to the database."""

    postgres: Proxy
    valkey: Proxy
    vendor: Proxy
    usual_s: float = 0.0
    ledger_url: str = ""

    @property
    def database_url(self) -> str:
        """Where the ledger is, whichever server has it by now."""
        return self.ledger_url or self.servers.database_url

    def warm_up(self) -> None:
        """Starts the worker if it does not run, and waits until it has sent and settled: how long
        that takes is what is usual here."""
        began = self.now()
        self.restart("worker")
        ids = self.enqueue(self.account(), 3)
        self.wait_until_settled(ids)
        self.usual_s = max(self.settled_after_s(ids, began))

    def start_worker_in_s(self) -> float:
        """Starts the worker, and returns how long that took by the database's clock."""
        began = self.now()
        self.restart("worker")
        return (self.now() - began).total_seconds()

    def now(self) -> datetime:
        """The database's time."""
        (row,) = self.sql("SELECT outbox.clock() AS now")
        now: datetime = row["now"]
        return now

    def settled_after_s(self, ids: Sequence[UUID], since: datetime) -> list[float]:
        """How long after that moment each was settled; 0 for what was before."""
        rows = self.sql(
            "SELECT GREATEST(EXTRACT(EPOCH FROM settled_at - %(since)s), 0)::float8 AS s "
            "FROM outbox.intents WHERE id = ANY(%(ids)s) AND settled_at IS NOT NULL",
            {"ids": list(ids), "since": since},
        )
        return [row["s"] for row in rows]

    def check_settled_within(self, ids: Sequence[UUID], since: datetime, *waits_s: float) -> float:
        """The longest, which is of the order of a lease and one tick, and of what else the test
        says has to be waited for."""
        took_s = self.settled_after_s(ids, since)
        assert len(took_s) == len(ids)
        limit_s = _AT_MOST * (sum(waits_s) + lease_and_ticks_s(self.settings.policy))
        assert max(took_s) <= limit_s + _NOISE * self.usual_s
        return max(took_s)

    def outcomes(self, intent_id: UUID) -> list[str]:
        """What each attempt came to, in order, and a word that came late marked. Without those
        that sent nothing: a busy machine may start a thread too late by itself."""
        rows = self.sql(
            "SELECT outcome, late FROM outbox.attempts WHERE intent_id = %(id)s "
            "AND outcome <> 'not_sent' ORDER BY id",
            {"id": intent_id},
        )
        return [row["outcome"] + (" (late)" if row["late"] else "") for row in rows]

    def settle(self, account: str, ids: Sequence[UUID], since: datetime, *waits_s: float) -> float:
        """Nobody enqueues anything again: each settles in time after that moment and has taken
        effect once, and no person was asked. Returns how many seconds the longest took."""
        self.wait_until_settled(ids)
        self.check(account, ids)
        assert self.questions(ids) == []
        return self.check_settled_within(ids, since, *waits_s)

    def wait_a_lease(self, since: datetime) -> None:
        """Until every lease that was taken before that moment has ended, by the database's
        clock."""
        lease_s = self.settings.policy.lease_s
        wait_until(lambda: (self.now() - since).total_seconds() > lease_s)

    def attempted(self, ids: Sequence[UUID]) -> list[bool]:
        """Of each, whether an attempt has ended, well or badly."""
        rows = self.sql(
            "SELECT EXISTS (SELECT FROM outbox.attempts WHERE intent_id = i.id) AS y "
            "FROM outbox.intents i WHERE id = ANY(%(ids)s)",
            {"ids": list(ids)},
        )
        return [row["y"] for row in rows]

    def questions(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those that a person was ever asked about."""
        rows = self.sql(
            "SELECT intent_id FROM outbox.escalations WHERE intent_id = ANY(%(ids)s)",
            {"ids": list(ids)},
        )
        return [row["intent_id"] for row in rows]


def lease_and_ticks_s(policy: Policy) -> float:
    """How long a row of a lost worker takes to settle by the settings: its lease, the tick that
    expires it, the first look and its tick, and the tick that sends again what never arrived."""
    ticks_s = policy.tick_expire_s + policy.tick_resolve_s + policy.tick_drain_s
    return policy.lease_s + ticks_s + policy.looks_s[0] + policy.resends_s[0]


@contextmanager
def open_behind(
    folder: Path,
    *verbs: str,
    broker: bool = True,
    more: Mapping[str, str] | None = None,
    postgres_settings: Mapping[str, str] | None = None,
) -> Iterator[BehindProxies]:
    """Servers, vendor, a proxy before each, and the named programs behind them."""
    settings = {**SHORT, **(more or {})}
    with (
        open_works(
            folder, broker=broker, more=settings, postgres_settings=postgres_settings
        ) as works,
        Proxy(works.servers.run_dir / ".s.PGSQL.5432") as postgres,
        Proxy(works.servers.run_dir / "r.sock") as valkey,
        Proxy(_address(works.sandbox.url)) as vendor,
    ):
        accounts = Path(works.env["OUTBOX_ACCOUNTS"])
        by_proxy = f"http://127.0.0.1:{vendor.port}"
        accounts.write_text(accounts.read_text().replace(works.sandbox.url, by_proxy))
        server, _, _ = works.servers.database_url.partition("@")
        env = {**works.env, "DATABASE_URL": f"{server}@127.0.0.1:{postgres.port}/postgres"}
        if broker:
            env["REDIS_URL"] = f"redis://127.0.0.1:{valkey.port}/0"
        stack = Stack(works.servers, env, echo=lambda verb, line: works.said.append(line))
        try:
            stack.start(*verbs)
            yield BehindProxies(
                servers=works.servers, sandbox=works.sandbox, stack=stack, env=env,
                said=works.said, postgres=postgres, valkey=valkey, vendor=vendor,
            )  # fmt: skip
        except BaseException:
            print("\n".join(works.said[-60:]))
            raise
        finally:
            for proxy in (postgres, valkey, vendor):
                proxy.mend()
            stack.stop()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port

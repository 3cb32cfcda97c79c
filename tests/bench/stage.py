"""What every run stands on: durable servers of its own, an empty database and an empty broker for
each measurement, the product's own workers in processes of their own."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

from outbox import Settings
from outbox.schema import upgrade
from outbox.settings import process_environment
from resolvers.health import periods_s
from tests.bench import vendor
from tests.bench.effects import Ledger, duplicates
from tests.bench.programs import START_S, Child, ended, last_line, left_s, wait_until
from tests.statements import Statements
from workers.broker import broker_url_of
from workers.servers import Servers

_PROGRAM = Path(__file__).with_name("outbox_with_vendor.py")
# Nothing of it trades durability; no checkpoint falls into one measurement and not into another.
_POSTGRES = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "300",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
_TEMPLATE = "bench_template"
_ACCOUNTS = "accounts.toml"
_PROGRAM_S = 600.0
_SESSIONS = """
SELECT count(*) AS n FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'outbox'
"""


@dataclass
class Place:
    """One measurement's own database, broker and vendor's record. ``env`` is what its programs
    get; ``faults`` are what must not be in any run, in words."""

    servers: Servers
    name: str
    database_url: str
    env: dict[str, str]
    ledger: Ledger
    sql: Statements
    faults: list[str] = field(default_factory=list)
    end: float = float("inf")

    def limit_s(self, most_s: float) -> float:
        """How long one wait may take. Raises ``TimeIsUp`` at the end of the run."""
        return left_s(self.end, most_s)

    @property
    def settings(self) -> Settings:
        """What the product reads of the environment."""
        ours = ("DATABASE", "REDIS", "OUTBOX", "STRIPE")
        return Settings.from_env({k: v for k, v in self.env.items() if k.startswith(ours)})

    @contextmanager
    def child(self, command: Sequence[str]) -> Iterator[Child]:
        """A program that is ready, until the block ends."""
        child = Child(self.servers, command, self.env)
        try:
            child.wait_until_ready(self.limit_s(START_S))
            yield child
        finally:
            child.stop()

    @contextmanager
    def workers(self, count: int = 1) -> Iterator[list[Child]]:
        """So many `outbox worker`, all of whose children have looked at the database and whose jobs
        have run once, for doctor asks for each. What the block puts into the list in their stead is
        stopped too."""
        children = [self.worker() for _ in range(count)]
        try:
            for child in children:
                child.wait_until_ready(self.limit_s(START_S))
            least, roles = count * self.settings.policy.children, set(periods_s(self.settings))

            def are_up() -> bool:
                return self._sessions() >= least and roles <= self._roles()

            wait_until(are_up, self.limit_s(START_S), "workers at the database")
            yield children
        finally:
            for child in children:
                child.stop()

    def worker(self) -> Child:
        """One `outbox worker` that begins; whoever asks for it stops it."""
        return Child(self.servers, [sys.executable, str(_PROGRAM), "worker"], self.env)

    def _sessions(self) -> int:
        (row,) = self.sql(_SESSIONS)
        return int(row["n"])

    def _roles(self) -> set[str]:
        return {str(row["role"]) for row in self.sql("SELECT role FROM outbox.heartbeats")}

    def run(self, module: str, *arguments: str) -> dict[str, Any]:
        """A module of ours to its end, in a process of its own; the JSON of its last line."""
        return last_line(
            [sys.executable, "-m", module, *arguments], self.env, self.limit_s(_PROGRAM_S)
        )

    def fall(self, health: vendor.Health) -> None:
        """How the vendor that may fall ill answers from now on."""
        vendor.fall(self.env[vendor.LEDGER], health)

    def wal_bytes(self) -> int:
        """How much has been written to the log so far, by all of the server."""
        (row,) = self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS n")
        return int(row["n"])

    def commits(self) -> int:
        """How many transactions have written so far, by all of the server: those are what waits
        for the disk."""
        (row,) = self.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS n")
        return int(row["n"])

    def is_settled(self, least: int = 0) -> bool:
        """Whether every outcome is known. Asked in short turns beside what is measured, so it reads
        no further than the first row that is not; and of a large backlog, which has dead rows
        before that one, only once the ``least`` calls that it takes have arrived."""
        if len(self.ledger) < least:
            return False
        (row,) = self.sql(
            "SELECT NOT EXISTS (SELECT FROM outbox.intents WHERE settled_at IS NULL) AS yes"
        )
        return bool(row["yes"])

    def unsettled(self) -> int:
        """Intents whose outcome is not known yet."""
        (row,) = self.sql("SELECT count(*) AS n FROM outbox.intents WHERE settled_at IS NULL")
        return int(row["n"])

    def check(self, expected: int, *, resends: bool = False) -> None:
        """Notes what must not be: an effect missing or doubled (with ``resends`` a repeat under the
        same key is right, after a kill), an intent that did not land, and whatever `outbox doctor`
        finds."""
        effects = list(self.ledger)
        doubled = len({e.owner for e in effects}) - len({e.key for e in effects})
        doubled = -doubled if resends else duplicates(effects)
        if doubled:
            self.faults.append(f"{doubled} duplicate upstream calls")
        if len({e.owner for e in effects}) != expected:
            self.faults.append(f"{expected} writes asked for, {len(effects)} reached the vendor")
        (row,) = self.sql("SELECT count(*) AS n FROM outbox.intents WHERE status = 'succeeded'")
        if row["n"] != expected:
            self.faults.append(f"{row['n']} of {expected} intents landed by the ledger")
        self.faults += self.doctor()

    def doctor(self) -> list[str]:
        """What `outbox doctor` finds."""
        command = [sys.executable, str(_PROGRAM), "doctor", "--json"]
        done = ended(command, self.env, self.limit_s(_PROGRAM_S))
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return [f"doctor ended with code {done.returncode}: {done.stderr.strip()[-200:]}"]
        return [f"doctor: {item['check']} ({item['count']}): {item['detail']}"
                for item in found["items"]]  # fmt: skip

    def doctor_without_worker(self) -> list[str]:
        """The same where none was started: its setup is not as it must be then; its ledger is."""
        return [said for said in self.doctor() if "heartbeat" not in said]


def _account(of: str, name: str) -> str:
    said = f'credential = "none"\nmode = "test"\nvendor_account = "{vendor.OWNER}"\n'
    return f"[{of}.{name}]\n{said}"


class Stage:
    """The servers, and places upon them, until ``end`` by the monotonic clock. Built by
    ``open_stage``."""

    def __init__(self, servers: Servers, folder: Path, end: float) -> None:
        self.end = end
        self.servers = servers
        self.folder = folder
        self._administrator = psycopg.connect(
            servers.database_url.replace("+psycopg", ""), autocommit=True
        )
        self._numbers = itertools.count()
        self._url = urlsplit(servers.database_url)

    def prepare(self) -> None:
        """Makes the migrated database that others are copies of; raises where the server would
        lose what it has confirmed."""
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            found = self._administrator.execute(f"SHOW {name}".encode()).fetchone()
            assert found == ("on",), f"{name} is {found}: not a durable server"
        self._run(f"CREATE DATABASE {_TEMPLATE}")
        upgrade(self._at(_TEMPLATE))
        self._administrator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (_TEMPLATE,),
        )

    @contextmanager
    def place(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        migrated: bool = True,
        latency_ms: int = 0,
        accounts: Sequence[tuple[str, str]] = ((vendor.NAME, "default"),),
    ) -> Iterator[Place]:
        """An empty database (``migrated``: with our schema), an empty broker and an empty record
        of the vendor's, gone at the end of the block. ``settings`` are those of the product,
        ``accounts`` the (vendor, name) that it has credentials of."""
        name = f"bench_{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name}" + (f" TEMPLATE {_TEMPLATE}" if migrated else ""))
        with redis.Redis.from_url(self.servers.redis_url) as client:
            client.flushall()
        url = self._at(name)
        statements = Statements(url)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            (Path(folder) / _ACCOUNTS).write_text("".join(_account(*of) for of in accounts))
            env = self._env(url, Path(folder), settings or {}, latency_ms)
            try:
                yield Place(self.servers, name, url, env, Ledger(folder), statements, end=self.end)
            finally:
                statements.close()
                self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _env(
        self, url: str, folder: Path, settings: Mapping[str, str], latency_ms: int
    ) -> dict[str, str]:
        clean = ("OUTBOX_", "STRIPE_", "DATABASE_URL", "REDIS_URL", "PYTHONPATH")
        kept = {k: v for k, v in process_environment().items() if not k.startswith(clean)}
        return {
            **kept,
            "DATABASE_URL": url,
            "REDIS_URL": self.servers.redis_url,
            "OUTBOX_ACCOUNTS": str(folder / _ACCOUNTS),
            "OUTBOX_PAGERS": "none",
            **settings,
            vendor.LEDGER: str(folder),
            vendor.LATENCY_MS: str(latency_ms),
            "BENCH_BROKER_URL": broker_url_of(self.servers.redis_url),
        }

    def close(self) -> None:
        """Drops the connection."""
        self._administrator.close()

    def _at(self, name: str) -> str:
        return self._url._replace(path=f"/{name}").geturl()

    def _run(self, statement: str) -> None:
        self._administrator.execute(statement.encode())


@contextmanager
def open_stage(end: float = float("inf")) -> Iterator[Stage]:
    """Servers of the run's own, on sockets and on no port, until the block ends."""
    vendor.install()
    with (
        Servers.start(None, postgres_settings=_POSTGRES) as servers,
        tempfile.TemporaryDirectory(prefix="obb", ignore_cleanup_errors=True) as folder,
    ):
        stage = Stage(servers, Path(folder), end)
        stage.prepare()
        try:
            yield stage
        finally:
            stage.close()

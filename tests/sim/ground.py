"""What the timelines of one process stand on: a database of its own, three hosts with their
connections, one vendor, one clock. Timelines follow each other; each begins with no rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from outbox import Outbox, Settings
from outbox.contract import Vendor
from outbox.contracts import contract_of
from outbox.store.connection import Transaction
from outbox.store.due import next_due_in_s
from outbox.store.invariants import OF_INTENTS, Invariant
from outbox.store.invariants_beside import BESIDE
from resolvers.directory import Directory
from resolvers.doctoring import _params
from tests.sim.hosts import SimStore
from tests.sim.vendor import ACCOUNT, SimSessions, SimVendor
from vendors.http_json import HttpJsonVendor
from vendors.sandbox import RECIPES
from vendors.sandbox.client import Sandbox
from vendors.sandbox.wire import Answer, Request
from vendors.stripe import StripeVendor

SECRET = "whsec_c2ltdWxhdGVk"
# An ordinary day, far from any change of clocks; each timeline begins at its first second.
EPOCH_S = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
FACES = {"tickets": "references", "messages": "nothing"}
_CLOCK = """
CREATE TABLE IF NOT EXISTS outbox.sim_clock (at timestamptz NOT NULL);
DELETE FROM outbox.sim_clock;
INSERT INTO outbox.sim_clock VALUES (to_timestamp(0));
GRANT SELECT ON outbox.sim_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT at FROM outbox.sim_clock $$;
DO $$ BEGIN EXECUTE format(
    'ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END $$;
SET plan_cache_mode = force_generic_plan
"""
# Rows of a finished timeline: append-only and kept for ever, so the guards are passed by.
_TABLES = """
SELECT c.relname AS name FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace
AND c.relkind IN ('r', 'p') AND c.relname NOT IN (
    'sim_clock', 'alembic_version', 'registrations', 'consumers')
ORDER BY c.relname
"""
# Which jobs have anything to do. A job that has nothing due changes nothing, and takes as long.
_DUE = """
SELECT EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable')
               AND due_at <= outbox.clock()) AS drain,
    EXISTS (SELECT FROM outbox.intents WHERE status = 'in_flight'
            AND lease_until < outbox.clock())
        OR EXISTS (SELECT FROM outbox.epochs) AS expire,
    EXISTS (SELECT FROM outbox.intents WHERE status = 'retryable') AS withdraw,
    EXISTS (SELECT FROM outbox.webhook_inbox WHERE due_at <= outbox.clock()) AS "join",
    EXISTS (SELECT FROM outbox.intents WHERE (status = 'unknown' AND due_at <= outbox.clock())
            OR verify_at <= outbox.clock()) AS look,
    EXISTS (SELECT FROM outbox.intents WHERE settled_at IS NULL
            AND (escalate_at <= outbox.clock() OR lane IS NOT NULL))
        OR EXISTS (SELECT FROM outbox.escalations WHERE closed_at IS NULL)
        OR EXISTS (SELECT FROM outbox.switches) AS escalate,
    EXISTS (SELECT FROM outbox.pages WHERE state = 'due')
        OR EXISTS (SELECT FROM outbox.escalations WHERE closed_at IS NULL) AS page
"""
_BROKEN = "SELECT n, ids FROM outbox.sim_broken"
# Of other sessions, of a clock that was set back on purpose, and of consumers that nobody runs.
_OF_SETUP = {"transaction_held_open", "time_ahead_of_the_clock", "settlement_not_taken"}
INVARIANTS = tuple(one for one in (*OF_INTENTS, *BESIDE) if one.check not in _OF_SETUP)
_EMPTY = """
CREATE FUNCTION outbox.sim_empty() RETURNS void LANGUAGE plpgsql
    SET session_replication_role = replica AS $$ BEGIN DELETES; END $$
"""
_VACUUM_EVERY = 200


class Ground:
    """Built once a process."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self.folder = folder
        self.pages = folder / "pages"
        self.settings = _settings(database_url, folder)
        self.vendor = SimVendor()
        self.directory = Directory(self.settings, self._adapters())
        # The timeline's own: what becomes of a request, and what happens before its first byte.
        self.wire: Callable[[Request], Answer]
        self.gate: Callable[[str], None]
        self.stores = [SimStore(self.settings) for _ in range(3)]
        self.outbox = Outbox(self.settings)
        plain = database_url.replace("postgresql+psycopg", "postgresql", 1)
        self.eyes: psycopg.Connection[DictRow] = psycopg.connect(
            plain, autocommit=True, row_factory=dict_row, prepare_threshold=0
        )
        self.eyes.execute(_CLOCK, prepare=False)
        self.agent = psycopg.connect(plain)
        # Passing the guards by makes a session forget its plans, so nobody else uses this one.
        self._janitor = psycopg.connect(plain, autocommit=True)
        self._make_broken(plain)
        tables = [row["name"] for row in self.eyes.execute(_TABLES).fetchall()]
        emptied = "; ".join(f"DELETE FROM outbox.{name}" for name in tables)
        self.eyes.execute(_EMPTY.replace("DELETES", emptied).encode(), prepare=False)
        self._vacuum = ("VACUUM " + ", ".join(f"outbox.{name}" for name in tables)).encode()
        self._begun = 0
        self.skew_s = 0.0

    def begin(self, **vendor: Any) -> None:
        """A new timeline: no rows, no effects, the first second."""
        self._janitor.execute("SELECT outbox.sim_empty()")
        if self._begun % _VACUUM_EVERY == _VACUUM_EVERY - 1:
            self._janitor.execute(self._vacuum, prepare=False)
        self._begun += 1
        self.skew_s = 0.0
        self.vendor.reset(EPOCH_S, **vendor)
        self._set_clock()
        self.pages.unlink(missing_ok=True)

    def pass_time(self, seconds: float) -> None:
        """Time passes everywhere; the vendor does what falls due in it."""
        self.vendor.until(self.vendor.now_s + seconds)
        self._set_clock()

    def step_clock(self, seconds: float) -> None:
        """The database's clock alone is set."""
        self.skew_s += seconds
        self._set_clock()

    def due(self) -> set[str]:
        """The jobs that have something to do."""
        return {job for job, is_due in self.rows(_DUE)[0].items() if is_due}

    def next_due_s(self) -> float | None:
        """Seconds until something falls due that waits; None where nothing waits."""
        return next_due_in_s(Transaction(self.eyes))

    def rows(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        """What is committed."""
        return self.eyes.execute(sql.encode(), params or None).fetchall()

    def close(self) -> None:
        """Drops everything."""
        for store in self.stores:
            store.close()
        self.outbox.close()
        self.directory.close()
        self.agent.close()
        self._janitor.close()
        self.eyes.close()
        self.vendor.close()

    def _make_broken(self, plain: str) -> None:
        """Every invariant in one view: asked as one question, and planned once."""
        asked = " UNION ALL ".join(
            f"SELECT {n} AS n, string_agg(id, ' ') AS ids FROM ({one.broken}) q HAVING count(*) > 0"
            for n, one in enumerate(INVARIANTS)
        )
        with psycopg.connect(plain, cursor_factory=psycopg.ClientCursor) as connection:
            made = f"CREATE VIEW outbox.sim_broken AS {asked}".encode()
            connection.execute(made, _params(self.directory))

    def broken(self) -> list[tuple[Invariant, str]]:
        """The invariants that do not hold, each with the ids that break it."""
        return [(INVARIANTS[row["n"]], row["ids"]) for row in self.rows(_BROKEN)]

    def _set_clock(self) -> None:
        at = self.vendor.now_s + self.skew_s
        self.eyes.execute("UPDATE outbox.sim_clock SET at = to_timestamp(%s)", (at,))

    def _adapters(self) -> dict[str, Vendor]:
        policy = self.settings.policy

        def sessions(_: bool) -> SimSessions:
            return SimSessions(self._on_wire, self._at_gate)

        made: dict[str, Vendor] = {
            "stripe": StripeVendor(
                policy.adapted(contract_of("stripe")), connect_s=5, read_s=20, transport=sessions
            )
        }
        for name in FACES:
            contract = policy.adapted(contract_of(name))
            made[name] = HttpJsonVendor(contract, connect_s=5, read_s=20, transport=sessions)
        return made

    def _on_wire(self, request: Request) -> Answer:
        return self.wire(request)

    def _at_gate(self, method: str) -> None:
        self.gate(method)


def _settings(database_url: str, folder: Path) -> Settings:
    accounts = []
    for vendor, face in {"stripe": "", **FACES}.items():
        base = "http://vendor.invalid" + (f"/json/{face}" if face else "")
        accounts += [
            f"[{vendor}.default]",
            'mode = "test"',
            f'vendor_account = "{ACCOUNT}"',
            f'credential = "{Sandbox.api_key("sim")}"',
            f'webhook_secrets = ["{SECRET}"]',
            f'base_url = "{base}"',
        ]
    (folder / "accounts.toml").write_text("\n".join(accounts))
    return Settings.from_env(
        {
            "DATABASE_URL": database_url,
            "OUTBOX_ACCOUNTS": str(folder / "accounts.toml"),
            "OUTBOX_VENDORS": ",".join(str(RECIPES / f"{name}.toml") for name in FACES),
            "OUTBOX_PAGERS": f"file:{folder / 'pages'}",
        }
    )


@contextmanager
def open_ground(database_url: str) -> Iterator[Ground]:
    """A ground over a migrated database that nobody else uses."""
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="outbox-sim-"))
        ground = Ground(database_url, Path(folder))
        closing.callback(ground.close)
        yield ground

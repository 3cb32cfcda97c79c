"""The whole product as real processes over real servers and the sandbox vendor, to be killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest
from psycopg.rows import dict_row

from outbox import Outbox, Scope, Settings
from outbox.schema import upgrade
from outbox.settings import process_environment
from tests.statements import fetched
from tests.workers.floor import CARD, CHARGE, wait_until
from vendors.sandbox.client import Sandbox
from workers.servers import Servers
from workers.stack import Stack

SECRET = "whsec_of_the_works"
_ACCOUNTS = 40
# The demo's short leases, and patience where a busy machine needs it: nothing is given up here.
PATIENT: Mapping[str, str] = {
    "OUTBOX_PROFILE": "demo",
    "OUTBOX_CALL_DEADLINE_S": "2",
    "OUTBOX_LOOK_DEADLINE_S": "8",
    "OUTBOX_LEASE_S": "4.5",
    "OUTBOX_WINDOW_OVERRIDE_S": "4000",
    "OUTBOX_TTL_OVERRIDE_S": "600",
    "OUTBOX_MAX_RESENDS": "50",
}
_numbers = itertools.count()


@dataclass
class Works:
    """One running product. Each test takes an ``account`` of its own."""

    servers: Servers
    sandbox: Sandbox
    stack: Stack
    env: Mapping[str, str]
    said: list[str] = field(default_factory=list)
    _accounts: Iterator[int] = field(default_factory=itertools.count)

    @property
    def database_url(self) -> str:
        """Where the ledger is, by the shortest way."""
        return self.servers.database_url

    @property
    def settings(self) -> Settings:
        """What an agent's process reads."""
        return Settings.from_env(
            {k: v for k, v in self.env.items() if k.startswith(("DATABASE", "REDIS", "OUTBOX"))}
        )

    def account(self) -> str:
        """A vendor account that no other test uses."""
        number = next(self._accounts)
        assert number < _ACCOUNTS
        return f"a{number}"

    def enqueue(self, account: str, count: int, *, ring: bool = True, **args: Any) -> list[UUID]:
        """New charges in one committed transaction, and a ring as an agent's session has it."""
        outbox = Outbox(self.settings)
        made = [
            (
                Scope(tenant="acme", run_id="run", account=account),
                {**CARD, "invoice_id": f"in_{next(_numbers)}", **args},
            )
            for _ in range(count)
        ]
        with psycopg.connect(self.database_url.replace("+psycopg", "")) as connection:
            answers = outbox.enqueue_many(connection, CHARGE, made)
        if ring:
            outbox.ring()
        outbox.close()
        return [answer.intent_id for answer in answers]

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Runs a statement of the test's own."""
        url = self.database_url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
            return fetched(connection.execute(statement.encode(), params))

    def statuses(self, ids: Sequence[UUID]) -> dict[str, int]:
        """How many of these there are of each status."""
        rows = self.sql(
            "SELECT status, count(*) AS n FROM outbox.intents WHERE id = ANY(%(ids)s) "
            "GROUP BY status",
            {"ids": list(ids)},
        )
        return {row["status"]: row["n"] for row in rows}

    def unseen(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those that are neither settled nor asked about."""
        rows = self.sql(
            "SELECT id FROM outbox.intents i WHERE id = ANY(%(ids)s) AND settled_at IS NULL "
            "AND NOT EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id "
            "AND e.closed_at IS NULL)",
            {"ids": list(ids)},
        )
        return [row["id"] for row in rows]

    def wait_until_settled(self, ids: Sequence[UUID], limit_s: float = 90.0) -> None:
        """Until every one is settled, whatever is away meanwhile; nobody enqueues anything again.
        Says what the product said where it does not come true."""

        def settled() -> bool:
            try:
                return self.statuses(ids).get("succeeded") == len(ids)
            except psycopg.OperationalError:
                return False

        try:
            wait_until(settled, limit_s)
        except AssertionError:
            rows = self.sql(
                "SELECT status, doubt, crashes, veto, resends, due_at - outbox.clock() AS due_in, "
                "lease_owner FROM outbox.intents WHERE id = ANY(%(ids)s) AND settled_at IS NULL",
                {"ids": list(ids)},
            )
            pytest.fail("\n".join([f"{rows[:5]} of {len(rows)}", *self.said[-40:]]))

    def wait_for_posts(self, account: str, count: int = 1) -> None:
        """Until so many writes have reached the vendor."""
        wait_until(lambda: len(self.posts(account)) >= count)

    def posts(self, account: str) -> list[dict[str, Any]]:
        """The writes that reached the vendor."""
        return [
            r
            for r in self.sandbox.requests(account)
            if r["method"] == "POST" and r["origin"] == "client"
        ]

    def check(self, account: str, ids: Sequence[UUID]) -> None:
        """Each took effect once, and the wire shows no broken promise."""
        oracle = self.sandbox.oracle(account)
        assert oracle["violations"] == []
        counts = {i: oracle["effects_by_intent"].get(str(i), {"count": 0})["count"] for i in ids}
        assert {i: n for i, n in counts.items() if n != 1} == {}
        assert self.statuses(ids) == {"succeeded": len(ids)}

    def owner_of(self, intent_id: UUID) -> int:
        """The process that has the row on the wire, once one has."""
        found: list[int] = []

        def in_flight() -> bool:
            rows = self.sql(
                "SELECT lease_owner FROM outbox.intents WHERE id = %(id)s", {"id": intent_id}
            )
            found[:] = [int(r["lease_owner"].rpartition(":")[2]) for r in rows if r["lease_owner"]]
            return bool(found)

        wait_until(in_flight)
        return found[0]

    def has_lost(self, intent_id: UUID, workers: int) -> bool:
        """Whether the intent has lost so many workers in a row."""
        (row,) = self.sql("SELECT crashes FROM outbox.intents WHERE id = %(id)s", {"id": intent_id})
        return bool(row["crashes"] == workers)

    def children(self, verb: str = "worker") -> list[psutil.Process]:
        """The processes that a program has forked."""
        parent = psutil.Process(self.stack.programs[verb].process.pid)
        return list(parent.children(recursive=True))

    @contextmanager
    def second(self, *verbs: str) -> Iterator[Stack]:
        """The same programs once more, beside the first ones."""
        stack = Stack(self.servers, self.env, echo=lambda verb, line: self.said.append(line))
        try:
            stack.start(*verbs)
            yield stack
        finally:
            stack.stop()

    def fill(self, model: UUID, count: int) -> None:
        """So many more rows like this one, all due."""
        columns = [
            row["attname"]
            for row in self.sql(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.intents'::regclass "
                "AND attnum > 0 AND NOT attisdropped AND attname NOT IN "
                "('id', 'key', 'seq', 'fingerprint', 'due_at', 'escalate_at')"
            )
        ]
        names = ", ".join(columns)
        self.sql(
            f"INSERT INTO outbox.intents (id, key, fingerprint, due_at, {names}) "
            "SELECT gen_random_uuid(), sha256(('k' || n)::bytea), sha256(('f' || n)::bytea), "
            f"outbox.clock() - INTERVAL '1 hour', {names} "
            "FROM outbox.intents, generate_series(1, %(count)s) n WHERE id = %(model)s",
            {"count": count, "model": model},
        )
        self.sql("ANALYZE outbox.intents")

    def restart(self, *verbs: str) -> None:
        """Starts what does not run."""
        self.stack.start(*[v for v in verbs if v not in self.stack.programs])

    def terminate(self, verb: str, kill_after_s: float, *, whole_group: bool = False) -> int:
        """What a deploy does: SIGTERM, and SIGKILL to whatever is left. Returns the exit code."""
        process = self.stack.programs[verb].process
        if whole_group:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_s)
        code = process.poll()
        self.stack.kill(verb)
        return -signal.SIGKILL if code is None else code


@contextmanager
def open_works(
    folder: Path,
    *verbs: str,
    broker: bool = True,
    more: Mapping[str, str] | None = None,
    postgres_settings: Mapping[str, str] | None = None,
) -> Iterator[Works]:
    """Servers, vendor and the named programs; ``more`` are settings by name."""
    said: list[str] = []

    def echo(verb: str, line: str) -> None:
        said.append(f"{verb}: {line}")

    with (
        Servers.start(
            None, postgres_settings={"max_connections": "200", **(postgres_settings or {})}
        ) as servers,
        Sandbox.start(folder / "vendor.sqlite") as sandbox,
    ):
        upgrade(servers.database_url)
        accounts = folder / "accounts.toml"
        names = [f"a{n}" for n in range(_ACCOUNTS)]
        accounts.write_text("".join(_table(sandbox, name) for name in names))
        for name in names:
            sandbox.set_account(name, any_customer=True)
        env = {
            **{k: v for k, v in process_environment().items() if not k.startswith("OUTBOX_")},
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
            **PATIENT,
            "OUTBOX_ACCOUNTS": str(accounts),
            "OUTBOX_PAGERS": "none",
            "PORT": "0",
            **(more or {}),
        }
        env.pop("STRIPE_API_KEY", None)
        if not broker:
            del env["REDIS_URL"]
        stack = Stack(servers, env, echo=echo)
        try:
            stack.start(*verbs)
            yield Works(servers, sandbox, stack, env, said)
        except BaseException:
            print("\n".join(said[-60:]))
            raise
        finally:
            stack.stop()


def _table(sandbox: Sandbox, name: str) -> str:
    return (
        f'[stripe.{name}]\ncredential = "{sandbox.api_key(name)}"\n'
        f'base_url = "{sandbox.url}"\nwebhook_secrets = ["{SECRET}"]\n'
    )

"""Everything that runs: Postgres, Valkey, the vendor behind a network that loses answers, two
workers, beat and web."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import dict_row

from outbox import Settings
from outbox.schema import upgrade
from outbox.settings import process_environment
from tests.drills.proxy import Proxy
from tests.statements import fetched
from vendors.sandbox.client import Sandbox
from workers.server_programs import ServersError
from workers.servers import Servers
from workers.stack import Stack

SECRET = "whsec_of_the_chaos"
ACCOUNTS = ("north", "east", "south", "west")
WORKERS = 2
_STARTS = 10
# The demo's leases; and a window and a deadline that no run reaches: a person is asked only about a
# row that has lost three workers, or one that stays in doubt.
SETTINGS: Mapping[str, str] = {
    "OUTBOX_PROFILE": "demo",
    "OUTBOX_CALL_DEADLINE_S": "2",
    "OUTBOX_LOOK_DEADLINE_S": "8",
    "OUTBOX_LEASE_S": "4.5",
    "OUTBOX_WINDOW_OVERRIDE_S": "80000",
    "OUTBOX_TTL_OVERRIDE_S": "600",
    "OUTBOX_MAX_RESENDS": "50",
    "PORT": "0",
}


@dataclass
class Scene:
    """The running whole. ``front`` is web and beat; ``ended`` names what ended by itself."""

    servers: Servers
    sandbox: Sandbox
    network: Proxy
    env: Mapping[str, str]
    pages: Path
    front: Stack
    workers: list[Stack]
    said: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """What an agent's process reads."""
        names = ("DATABASE", "REDIS", "OUTBOX")
        return Settings.from_env({k: v for k, v in self.env.items() if k.startswith(names)})

    @property
    def database_url(self) -> str:
        """As psycopg takes it."""
        return self.servers.database_url.replace("+psycopg", "")

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Runs a statement. Raises ``psycopg.OperationalError`` while Postgres is away."""
        with psycopg.connect(
            self.database_url, autocommit=True, row_factory=dict_row
        ) as connection:
            return fetched(connection.execute(statement.encode(), params))

    def written_pages(self) -> list[dict[str, Any]]:
        """Every page in the pager's file."""
        text = self.pages.read_text() if self.pages.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def tend(self, stack: Stack) -> None:
        """Starts again what ended by itself, as `outbox up` does, and remembers it."""
        for verb in stack.dead():
            code = stack.programs[verb].process.poll()
            self.ended.append(f"outbox {verb} ended by itself with code {code}")
            stack.forget(verb)
            bring_up(stack, verb)


def bring_up(stack: Stack, verb: str) -> None:
    """Starts a program as a supervisor does: what finds no database at its start ends, and is
    started again. Raises ``ServersError`` where it never comes up."""
    for _ in range(_STARTS):
        try:
            stack.start(verb)
        except ServersError:
            stack.forget(verb)
        else:
            return
    stack.start(verb)


@contextmanager
def running(folder: Path, loses_answer: Callable[[], bool]) -> Iterator[Scene]:
    """The whole, until the block ends. ``loses_answer`` is asked about each answer of the
    vendor's."""
    said: list[str] = []
    with (
        Servers.start(None, postgres_settings={"max_connections": "200"}) as servers,
        Sandbox.start(folder / "vendor.sqlite") as sandbox,
        Proxy(_address(sandbox.url), lose_answer=loses_answer) as network,
        contextlib.ExitStack() as stopping,
    ):
        upgrade(servers.database_url)
        accounts = folder / "accounts.toml"
        accounts.write_text("".join(_table(sandbox, network, name) for name in ACCOUNTS))
        env = {
            **{k: v for k, v in process_environment().items() if not k.startswith("OUTBOX_")},
            **SETTINGS,
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
            "OUTBOX_ACCOUNTS": str(accounts),
            "OUTBOX_PAGERS": f"file:{folder / 'pages.jsonl'}",
        }
        env.pop("STRIPE_API_KEY", None)

        def stack() -> Stack:
            made = Stack(servers, env, echo=lambda verb, line: said.append(f"{verb}: {line}"))
            stopping.callback(made.stop)
            return made

        front, workers = stack(), [stack() for _ in range(WORKERS)]
        front.start("web", "beat")
        for name in ACCOUNTS:
            sandbox.set_account(name, any_customer=True)
            url = f"{front.said('web')}/webhooks/stripe/{name}"
            sandbox.add_endpoint(name, url, SECRET)
        for worker in workers:
            worker.start("worker")
        yield Scene(
            servers, sandbox, network, env, folder / "pages.jsonl", front, workers, said=said
        )


def _table(sandbox: Sandbox, network: Proxy, name: str) -> str:
    return (
        f'[stripe.{name}]\ncredential = "{sandbox.api_key(name)}"\n'
        f'base_url = "http://127.0.0.1:{network.port}"\nwebhook_secrets = ["{SECRET}"]\n'
    )


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port

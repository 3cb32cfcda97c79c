"""``outbox up``: everything on one machine, said in a few lines and stopped by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from outbox import schema
from outbox.errors import SettingsError
from outbox.settings import Settings, process_environment
from vendors.sandbox.client import Sandbox
from workers.folders import default_data_dir
from workers.servers import Servers
from workers.stack import VERBS, Stack

_SANDBOX_SECRET = "whsec_sandbox"  # noqa: S105 - the sandbox's, which guards nothing
_SANDBOX_ACCOUNT = "sandbox"
_ENV_FILE = Path(".outbox") / "env"
# A program that dies this often in this time is not restarted any more.
_DEATHS = 5
_DEATHS_WITHIN_S = 60.0


def run(settings: Settings, *, migrate: bool = False) -> int:
    """Starts what is not configured elsewhere, then web, worker and beat; blocks until SIGINT or
    SIGTERM. An external database is migrated only with ``migrate``; the sandbox vendor is started
    only where no vendor credential is set. Returns the exit code.

    Raises ``SettingsError`` for what forbids a start and ``ServersError`` for a server that does
    not come up; what had been started is stopped again.
    """
    problems = list(settings.start_problems())
    if problems:
        raise SettingsError(problems)
    folder = default_data_dir(Path.cwd())
    with contextlib.ExitStack() as stopping:
        servers = stopping.enter_context(
            Servers.start(
                folder,
                postgres=not settings.database_url,
                valkey=not settings.redis_url,
                database_url=settings.database_url or None,
                redis_url=settings.redis_url or None,
            )
        )
        _migrate(settings, servers, migrate=migrate)
        env = {
            **process_environment(),
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
        }
        if settings.pagers is None:
            env["OUTBOX_PAGERS"] = f"file:{folder / 'pages.jsonl'}"
        sandbox = _sandbox(settings, folder, env, stopping)
        stack = Stack(servers, env, echo=_echo, stop_s=settings.policy.call_deadline_s + 10)
        stopping.callback(stack.stop)
        with _signals() as told:
            stack.start(*VERBS)
            _point_webhooks(sandbox, stack)
            stopping.enter_context(_env_file(servers))
            _say(settings, servers, sandbox, stack, env)
            return _supervise(stack, told)


def _migrate(settings: Settings, servers: Servers, *, migrate: bool) -> None:
    if not settings.database_url or migrate:
        schema.upgrade(servers.database_url)
    elif schema.current(servers.database_url) != schema.head():
        raise SettingsError(
            [("DATABASE_URL", "its schema is not this release's: add --migrate, or see a DBA")]
        )


def _sandbox(
    settings: Settings, folder: Path, env: dict[str, str], stopping: contextlib.ExitStack
) -> Sandbox | None:
    if settings.accounts:
        return None
    sandbox = stopping.enter_context(Sandbox.start(folder / "sandbox.sqlite"))
    sandbox.set_account(_SANDBOX_ACCOUNT, any_customer=True)
    env["STRIPE_API_KEY"] = sandbox.api_key(_SANDBOX_ACCOUNT)
    env["STRIPE_API_BASE"] = sandbox.url
    env["STRIPE_WEBHOOK_SECRET"] = _SANDBOX_SECRET
    return sandbox


def _point_webhooks(sandbox: Sandbox | None, stack: Stack) -> None:
    if sandbox is not None:
        url = f"{stack.said('web')}/webhooks/stripe/default"
        # The sandbox remembers its endpoints from one run to the next.
        if url not in {e["url"] for e in sandbox.endpoints(_SANDBOX_ACCOUNT)}:
            sandbox.add_endpoint(_SANDBOX_ACCOUNT, url, _SANDBOX_SECRET)


@contextlib.contextmanager
def _env_file(servers: Servers) -> Iterator[None]:
    """The two addresses for a shell to source, there exactly as long as everything runs."""
    path = Path.cwd() / _ENV_FILE
    path.parent.mkdir(exist_ok=True)
    text = f"export DATABASE_URL='{servers.database_url}'\nexport REDIS_URL='{servers.redis_url}'\n"
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(text, encoding="utf-8")
    made.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _say(
    settings: Settings,
    servers: Servers,
    sandbox: Sandbox | None,
    stack: Stack,
    env: dict[str, str],
) -> None:
    web = stack.said("web")
    where = "yours (DATABASE_URL)" if settings.database_url else f"data in {servers.data_dir}"
    lines = [
        f"postgres   {where}",
        f"valkey     {'yours (REDIS_URL)' if settings.redis_url else servers.redis_url}",
        f"web        {web}  (webhooks at /webhooks/VENDOR/ACCOUNT, health at /healthz)",
        "worker     sends, and resolves what is in doubt",
        "beat       ticks",
    ]
    if sandbox is not None:
        lines.append(f"sandbox    {sandbox.url} stands in for Stripe; no real vendor is called")
    if settings.pagers is None:
        lines.append(f"pages      {env['OUTBOX_PAGERS'].removeprefix('file:')}")
    lines += [
        "",
        f"in another terminal, and for your agents:  . {_ENV_FILE}",
        "Ctrl-C stops it all.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _supervise(stack: Stack, told: threading.Event) -> int:
    deaths: list[float] = []
    while not told.wait(0.5):
        for verb in stack.dead():
            code = stack.programs[verb].process.poll()
            stack.forget(verb)
            now = time.monotonic()
            deaths = [at for at in deaths if now - at < _DEATHS_WITHIN_S] + [now]
            if len(deaths) >= _DEATHS:
                print(f"outbox {verb} keeps ending (code {code}); stopping", file=sys.stderr)
                return 1
            print(f"outbox {verb} ended with code {code}; starting it again", file=sys.stderr)
            stack.start(verb)
    print("stopping", file=sys.stderr, flush=True)
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM end the run in order. Once told, further ones change nothing: Ctrl-C sent
    twice must not cut the clean-up that follows this block."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    yield told


def _echo(verb: str, line: str) -> None:
    print(f"{verb:7} | {line}", file=sys.stderr, flush=True)

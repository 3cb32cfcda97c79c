"""``outbox up``: everything on one machine, said in a few lines and stopped by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from outbox import schema
from outbox.errors import SettingsError, Unreachable
from outbox.settings import Settings, process_environment
from outbox.store import switches
from outbox.store.connection import Store
from resolvers.health import limits_s
from vendors.sandbox.client import Sandbox
from workers.cli_output import printable
from workers.folders import default_data_dir, is_in_use, until
from workers.server_programs import ServersError
from workers.servers import Servers
from workers.stack import VERBS, Stack
from workers.web import check_address

_SANDBOX_SECRET = "whsec_sandbox"  # noqa: S105 - the sandbox's, which guards nothing
_SANDBOX_ACCOUNT = "sandbox"
_HOOK = "/webhooks/stripe/default"
_ENV_FILE = Path(".outbox") / "env"
_OPERATOR_FILE = Path(".outbox") / "operator.env"
# A program that dies this often in this time is not restarted any more.
_DEATHS = 5
_FIRST_ROUNDS_S = 20.0
_DEATHS_WITHIN_S = 60.0
_REST_S = 2.0


def run(settings: Settings, *, migrate: bool = False) -> int:
    """Starts what is not configured elsewhere, then web, worker and beat; blocks until SIGINT or
    SIGTERM. An external database is migrated only with ``migrate``; the sandbox vendor is started
    only where no vendor credential is set. Returns the exit code.

    Raises ``SettingsError`` for what forbids a start and ``ServersError`` for a server that does
    not come up; what had been started is stopped again.
    """
    problems = [*settings.start_problems(), *_folder_problems()]
    if problems:
        raise SettingsError(problems)
    check_address(settings)
    stop = _Stop()
    try:
        return _run(settings, stop, migrate=migrate)
    except KeyboardInterrupt:  # before everything was up; what there was has been stopped
        _tell("stopping")
        return 0


def _folder_problems() -> Iterator[tuple[str, str]]:
    place = Path.cwd() / _ENV_FILE.parent
    if not os.access(place if place.exists() else place.parent, os.W_OK | os.X_OK):
        yield "current folder", f"{place} cannot be written: run it in a folder of yours"


def _run(settings: Settings, stop: _Stop, *, migrate: bool) -> int:
    folder = default_data_dir(Path.cwd())
    if not is_in_use(folder):
        for name in (_ENV_FILE, _OPERATOR_FILE):  # of a run that was killed
            name.unlink(missing_ok=True)
    with contextlib.ExitStack() as stopping:
        servers = stopping.enter_context(_servers(settings, folder))
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
        stop.may_raise = False  # from here on every wait asks
        stack.start(*VERBS, given_up=stop.told.is_set)
        if not stop.told.is_set():
            _point_webhooks(sandbox, stack)
            _await_first_rounds(env, stop.told)
            if sandbox is not None:
                stopping.enter_context(_env_file(_OPERATOR_FILE, env, _OF_OPERATORS))
            stopping.enter_context(_env_file(_ENV_FILE, env, _OF_AGENTS))
            _say(settings, servers, sandbox, stack, env)
        return _supervise(stack, stop.told)


def _await_first_rounds(env: dict[str, str], told: threading.Event) -> None:
    """Until each resolver job has run once: then `health` and `doctor` speak of this run."""
    settings = Settings.from_env(env)
    store = Store(settings, size=1)
    limits = limits_s(settings)

    def have_run() -> bool:
        try:
            with store.transaction() as tx:
                ages = switches.beat_ages_s(tx)
        except Unreachable:
            return False
        return all(ages.get(role, limit_s) < limit_s for role, limit_s in limits.items())

    try:
        until(lambda: told.is_set() or have_run(), _FIRST_ROUNDS_S)
    finally:
        store.close()


def _servers(settings: Settings, folder: Path) -> Servers:
    try:
        return Servers.start(
            folder,
            postgres=not settings.database_url,
            valkey=not settings.redis_url,
            database_url=settings.database_url or None,
            redis_url=settings.redis_url or None,
        )
    except OSError as error:
        said = f"{error.filename or folder}: {error.strerror}"
        raise SettingsError([("data folder", said)]) from error


def _migrate(settings: Settings, servers: Servers, *, migrate: bool) -> None:
    if not settings.database_url or migrate:
        schema.upgrade(servers.database_url)
        return
    problem = schema.advice(schema.current(servers.database_url))
    if problem is not None:
        raise SettingsError([("DATABASE_URL", f"the schema {problem}")])


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
    env["SANDBOX_ADMIN_URL"] = sandbox.admin
    return sandbox


def _point_webhooks(sandbox: Sandbox | None, stack: Stack) -> None:
    if sandbox is not None:
        url = f"{stack.said('web')}{_HOOK}"
        # The sandbox remembers its endpoints from one run to the next, and another run may have
        # had another port.
        known = {e["url"]: e["id"] for e in sandbox.endpoints(_SANDBOX_ACCOUNT)}
        here = known.pop(url, None) or sandbox.add_endpoint(_SANDBOX_ACCOUNT, url, _SANDBOX_SECRET)
        for old, endpoint_id in known.items():
            if old.endswith(_HOOK):
                sandbox.replace_endpoint(endpoint_id, by=here)


_OF_AGENTS = ("DATABASE_URL", "REDIS_URL")
_OF_OPERATORS = (
    *_OF_AGENTS,
    "STRIPE_API_KEY",
    "STRIPE_API_BASE",
    "STRIPE_WEBHOOK_SECRET",
    "OUTBOX_PAGERS",
    # Where faults are set: an agent's reply is lost there on purpose, to see what happens then.
    "SANDBOX_ADMIN_URL",
)


@contextlib.contextmanager
def _env_file(name: Path, env: dict[str, str], settings: tuple[str, ...]) -> Iterator[None]:
    """Some settings for a shell to source, there exactly as long as everything runs."""
    path = Path.cwd() / name
    path.parent.mkdir(exist_ok=True)
    text = "".join(f"export {setting}={shlex.quote(env[setting])}\n" for setting in settings)
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
    lines += ["", f"in another terminal, and for your agents:  . {_ENV_FILE}"]
    if sandbox is not None:
        lines.append(f"to rule on what is in doubt, with the sandbox's key:  . {_OPERATOR_FILE}")
    _tell("\n".join([*lines, "Ctrl-C stops it all."]))


def _supervise(stack: Stack, told: threading.Event) -> int:
    deaths: list[float] = []
    while not told.wait(0.5):
        for verb in stack.dead():
            code = stack.programs[verb].process.poll()
            stack.forget(verb)
            now = time.monotonic()
            deaths = [at for at in deaths if now - at < _DEATHS_WITHIN_S] + [now]
            if len(deaths) >= _DEATHS:
                _tell(f"outbox {verb} keeps ending (code {code}); stopping")
                return 1
            _tell(f"outbox {verb} ended with code {code}; starting it again")
            _start_again(stack, verb, told)
    _tell("stopping")
    return 0


def _start_again(stack: Stack, verb: str, told: threading.Event) -> None:
    # One that finds its database away ends, and is the next death; the others go on meanwhile.
    told.wait(_REST_S)
    try:
        stack.start(verb, given_up=told.is_set)
    except ServersError as error:
        _tell(str(error))


class _Stop:
    """SIGINT and SIGTERM end the run in order: while it ``may_raise``, by KeyboardInterrupt, which
    cuts whatever is being waited for, and later by ``told``. Once told, further ones change
    nothing: Ctrl-C sent twice must not cut the clean-up."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.may_raise = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        again = self.told.is_set()
        self.told.set()
        if self.may_raise and not again:
            raise KeyboardInterrupt


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _echo(verb: str, line: str) -> None:
    _tell(f"{verb:7} | {printable(line)}")

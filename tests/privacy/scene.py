"""A whole installation whose every secret and every personal value is a marker, and an ear that
hears all it says: logs of every library at DEBUG, answers, errors, commands, pages, ``repr``."""

from __future__ import annotations

import asyncio
import logging
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import psycopg
from click.testing import CliRunner
from psycopg.rows import dict_row

from outbox import Outbox, Scope, Settings, WriteTool
from resolvers.receiving import Receiver
from tests.statements import fetched
from tests.workers.floor import new_account, wait_until
from vendors.sandbox.client import Sandbox
from workers.cli import root
from workers.runtime import Runtime, Slots
from workers.web import build_app

CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency"),
    money=("amount", "currency"),
    schema={"properties": {"about": {"maxLength": 200}}},
    request=lambda args: {
        "amount": args["amount"],
        "currency": args["currency"],
        "confirm": True,
        "payment_method": "pm_card_visa",
        "description": args["description"],
        "metadata": {"note": args["description"]},
    },
)
SCOPE = Scope(tenant="acme", run_id="run-1")
# The first by its name: the server quotes no more than the beginning of a long value.
PERSONAL = {"description": "Jane-Q7-Doe-of-Elm-Street", "about": "about-Q7-Jane"}
SECRETS = {
    "webhook secret": "whsec_Q7theSecretOfTheDoor",
    "pager key": "R0Q7456789abcdefghijklmnopqrstuv",
    "pager address": "token-Q7-in-the-address",
    "pager secret": "signs-Q7-the-pages",
    "codec key": b64encode(b"Q7-the-key-of-the-codec-Q7-32byt").decode(),
    "codec key, decoded": "Q7-the-key-of-the-codec-Q7-32byt",
    "database password": "pw-Q7-of-the-database",
    "redis password": "pw-Q7-of-redis",
}
LOGGERS = (
    *("", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "psycopg.pool"),
    *("celery", "kombu", "amqp", "redis", "stripe", "requests", "httpx", "httpcore", "urllib3"),
    *("asyncio", "uvicorn", "alembic", "outbox", "resolvers", "vendors", "workers"),
)


@dataclass
class Ear(logging.Handler):
    """Everything that was said, and by whom."""

    heard: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(message)s"))

    __hash__ = logging.Handler.__hash__

    def emit(self, record: logging.LogRecord) -> None:
        self.say(f"log {record.name}", self.format(record))

    def say(self, by: str, what: object) -> None:
        self.heard.append((by, str(what)))

    def error(self, by: str, error: BaseException) -> None:
        """An exception as people, logs and error trackers show it."""
        self.say(f"error {by}", "".join(traceback.format_exception(error)))
        self.say(f"error {by}", f"{error!s} {error!r} {error.args!r} {vars(error)!r}")

    def raising(self, by: str, call: Callable[[], object]) -> None:
        """A call that must raise."""
        try:
            call()
        except Exception as error:
            self.error(by, error)
        else:
            raise AssertionError(f"{by} raised nothing")

    def showing(self, marker: str) -> list[str]:
        """Who showed it, and where."""
        return sorted(
            {f"{by}: ...{_around(what, marker)}" for by, what in self.heard if marker in what}
        )


def _around(what: str, marker: str) -> str:
    at = what.index(marker)
    return what[max(at - 80, 0) : at + len(marker)].replace("\n", " ")


@dataclass
class Scene:
    env: dict[str, str]
    settings: Settings
    sandbox: Sandbox
    account: str
    runtime: Runtime
    receiver: Receiver
    ear: Ear
    markers: Mapping[str, str]
    outbox: Outbox

    @property
    def url(self) -> str:
        return self.settings.database_url.replace("+psycopg", "")

    def sql(self, statement: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """A statement of the test's own."""
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            return fetched(connection.execute(statement.encode(), params))

    def args(self, invoice: str, **changes: Any) -> dict[str, Any]:
        return {"invoice_id": invoice, "amount": 1200, "currency": "usd", **PERSONAL, **changes}

    def enqueue(self, invoice: str, **changes: Any) -> UUID:
        with psycopg.connect(self.url) as connection:
            answer = self.outbox.enqueue(connection, CHARGE, SCOPE, self.args(invoice, **changes))
        self.ear.say("repr of an answer", repr(answer))
        return answer.intent_id

    def command(self, *args: str) -> None:
        """A command as a person reads it, and as a script."""
        for more in ([], ["--json"]):
            ran = CliRunner(env=self.env).invoke(root, [*args, *more])
            self.ear.say(f"stdout of {' '.join(args)}", ran.stdout)
            self.ear.say(f"stderr of {' '.join(args)}", ran.stderr)
            assert ran.exit_code in (0, 3, 4, 5, 6), (args, ran.exit_code, ran.stderr)

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """A request to the web process's application."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(build_app(self.receiver))
            async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
                return await client.post(path, headers=dict(headers), content=body)

        answer = asyncio.run(send())
        self.ear.say(f"answer of {path}", answer.text)
        return answer.status_code

    def drain(self) -> None:
        """The sender until nothing is due now."""
        wait_until(lambda: self.runtime.drain() == 0)

    def shown(self) -> dict[str, list[str]]:
        """Each marker that was shown anywhere, with where."""
        found = {name: self.ear.showing(marker) for name, marker in self.markers.items()}
        return {name: places for name, places in found.items() if places}


@contextmanager
def open_scene(database: str, sandbox: Sandbox, page_url: str, *, sealed: bool) -> Iterator[Scene]:
    account = new_account()
    sandbox.set_account(account, any_customer=True)
    env = {
        "DATABASE_URL": database.replace("postgres@", f"postgres:{SECRETS['database password']}@"),
        "REDIS_URL": f"redis://:{SECRETS['redis password']}@127.0.0.1:1/0",
        "STRIPE_API_KEY": sandbox.api_key(account),
        "STRIPE_API_BASE": sandbox.url,
        "STRIPE_WEBHOOK_SECRET": SECRETS["webhook secret"],
        "OUTBOX_PAGERS": f"webhook:{page_url}/{SECRETS['pager address']},"
        f"pagerduty:{SECRETS['pager key']}@{page_url}",
        "OUTBOX_PAGER_SECRET": SECRETS["pager secret"],
        "OUTBOX_CODEC_KEYS": f"k:{SECRETS['codec key']}" if sealed else "",
        "OUTBOX_PROFILE": "demo",
        "OUTBOX_LOOKS_S": "0.05,0.1",
        "OUTBOX_NOT_SENT_FIRST_S": "0.05",
        "OUTBOX_ACTOR": "alice",
    }
    settings = Settings.from_env(env)
    runtime = Runtime(settings, slots=Slots(2))
    runtime.identify()
    receiver = Receiver(settings)
    outbox = Outbox(settings)
    markers = {**PERSONAL, **SECRETS, "credential": env["STRIPE_API_KEY"]}
    with listening() as ear:
        yield Scene(env, settings, sandbox, account, runtime, receiver, ear, markers, outbox)
    outbox.close()
    receiver.close()
    runtime.close()


@contextmanager
def listening() -> Iterator[Ear]:
    """Every logger at DEBUG, into one ear."""
    ear = Ear()
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(ear)
    try:
        yield ear
    finally:
        logging.getLogger().removeHandler(ear)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)

"""No argument and no secret in any log, page, answer, error, ``repr`` or command: markers are
planted everywhere, everything is made to go wrong, and whatever was said is searched for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from outbox import Settings
from outbox.errors import SettingsError
from outbox.intent import draft, sealed
from outbox.outcomes import Business, Lost, Reading, Receipt, Standing
from outbox.store import intents, records
from outbox.store.claims import Claimer
from outbox.store.records import Ended
from resolvers import pagers
from resolvers.triage_case import read_intent_case
from tests.cli.desk import SCRIPT
from tests.privacy.scene import CHARGE, PERSONAL, SCOPE, SECRETS, Scene, open_scene
from tests.resolvers.deliveries import event, signed
from tests.resolvers.page_target import Answer, page_target
from tests.workers.floor import WAIT_S, wait_until
from vendors.sandbox.client import Sandbox
from workers.cli import root

MARK = PERSONAL["description"]


@pytest.fixture(params=["plain", "sealed"])
def scene(database: str, sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with page_target() as target:
        target.answers = [Answer(500), Answer(404)]
        with open_scene(database, sandbox, target.url, sealed=request.param == "sealed") as opened:
            yield opened
            for path, _, body in target.requests:
                opened.ear.say(
                    f"page to {path[:1]}", body.decode().replace(SECRETS["pager key"], "")
                )
            assert opened.shown() == {}
            opened.ear.say("the test itself", MARK)
            assert "description" in opened.shown()


def forbid_charges(scene: Scene) -> None:
    """The next enqueue breaks a constraint, and the server's DETAIL quotes the row."""
    scene.sql(
        "ALTER TABLE outbox.intents ADD CONSTRAINT no_charges CHECK (tool <> 'charge_invoice') "
        "NOT VALID"
    )


# -- enqueue -------------------------------------------------------------------------------------


WRONG = {
    "a rule of the schema": {"about": PERSONAL["about"] * 20},
    "an amount that is text": {"amount": MARK},
    "a currency that is none": {"currency": MARK},
    "text that is none": {"about": f"{MARK}\ud800"},
    "a number that is none": {"about": [MARK, float("nan")]},
    "a thing that is no JSON": {"about": {MARK, "set"}},
    "a document too large": {"about": {"text": MARK * 10_000}},
    "a document too deep": {"about": json.loads("[" * 40 + f'"{MARK}"' + "]" * 40)},
    "no identity": {"invoice_id": None},
    "a parameter too long": {"description": MARK * 30},
}


@pytest.mark.parametrize("scene", ["plain"], indirect=True)
def test_what_is_refused_quotes_no_argument(scene: Scene) -> None:
    for what, change in WRONG.items():
        with psycopg.connect(scene.url) as connection:
            scene.ear.raising(
                what,
                lambda change=change, at=connection: scene.outbox.enqueue(  # type: ignore[misc]
                    at, CHARGE, SCOPE, scene.args("in_1", **change)
                ),
            )
    raw = json.dumps(scene.args("in_1"))
    for text in (raw[:-1], raw.replace('"about"', '"description"'), raw.encode()[:-1] + b"\xff}"):
        with psycopg.connect(scene.url) as connection:
            scene.ear.raising(
                "raw JSON",
                lambda text=text, at=connection: scene.outbox.enqueue(  # type: ignore[misc]
                    at, CHARGE, SCOPE, text
                ),
            )


def test_a_conflict_and_a_difference_name_fields_only(scene: Scene) -> None:
    scene.enqueue("in_1")
    scene.enqueue("in_1", about=f"another {PERSONAL['about']}")
    with psycopg.connect(scene.url) as connection:
        scene.ear.raising(
            "mismatch",
            lambda: scene.outbox.enqueue(
                connection, CHARGE, SCOPE, scene.args("in_1", amount=1, about=PERSONAL["about"])
            ),
        )
    scene.command("intent", "history", str(intent_of(scene)))


def intent_of(scene: Scene) -> str:
    return str(scene.sql("SELECT id FROM outbox.intents ORDER BY seq LIMIT 1")[0]["id"])


def test_sqlalchemys_logs_show_neither_parameters_nor_rows(scene: Scene) -> None:
    engine = create_engine(scene.settings.database_url, echo="debug")
    with Session(engine) as session, session.begin():
        scene.outbox.enqueue(session, CHARGE, SCOPE, scene.args("in_1"))
    with Session(engine) as session, session.begin():
        again = scene.args("in_1", about="another")
        assert scene.outbox.enqueue(session, CHARGE, SCOPE, again).notes
        scene.outbox.settlements(session, "billing")
    assert any("INSERT INTO outbox.intents" in what for _, what in scene.ear.heard)
    assert any(what.startswith("Row (") for _, what in scene.ear.heard)
    engine.dispose()


def test_an_error_of_the_database_comes_without_the_row(scene: Scene) -> None:
    forbid_charges(scene)
    engine = create_engine(scene.settings.database_url)

    def by_session() -> None:
        with Session(engine) as session, session.begin():
            scene.outbox.enqueue(session, CHARGE, SCOPE, scene.args("in_1"))

    def by_psycopg() -> None:
        with psycopg.connect(scene.url) as connection:
            scene.outbox.enqueue(connection, CHARGE, SCOPE, scene.args("in_1"))

    async def by_async_session() -> None:
        aengine = create_async_engine(scene.settings.database_url)
        try:
            async with aengine.begin() as connection:
                await scene.outbox.aenqueue(connection, CHARGE, SCOPE, scene.args("in_1"))
        finally:
            await aengine.dispose()

    async def by_async_psycopg() -> None:
        async with await psycopg.AsyncConnection.connect(scene.url) as connection:
            await scene.outbox.aenqueue(connection, CHARGE, SCOPE, scene.args("in_1"))

    scene.ear.raising("session", by_session)
    scene.ear.raising("psycopg", by_psycopg)
    scene.ear.raising("async session", lambda: asyncio.run(by_async_session()))
    scene.ear.raising("async psycopg", lambda: asyncio.run(by_async_psycopg()))
    with pytest.raises(DBAPIError) as error:
        by_session()
    scene.ear.say("the statement of an error", f"{error.value.statement} {error.value.params}")
    engine.dispose()


# -- send, look, join, page ----------------------------------------------------------------------


FAULTS = (
    *("lost_ack", "empty_200", "half_body", "bad_gateway_after", "redirect_302"),
    *("stored_500_no_object", "unavailable_503", "do_not_retry", "rate_limited_429"),
    *("status:requires_action", "forbidden_403", "unauthorized_401"),
)


def test_a_send_that_goes_wrong_in_any_way_says_nothing_of_the_request(scene: Scene) -> None:
    for number, kind in enumerate(FAULTS):
        scene.sandbox.fault(kind, account=scene.account, times=1)
        scene.enqueue(f"in_{number}")
        scene.runtime.drain()
        for role in ("expire", "join", "resolve", "escalate"):
            scene.runtime.run(role)
    tell(scene)


def test_a_declined_card_and_a_refused_request_say_nothing_of_it(scene: Scene) -> None:
    scene.sandbox.fault("status:requires_payment_method", account=scene.account, times=1)
    scene.enqueue("in_declined")
    scene.drain()
    scene.enqueue("in_refused", currency="xxx")
    scene.drain()
    tell(scene)


def test_an_answer_that_cannot_be_recorded_says_nothing_of_itself(scene: Scene) -> None:
    scene.enqueue("in_1")
    scene.sql(
        "ALTER TABLE outbox.intents ADD CONSTRAINT no_receipts CHECK (receipt IS NULL) NOT VALID"
    )
    scene.runtime.drain()
    scene.sql("ALTER TABLE outbox.intents DROP CONSTRAINT no_receipts")
    tell(scene)


def test_a_page_and_what_fails_about_it_hold_no_argument_and_no_key(scene: Scene) -> None:
    intent = scene.enqueue("in_1")
    scene.sandbox.fault("lost_ack", account=scene.account, times=1)
    scene.runtime.drain()
    past = "now() - interval '1 hour'"
    scene.sql(f"UPDATE outbox.intents SET escalate_at = {past}, ttl_at = {past}")
    scene.runtime.run("escalate")
    for _ in range(5):
        scene.sql(f"UPDATE outbox.pages SET due_at = {past}")
        scene.runtime.run("page")
    assert any(by.startswith("log httpcore") for by, _ in scene.ear.heard)
    scene.command("escalation", "list")
    scene.command("escalation", "show", str(intent))
    tell(scene)


def test_a_forged_delivery_is_answered_without_a_word_of_it(scene: Scene) -> None:
    intent = scene.enqueue("in_1")
    key = bytes(scene.sql("SELECT key FROM outbox.intents")[0]["key"]).hex()
    made = event({"outbox_id": str(intent), "outbox_key": key})
    made["data"]["object"]["description"] = MARK
    now = int(scene.sql("SELECT extract(epoch FROM outbox.clock()) AS at")[0]["at"])
    path = "/webhooks/stripe/default"
    genuine = signed(made, now, SECRETS["webhook secret"])
    assert scene.post(path, genuine.headers, genuine.body) == 200
    forged = signed(made, now, "whsec_of_another")
    assert scene.post(path, forged.headers, forged.body) == 400
    assert scene.post(path, {"Stripe-Signature": f"t={MARK},v1={MARK}"}, genuine.body) == 400
    old = signed(made, now - 10_000, SECRETS["webhook secret"])
    assert scene.post(path, old.headers, old.body) == 400
    for body in (f'{{"id": "{MARK}', f'["{MARK}"]', f'{{"id": {{"{MARK}": 1}}}}'):
        odd = signed(body, now, SECRETS["webhook secret"])
        scene.post(path, odd.headers, odd.body)
    big = MARK.encode() * 60_000
    assert scene.post(path, signed(big, now, SECRETS["webhook secret"]).headers, big) == 413
    assert scene.post(f"{path}x", genuine.headers, genuine.body) == 404
    scene.sql(
        "ALTER TABLE outbox.webhook_inbox ADD CONSTRAINT no_bodies CHECK (body IS NULL) NOT VALID"
    )
    other = signed({**made, "id": "evt_other"}, now, SECRETS["webhook secret"])
    assert scene.post(path, other.headers, other.body) >= 500
    scene.sql("ALTER TABLE outbox.webhook_inbox DROP CONSTRAINT no_bodies")
    scene.runtime.run("join")
    tell(scene)


def tell(scene: Scene) -> None:
    """Everything that a person or a script can be told of the ledger as it is now."""
    intent = intent_of(scene)
    for command in (
        ("intent", "list"),
        ("intent", "show", intent),
        ("intent", "history", intent),
        ("intent", "redact", intent, "--reason", "x", "--dry-run"),
        ("escalation", "list", "--all"),
        ("webhook", "list"),
        ("vendor", "list"),
        ("vendor", "check"),
        ("config", "show"),
        ("doctor",),
        ("health",),
        ("resolve", "--once"),
        ("schema", "check"),
    ):
        scene.command(*command)
    # All that the ledger keeps beside the four columns.
    for table in scene.sql(
        "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'outbox'"
    ):
        for row in scene.sql(f"SELECT * FROM outbox.{table['name']}"):
            for column, value in row.items():
                codec = row.get(f"{column}_codec")
                if codec is None:
                    scene.ear.say(f"{table['name']}.{column}", value)
                elif codec != "plain" and value is not None:
                    kept = bytes(value) if isinstance(value, memoryview | bytes) else str(value)
                    scene.ear.say(f"{table['name']}.{column}, sealed", kept)


# -- what a debugger or an error tracker shows ---------------------------------------------------


def test_no_repr_shows_an_argument_or_a_secret(scene: Scene) -> None:
    intent = scene.enqueue("in_1")
    made = draft(CHARGE, SCOPE, scene.args("in_2"))
    claimer = Claimer(
        scene.runtime.store, scene.runtime.directory.sendable(), owner="w", lease_s=60
    )
    (claimed,) = claimer.claim(1)
    account = scene.runtime.directory.account("stripe", "default")
    assert account is not None
    reading = Reading("pi_1", Standing.LANDED, Business.PAID, "succeeded", document=MARK)
    facts = scene.runtime.directory.vendor("stripe")
    assert facts is not None
    made_event = event()
    made_event["data"]["object"]["description"] = MARK
    things = [
        *(scene.settings, scene.outbox, scene.runtime, scene.runtime.store, scene.receiver),
        *(scene.runtime.directory, scene.runtime.sender, scene.runtime.looker, scene.runtime.bell),
        *(made, sealed(made, scene.settings.codec), scene.settings.codec, CHARGE, SCOPE),
        *(claimed, claimed.call(account), account, claimer, *scene.runtime.directory.sendable()),
        *(reading, Receipt(reading), Ended(claimed, Receipt(reading)), Ended(claimed, Lost("x"))),
        *pagers.parse(scene.settings),
        *facts.reread_webhook(account, json.dumps(made_event).encode()),
        *(read_intent_case(scene.runtime.store, intent), scene.outbox.wait(intent, 0)),
    ]
    with scene.runtime.store.transaction() as tx:
        records.record(tx, [Ended(claimed, Receipt(reading))])
        things.append(intents.read(tx, intent))
    with psycopg.connect(scene.url) as connection:
        found = scene.outbox.settlements(connection, "billing")
    assert found
    for thing in (*things, *found):
        scene.ear.say(f"repr of {type(thing).__name__}", repr(thing))


@pytest.mark.parametrize("scene", ["sealed"], indirect=True)
def test_a_wrong_setting_is_named_without_its_value(scene: Scene) -> None:
    wrong = {
        "DATABASE_URL": f"mysql://u:{SECRETS['database password']}@h/d",
        "REDIS_URL": f"http://:{SECRETS['redis password']}@h",
        "OUTBOX_PAGERS": f"nobody:{SECRETS['pager key']}",
        "OUTBOX_CODEC_KEYS": SECRETS["codec key"],
        "STRIPE_WEBHOOK_SECRET": ",".join([SECRETS["webhook secret"]] * 3),
        "PORT": SECRETS["pager secret"],
    }
    for name, value in wrong.items():
        scene.ear.raising(
            name,
            lambda name=name, value=value: Settings.from_env(  # type: ignore[misc]
                {**scene.env, name: value}
            ),
        )
    with pytest.raises(SettingsError) as error:
        Settings.from_env({**scene.env, **wrong})
    scene.ear.error("all at once", error.value)
    there = {**scene.env, "DATABASE_URL": wrong["DATABASE_URL"].replace("mysql", "postgresql")}
    scene.env.update(there)
    scene.command("health")


@pytest.mark.parametrize("scene", ["sealed"], indirect=True)
@pytest.mark.parametrize(("process", "ready"), [("worker", "worker: "), ("web", "web: ")])
def test_a_process_says_nothing_of_its_settings(scene: Scene, process: str, ready: str) -> None:
    """Its broker is away, so it says what it can about that."""
    scene.sandbox.fault("lost_ack", account=scene.account, times=1)
    scene.enqueue("in_1")
    running = subprocess.Popen(
        [sys.executable, str(SCRIPT), process],
        env={**scene.env, "PATH": os.environ["PATH"], "PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        scene.ear.say(f"outbox {process}", line)
        if ready in line:
            break
    if process == "worker":
        wait_until(lambda: scene.sql("SELECT attempts FROM outbox.intents")[0]["attempts"])
    running.send_signal(signal.SIGTERM)
    rest, _ = running.communicate(timeout=WAIT_S)
    scene.ear.say(f"outbox {process}", rest)
    assert running.returncode == 0


@pytest.mark.parametrize("scene", ["sealed"], indirect=True)
def test_a_value_that_does_not_open_is_told_without_it(scene: Scene) -> None:
    intent = scene.enqueue("in_1")
    scene.command("intent", "show", str(intent))
    scene.env["OUTBOX_CODEC_KEYS"] = "other:" + "A" * 43 + "="
    scene.command("intent", "show", str(intent), "--with-request")
    scene.sql("UPDATE outbox.intents SET request = args")
    scene.runtime.drain()
    tell(scene)


def test_the_reading_of_personal_data_is_asked_for(scene: Scene) -> None:
    """The one command that shows it, where it was typed that it shall."""
    intent = scene.enqueue("in_1")
    ran = CliRunner(env=scene.env).invoke(root, ["intent", "show", str(intent), "--with-request"])
    assert MARK in ran.stdout

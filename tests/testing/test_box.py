"""The box itself: what it refuses, and what its assertions see."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import psycopg
import pytest

from outbox import Answer, Denied, Invalid, Scope, SettingsError
from outbox.store import intents
from outbox.testing import Clock, Databases, prepare
from tests.workers.floor import CARD, CHARGE, query
from vendors.sandbox.client import Sandbox
from workers.servers import Servers
from workers.testing import OutboxBox, open_box

SCOPE = Scope(tenant="acme", run_id="run-1")


def charge(box: OutboxBox, *, commit: bool = True) -> Answer:
    """A new charge over a connection of the test's own."""
    with psycopg.connect(box.database_url.replace("+psycopg", "")) as connection:
        answer = box.outbox.enqueue(connection, CHARGE, SCOPE, {**CARD, "invoice_id": "in_1"})
        if not commit:
            connection.rollback()
    return answer


def tables(database: str) -> set[str]:
    """The tables of schema outbox that hold rows."""
    names = query(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'outbox'")
    return {
        row["tablename"]
        for row in names
        if query(database, f"SELECT 1 AS one FROM outbox.{row['tablename']} LIMIT 1")
    }


def test_a_database_whose_intents_no_test_made_is_refused_and_keeps_them(
    database: str, sandbox: Sandbox
) -> None:
    with open_box(database, sandbox) as box:
        charge(box)
        box.clock.remove()  # from here on it looks like anybody's
    before = query(database, "SELECT * FROM outbox.intents")
    with pytest.raises(Denied) as refused:
        prepare(database)
    assert refused.value.code == "not_a_test_database"
    assert query(database, "SELECT * FROM outbox.intents") == before
    assert query(database, "SELECT to_regclass('outbox.test_clock') AS t") == [{"t": None}]


@pytest.mark.parametrize("credential", ["sk_live_1", "rk_live_1", "of_no_known_kind"])
def test_an_environment_with_a_live_credential_is_refused(
    database: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, credential: str
) -> None:
    Clock(database).remove()
    monkeypatch.setenv("STRIPE_API_KEY", credential)
    with pytest.raises(Denied) as refused, open_box(database, sandbox):
        pass
    assert refused.value.code == "live_credential"
    assert "stripe/default" in str(refused.value)
    assert query(database, "SELECT to_regclass('outbox.test_clock') AS t") == [{"t": None}]


def test_a_database_without_the_schema_says_how_to_make_it(servers: Servers) -> None:
    with pytest.raises(SettingsError) as refused:
        prepare(servers.database_url)
    assert refused.value.problems == [
        ("outbox_database_url", "the schema is missing: `outbox schema upgrade`")
    ]


def test_what_a_test_left_is_gone_for_the_next(database: str, sandbox: Sandbox) -> None:
    of_the_schema = tables(database)
    with open_box(database, sandbox) as box:
        box.fault("lost_ack")
        charge(box)
        box.deliver_webhooks()
        box.settle()
        box.travel(60)
    with open_box(database, sandbox) as box:
        assert tables(database) == of_the_schema | {"test_clock", "accounts"}
        assert box.clock.offset == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_time_does_not_go_back(outbox_box: OutboxBox, seconds: float) -> None:
    with pytest.raises(Invalid) as refused:
        outbox_box.travel(seconds)
    assert refused.value.field == "seconds"
    assert outbox_box.clock.offset == 0


def test_time_passes_for_the_vendor_as_for_the_database(outbox_box: OutboxBox) -> None:
    outbox_box.travel(3600)
    outbox_box.travel(1800)
    assert outbox_box.clock.offset == 5400
    settings = outbox_box.sandbox.account(outbox_box.account)
    assert settings["clock_offset_s"] == 5400


def test_an_effect_is_found_by_answer_id_and_key(outbox_box: OutboxBox) -> None:
    answer = charge(outbox_box)
    outbox_box.drain()
    with outbox_box.store.transaction() as tx:
        row = intents.read(tx, answer.intent_id)
    assert row is not None
    for name in (answer, answer.intent_id, str(answer.intent_id), row.key, row.key.hex()):
        outbox_box.assert_one_effect(name)
        with pytest.raises(AssertionError, match="expected no effect at the vendor, found 1"):
            outbox_box.assert_no_effect(name)


@pytest.mark.parametrize("name", ["", "in_1", b"short", 7])
def test_what_names_no_intent_is_refused(outbox_box: OutboxBox, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        outbox_box.assert_no_effect(name)
    assert refused.value.field == "intent"


def test_an_intent_that_was_rolled_back_has_no_effect_and_not_one(outbox_box: OutboxBox) -> None:
    answer = charge(outbox_box, commit=False)
    assert outbox_box.drain() == 0
    outbox_box.assert_no_effect(answer)
    with pytest.raises(AssertionError, match="expected one effect at the vendor, found none"):
        outbox_box.assert_one_effect(answer)


def test_an_effect_that_the_ledger_does_not_know_of_yet_is_not_one(outbox_box: OutboxBox) -> None:
    outbox_box.fault("lost_ack")
    answer = charge(outbox_box)
    outbox_box.drain()
    with pytest.raises(AssertionError) as failed:
        outbox_box.assert_one_effect(answer)
    shown = str(failed.value)
    assert shown.startswith("the vendor applied it once, and the ledger says unknown: ")
    assert "fault lost_ack): no answer" in shown


def _rewrite(outbox_box: OutboxBox, intent_id: UUID, changes: str) -> None:
    statement = f"UPDATE outbox.intents SET {changes} WHERE id = %(id)s"
    query(outbox_box.database_url, statement, {"id": intent_id})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("receipt_id = 'pi_other'", "the ledger's receipt is pi_other"),
        ("contradicted_at = outbox.clock()", "the ledger holds a contradiction"),
    ],
)
def test_a_ledger_that_tells_otherwise_is_not_one_effect(
    outbox_box: OutboxBox, changes: str, problem: str
) -> None:
    answer = charge(outbox_box)
    outbox_box.drain()
    _rewrite(outbox_box, answer.intent_id, changes)
    with pytest.raises(AssertionError, match=problem):
        outbox_box.assert_one_effect(answer)


def test_a_success_that_the_vendor_knows_nothing_of_is_not_without_effect(
    outbox_box: OutboxBox,
) -> None:
    answer = charge(outbox_box)
    outbox_box.drain()
    outbox_box.sandbox.reset(outbox_box.account)
    with pytest.raises(AssertionError, match="the ledger says succeeded"):
        outbox_box.assert_no_effect(answer)


def test_an_object_that_the_vendor_cancelled_by_itself_is_no_effect(outbox_box: OutboxBox) -> None:
    outbox_box.fault("stored_500_rolled_back")
    answer = charge(outbox_box)
    outbox_box.drain()
    outbox_box.assert_no_effect(answer)


class TestUnderOtherSettings:
    @pytest.fixture
    def outbox_env(self) -> Mapping[str, str]:
        return {"OUTBOX_CALL_DEADLINE_S": "0.5", "OUTBOX_START_LIMIT_S": "10"}

    def test_settings_by_name_reach_the_box(self, outbox_box: OutboxBox) -> None:
        assert outbox_box.settings.policy.call_deadline_s == 0.5
        outbox_box.fault("hang", attempts=[1])
        answer = charge(outbox_box)
        outbox_box.drain()
        assert outbox_box.outbox.wait(answer, 0).told == "unknown"
        outbox_box.assert_no_effect(answer)


def test_a_template_somebody_is_connected_to_is_copied_all_the_same(
    servers: Servers, outbox_template: str, outbox_databases: Databases
) -> None:
    name = "template_of_an_application"
    address = servers.database_url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {name}".encode())
        url = outbox_template.replace("template_outbox", name)
        pooled = psycopg.connect(url.replace("+psycopg", ""))
        with outbox_databases.fresh(url) as copied:
            assert query(copied, "SELECT 1 AS one") == [{"one": 1}]
        pooled.close()
        administrator.execute(f"DROP DATABASE {name}".encode())

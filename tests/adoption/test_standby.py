"""Standbys are refused: by own sessions, at start-up, and in the caller's transaction."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import Outbox, ReadOnly, Settings, schema
from outbox.store.connection import Store
from resolvers.health import readiness
from tests.adoption.standby import Pair, programs, running_pair
from tests.cli.desk import SCRIPT
from tests.store.book import CHARGE, SCOPE, charge
from tests.workers.floor import query, wait_until

pytestmark = pytest.mark.heavy

replicated = pytest.mark.skipif(programs() is None, reason="pg_basebackup is not installed")
ROLES = ("worker", "beat", "web", "doctor", "intent list")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pair() as running:
        wait_until(running.caught_up)
        yield running


def command(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OUTBOX", "STRIPE"))}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**plain, "DATABASE_URL": url, "OUTBOX_PAGERS": "none", "PORT": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _refused(url: str, kind: str) -> ReadOnly:
    """What enqueue says on a session of that address."""
    outbox = Outbox(Settings(database_url=url))
    with pytest.raises(ReadOnly) as refused:
        _enqueue(outbox, url, kind)
    outbox.close()
    return refused.value


def _enqueue(outbox: Outbox, url: str, kind: str) -> None:
    if kind == "psycopg":
        with psycopg.connect(url.replace("+psycopg", "")) as raw:
            outbox.enqueue(raw, CHARGE, SCOPE, charge())
        return
    engine = create_engine(url)
    try:
        with Session(engine) as session, session.begin():
            outbox.enqueue(session, CHARGE, SCOPE, charge())
    finally:
        engine.dispose()


@replicated
def test_own_sessions_refuse_a_standby_and_name_what_to_do(pair: Pair) -> None:
    store = Store(Settings(database_url=pair.standby))
    with pytest.raises(ReadOnly, match="a standby: DATABASE_URL must name the primary"):
        _read(store)
    assert readiness(store)["ok"] is False
    store.close()


def _read(store: Store) -> Any:
    with store.transaction() as tx:
        return tx.one("SELECT count(*) AS n FROM outbox.intents")


@replicated
@pytest.mark.parametrize("role", ROLES)
def test_nothing_starts_on_a_standby(pair: Pair, role: str) -> None:
    ran = command(pair.standby, *role.split())
    assert (ran.returncode, ran.stdout) == (6, "")
    assert "standby" in ran.stderr
    assert "must name the primary" in ran.stderr
    assert "Traceback" not in ran.stderr


@replicated
@pytest.mark.parametrize("kind", ["psycopg", "session"])
def test_an_enqueue_on_a_standby_says_so_and_records_nothing(pair: Pair, kind: str) -> None:
    error = _refused(pair.standby, kind)
    assert error.told == "not_recorded"
    assert "primary" in str(error)
    assert query(pair.primary, "SELECT id FROM outbox.intents") == []


@replicated
def test_results_and_epochs_are_refused_on_a_standby(pair: Pair) -> None:
    outbox = Outbox(Settings(database_url=pair.primary))
    with psycopg.connect(pair.primary.replace("+psycopg", "")) as raw:
        assert outbox.settlements(raw, "billing") == []
    wait_until(pair.caught_up)
    with psycopg.connect(pair.standby.replace("+psycopg", "")) as raw:
        with pytest.raises(ReadOnly):
            outbox.settlements(raw, "billing")
        raw.rollback()
        with pytest.raises(ReadOnly):
            outbox.advance_epoch(raw, "acme", "run", "turn")
    outbox.close()


@replicated
def test_a_wait_on_a_standby_is_told_as_unknown_and_never_as_failed(pair: Pair) -> None:
    outbox = Outbox(Settings(database_url=pair.standby))
    answer = outbox.wait("00000000-0000-8000-8000-000000000001", timeout_s=0)
    assert (answer.told, answer.status) == ("unknown", "not_seen")
    outbox.close()


@replicated
def test_a_standbys_schema_can_be_checked_and_not_upgraded(pair: Pair) -> None:
    assert command(pair.standby, "schema", "check").returncode == 0
    ran = command(pair.standby, "schema", "upgrade")
    assert (ran.returncode, ran.stdout) == (6, "")
    assert "standby" in ran.stderr


@replicated
def test_the_same_sessions_work_as_soon_as_the_standby_is_promoted() -> None:
    with running_pair() as pair:
        store = Store(Settings(database_url=pair.standby))
        with pytest.raises(ReadOnly):
            _read(store)
        pair.promote()
        wait_until(lambda: _writes(store))
        store.close()


@pytest.mark.parametrize("kind", ["psycopg", "session"])
def test_a_database_that_is_read_only_by_its_settings_is_refused_until_it_is_not(
    database: str, kind: str
) -> None:
    name = query(database, "SELECT current_database()")[0]["current_database"]
    query(database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store = Store(replace(Settings(), database_url=database))
    with pytest.raises(ReadOnly, match="default_transaction_read_only"):
        _read(store)
    _refused(database, kind)
    with pytest.raises(ReadOnly):
        schema.upgrade(database)
    ran = command(database, "doctor")
    assert ran.returncode == 6
    assert "default_transaction_read_only" in ran.stderr
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as raw:
        raw.execute("SET default_transaction_read_only = off")
        raw.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
    wait_until(lambda: _writes(store))  # a connection that was open already is replaced first
    store.close()


def _writes(store: Store) -> bool:
    try:
        return bool(_read(store) == {"n": 0})
    except ReadOnly:
        return False

"""Our own sessions: bounded in time, and READ COMMITTED whatever the database's default is."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from outbox import Invalid, NotFound, Settings, SettingsError, Unreachable
from outbox.errors import Ambiguous
from outbox.store import intents
from outbox.store.connection import Store, probe
from tests.store.book import Book


def test_own_sessions_read_committed_whatever_the_database_says(book: Book) -> None:
    name = book.value("SELECT current_database()")
    book.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    store = Store(book.settings)
    with store.transaction() as tx:
        row = tx.one("SHOW transaction_isolation")
    store.close()
    assert row == {"transaction_isolation": "read committed"}


def test_own_sessions_have_bounded_patience(book: Book) -> None:
    wanted = {
        "statement_timeout": "5s",
        "lock_timeout": "2s",
        "idle_in_transaction_session_timeout": "10s",
    }
    with book.store.transaction() as tx:
        for name, value in wanted.items():
            assert tx.one(f"SHOW {name}") == {name: value}


PREPARED = "SELECT count(*) AS n FROM pg_prepared_statements"


def test_what_a_session_prepared_and_does_not_know_any_more_is_not_prepared_again(
    book: Book,
) -> None:
    with book.store.transaction() as tx:
        for _ in range(3):
            tx.one("SELECT 1 AS one")
        assert tx.one(PREPARED) == {"n": 1}
        # As where somebody between gives the connection another server session.
        tx.run("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    with pytest.raises(Unreachable), book.store.transaction() as tx:
        tx.one("SELECT 1 AS one")
    for _ in range(4):
        with book.store.transaction() as tx:
            assert tx.one("SELECT 1 AS one") == {"one": 1}
            assert tx.one(PREPARED) == {"n": 0}
            assert tx.one("SHOW statement_timeout") == {"statement_timeout": "5s"}


def test_a_statement_whose_result_a_migration_changed_is_prepared_anew(book: Book) -> None:
    book.sql("CREATE TABLE seen AS SELECT 1 AS one")
    store = Store(book.settings, size=1)
    with store.transaction() as tx:
        assert [tx.one("SELECT * FROM seen") for _ in range(3)] == [{"one": 1}] * 3
    book.sql("ALTER TABLE seen ADD COLUMN two integer DEFAULT 2")
    with pytest.raises(Unreachable), store.transaction() as tx:
        tx.one("SELECT * FROM seen")
    with store.transaction() as tx:
        assert [tx.one("SELECT * FROM seen") for _ in range(3)] == [{"one": 1, "two": 2}] * 3
        assert tx.one(PREPARED) == {"n": 1}
    store.close()


def test_a_lock_that_is_not_given_is_unreachable_and_loses_nothing(book: Book) -> None:
    answer = book.enqueue()
    store = Store(replace(book.settings, lock_timeout_s=0.05))
    with psycopg.connect(book.url) as holder:
        holder.execute("SELECT 1 FROM outbox.intents FOR UPDATE")
        with pytest.raises(Unreachable), store.transaction() as tx:
            intents.lock(tx, answer.intent_id)
    with store.transaction() as tx:
        assert intents.lock(tx, answer.intent_id) is not None
    store.close()


def test_a_statement_that_takes_too_long_is_unreachable(book: Book) -> None:
    store = Store(replace(book.settings, statement_timeout_s=0.05))
    with pytest.raises(Unreachable), store.transaction() as tx:
        tx.one("SELECT pg_sleep(30)")
    store.close()


def test_a_closed_store_and_a_missing_database_say_so(book: Book) -> None:
    store = Store(book.settings)
    store.close()
    with pytest.raises(Unreachable), store.transaction():
        pytest.fail("a closed store gave a connection")
    with pytest.raises(SettingsError):
        Store(Settings())


def test_an_unreachable_database_is_named_without_its_password() -> None:
    url = "postgresql+psycopg://someone:SECRET@127.0.0.1:1/d"
    with pytest.raises(Unreachable) as error:
        probe(Settings(database_url=url))
    assert "SECRET" not in str(error.value)


def test_an_id_may_be_shortened_as_far_as_it_is_unambiguous(book: Book) -> None:
    first, second = book.enqueue().intent_id, book.enqueue().intent_id
    with book.store.transaction() as tx:
        assert intents.expand(tx, "intent", str(first)) == first
        assert intents.expand(tx, "intent", second.hex[:12].upper()) == second
    book.sql("UPDATE outbox.intents SET id = ('abcdef00-0000-8000-8000-00000000000' || seq)::uuid")
    with book.store.transaction() as tx:
        with pytest.raises(Ambiguous) as ambiguous:
            intents.expand(tx, "intent", "abcdef")
        assert len(ambiguous.value.candidates) == 2
        with pytest.raises(NotFound):
            intents.expand(tx, "intent", "123456")
        for wrong in ("", "abcde", "not-hex", "a" * 33):
            with pytest.raises(Invalid) as refused:
                intents.expand(tx, "intent", wrong)
            assert refused.value.field == "intent"

"""A database that goes silent: its host vanishes, no connection is told, and new ones work."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox import Outbox, Settings, Unreachable
from outbox.store import records
from outbox.store.connection import Store, probe
from outbox.store.records import Ended
from tests.store.book import Book, receipt, wait_until
from tests.workers.proxy import PostgresProxy
from workers.servers import Servers


@pytest.fixture
def proxy(servers: Servers) -> Iterator[PostgresProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as between,
    ):
        yield between


@pytest.fixture
def through(book: Book, proxy: PostgresProxy) -> Settings:
    return replace(book.settings, database_url=proxy.url(book.settings.database_url))


def _ends(work: Callable[[], object]) -> object:
    """What it came to; fails where it hangs."""
    found: list[object] = []
    threading.Thread(target=lambda: found.append(work()), daemon=True).start()
    wait_until(lambda: bool(found))
    return found[0]


def test_a_wait_over_a_connection_that_fell_silent_is_answered_in_its_time(
    book: Book, through: Settings, proxy: PostgresProxy
) -> None:
    row = book.in_flight()
    outbox = Outbox(through)
    assert outbox.wait(row.id, timeout_s=0).told == "accepted"
    proxy.fall_silent()
    assert _ends(lambda: outbox.wait(row.id, timeout_s=0.5).status) == "not_seen"
    proxy.fall_silent()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row))])
    assert _ends(lambda: outbox.wait(row.id, timeout_s=6).told) == "settled"
    outbox.close()


def test_every_connection_of_a_pool_that_fell_silent_is_replaced(
    book: Book, through: Settings, proxy: PostgresProxy
) -> None:
    store = Store(replace(through, statement_timeout_s=0.2), size=2)

    def ask_on_both() -> None:
        with store.transaction() as first, store.transaction() as second:
            first.one("SELECT 1")
            second.one("SELECT 1")

    ask_on_both()
    proxy.fall_silent()

    def outlast() -> str:
        while True:
            with contextlib.suppress(Unreachable):
                ask_on_both()
                return "works again"

    assert _ends(outlast) == "works again"
    store.close()


def test_a_commit_into_silence_is_unreachable_and_not_taken_for_done(
    book: Book, through: Settings, proxy: PostgresProxy
) -> None:
    store = Store(replace(through, statement_timeout_s=0.2))

    def write() -> str:
        try:
            with store.transaction() as tx:
                tx.run("CREATE TABLE public.left_over (n int)")
                proxy.fall_silent()
        except Unreachable:
            return "unreachable"
        return "done"

    assert _ends(write) == "unreachable"
    assert book.value("SELECT to_regclass('public.left_over')") is None
    store.close()


def test_a_server_that_takes_the_connection_and_says_nothing_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql+psycopg://u@127.0.0.1:{listener.getsockname()[1]}/d"

        def ask() -> str:
            with pytest.raises(Unreachable):
                probe(Settings(database_url=url), limit_s=2)
            return "unreachable"

        assert _ends(ask) == "unreachable"


def test_what_the_address_says_of_keepalives_is_kept(book: Book) -> None:
    said = f"{book.settings.database_url}&connect_timeout=9&keepalives_idle=77"
    store = Store(replace(book.settings, database_url=said))
    with store.transaction() as tx:
        seen = tx.connection.info.get_parameters()
    store.close()
    assert (seen["connect_timeout"], seen["keepalives_idle"]) == ("9", "77")
    assert seen["tcp_user_timeout"] == "15000"

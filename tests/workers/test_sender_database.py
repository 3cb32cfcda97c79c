"""The database goes away in the middle of a drain: nothing is forgotten, nothing is sent twice."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.errors import Unreachable
from outbox.store.connection import Store
from tests.workers.floor import READS, Floor, open_floor, wait_until
from tests.workers.proxy import CLAIM, RECORD, PostgresProxy
from vendors.sandbox.client import Sandbox
from workers.recording import Left, Recorder, Result
from workers.sender import Sender
from workers.servers import Servers

_KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'outbox'"
)
_OPEN = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox' "
    "AND datname = current_database() AND xact_start IS NOT NULL"
)


@pytest.fixture
def proxy(servers: Servers) -> Iterator[PostgresProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as between,
    ):
        yield between


def _proxied(floor: Floor, proxy: PostgresProxy) -> tuple[Store, Sender]:
    settings = replace(floor.settings, database_url=proxy.url(floor.settings.database_url))
    store = Store(settings)
    return store, floor.new_sender(store)


def test_a_killed_connection_does_not_spoil_the_sender_for_later_rows(floor: Floor) -> None:
    """B42: one lost connection, then more intents to the same process."""
    floor.sandbox.fault("slow", account=floor.account, after_s=0.4, times=5)
    hit = floor.enqueue(5)
    drain = floor.drain_beside()
    wait_until(lambda: len(floor.posts()) == 5)
    floor.sql(_KILL)
    drain.join()
    assert [floor.status(intent_id) for intent_id in hit] == ["succeeded"] * 5
    later = floor.enqueue(3)
    floor.drain()
    assert [floor.status(intent_id) for intent_id in later] == ["succeeded"] * 3
    assert len(floor.posts()) == 8


def test_an_answer_whose_commit_never_arrived_is_recorded_again(
    floor: Floor, proxy: PostgresProxy
) -> None:
    """B07 (c): the link drops before the COMMIT; a failed commit is not a failed call."""
    store, sender = _proxied(floor, proxy)
    floor.sandbox.fault("slow", account=floor.account, after_s=0.5)
    intent_id = floor.one()
    drain = floor.drain_beside(sender)
    proxy.what, proxy.lose_commit = RECORD, 2
    drain.join()
    store.close()
    assert proxy.lost == 2
    assert floor.status(intent_id) == "succeeded"
    assert floor.outcomes(intent_id) == ["receipt"]
    assert len(floor.posts()) == 1


def test_an_answer_whose_commit_was_applied_and_not_confirmed_counts_once(
    floor: Floor, proxy: PostgresProxy
) -> None:
    """B07 (b): the COMMIT was applied and its reply lost."""
    store, sender = _proxied(floor, proxy)
    floor.sandbox.fault("slow", account=floor.account, after_s=0.5)
    intent_id = floor.one()
    drain = floor.drain_beside(sender)
    proxy.what, proxy.lose_commit_reply = RECORD, 1
    drain.join()
    store.close()
    assert proxy.lost == 1
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["contradicted_at"]) == ("succeeded", 0, None)
    assert len(floor.sql("SELECT * FROM outbox.settlements")) == 1
    assert floor.escalations() == []
    assert len(floor.posts()) == 1


def test_doubt_recorded_twice_by_a_lost_confirmation_counts_once(
    floor: Floor, proxy: PostgresProxy
) -> None:
    """B07 (b), for a lost answer: the same attempt is one doubt."""
    store, sender = _proxied(floor, proxy)
    floor.sandbox.fault("hang", account=floor.account)
    intent_id = floor.one()
    drain = floor.drain_beside(sender)
    proxy.what, proxy.lose_commit_reply = RECORD, 1
    drain.join()
    store.close()
    assert proxy.lost == 1
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"]) == ("unknown", 1)
    floor.sandbox.clear_faults(floor.account)


def test_a_claim_whose_commit_was_not_confirmed_is_doubt_and_not_a_second_send(
    floor: Floor, proxy: PostgresProxy
) -> None:
    """The claim is committed, the consumer does not know: no byte left, and none may."""
    store, sender = _proxied(floor, proxy)
    intent_id = floor.one()
    proxy.what, proxy.lose_commit_reply = CLAIM, 1
    with pytest.raises(Unreachable):
        sender.drain()
    store.close()
    assert proxy.lost == 1
    # The server may still be at it: nobody waits for its reply.
    wait_until(lambda: floor.status(intent_id) == "in_flight")
    assert floor.posts() == []
    floor.advance(floor.settings.policy.lease_s + 1)
    floor.settle()
    assert floor.effects(intent_id) == 1
    assert len(floor.posts()) == 1


def test_no_transaction_is_open_while_a_call_is_on_the_wire(
    database: str, sandbox: Sandbox
) -> None:
    """B31: one connection, a vendor that takes longer than any idle transaction may live."""
    with open_floor(database, sandbox, pool=1, OUTBOX_IDLE_TIMEOUT_S="0.2") as floor:
        sandbox.fault("slow", account=floor.account, after_s=0.8)
        intent_id = floor.one()
        drain = floor.drain_beside()
        wait_until(floor.posts)
        assert floor.row(intent_id)["status"] == "in_flight"
        wait_until(lambda: floor.sql(_OPEN) == [])
        assert drain.is_alive(), "none, and the call is still on the wire"
        # And no row lock: another session may take it.
        floor.sql("SELECT id FROM outbox.intents FOR UPDATE NOWAIT")
        drain.join()
        assert floor.row(intent_id)["status"] == "succeeded"


def test_no_transaction_is_open_while_a_look_up_is_on_the_wire(
    database: str, sandbox: Sandbox
) -> None:
    """B31, for reads."""
    with open_floor(database, sandbox, pool=1, OUTBOX_IDLE_TIMEOUT_S="0.2") as floor:
        sandbox.fault("lost_ack", account=floor.account)
        sandbox.fault("slow", account=floor.account, endpoint=READS, after_s=0.35)
        intent_id = floor.one()
        floor.drain()
        floor.advance(1)
        look = threading.Thread(target=floor.look)
        look.start()
        wait_until(floor.reads)
        wait_until(lambda: floor.sql(_OPEN) == [])
        assert look.is_alive(), "none, and the read is still on the wire"
        floor.sql("SELECT id FROM outbox.intents FOR UPDATE NOWAIT")
        look.join()
        assert floor.row(intent_id)["status"] == "succeeded"


def test_a_process_told_to_end_does_not_wait_for_ever_for_a_database_that_is_away(
    database: str, sandbox: Sandbox, proxy: PostgresProxy
) -> None:
    with open_floor(database, sandbox, OUTBOX_STATEMENT_TIMEOUT_S="0.3") as floor:
        store, sender = _proxied(floor, proxy)
        sandbox.fault("slow", account=floor.account, after_s=0.5)
        intent_id = floor.one()
        drain = floor.drain_beside(sender)
        wait_until(floor.posts)
        proxy.lose_commit = 10**6
        floor.told_to_stop.set()
        drain.join(timeout=30)
        assert not drain.is_alive()
        store.close()
        # What it knew died with it; its lease ends, and evidence settles the row.
        floor.told_to_stop.clear()
        floor.advance(floor.settings.policy.lease_s + 1)
        floor.settle()
        assert floor.effects(intent_id) == 1
        assert len(floor.posts()) == 1


def test_a_write_that_breaks_by_a_mistake_of_ours_keeps_no_later_claim_waiting(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are left to their leases; what may have closed a gate is not waited for any more."""
    write, broken = Recorder.write, list[list[Result]]()

    def breaks(recorder: Recorder, batch: list[Result]) -> Left:
        if not broken:
            broken.append(batch)
            raise ValueError("a mistake")
        return write(recorder, batch)

    monkeypatch.setattr(Recorder, "write", breaks)
    floor.sandbox.accept_connections(False)
    floor.one()
    with pytest.raises(ValueError, match="a mistake"):
        floor.drain()
    floor.sandbox.accept_connections(True)
    later = floor.one()
    floor.drain()
    assert floor.status(later) == "succeeded"

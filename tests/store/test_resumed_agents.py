"""Agents that run again: a node from its top, a call over a new connection, a schedule a day later.
Each write is one row, and what is told says whether it is new."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox import Answer
from outbox.outcomes import Lost
from outbox.store import records
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, Book, charge, plain, receipt
from tests.workers.proxy import PostgresProxy
from workers.servers import Servers

DAY = 86_400.0
# A node of a graph: it asks for A, waits for a person (its process ends there), and then asks for
# B. What resumes it runs it from its top, in a new process and with new call ids.
NODE = """
import json, sys
import psycopg
from outbox import Outbox, Scope, Settings
from tests.store.book import ACCOUNT, CHARGE, charge

url, call, answered = sys.argv[1], sys.argv[2], sys.argv[3] == "answered"
outbox = Outbox(Settings(database_url=url, accounts={("stripe", "default"): ACCOUNT}))
scope = Scope(tenant="acme", run_id="run_1")
told = []
for name in ("A", "B"):
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        args = charge(name, memo=f"as {call} says", tool_call_id=f"{call}_{name}")
        told.append(outbox.enqueue(connection, CHARGE, scope, args).as_json())
    if not answered:
        break
print(json.dumps(told))
"""


@pytest.fixture
def proxy(servers: Servers) -> Iterator[PostgresProxy]:
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as between,
    ):
        yield between


def _node(book: Book, call: str, *, answered: bool) -> list[dict[str, Any]]:
    """What each enqueue of the node was told."""
    ran = subprocess.run(
        [sys.executable, "-c", NODE, book.settings.database_url, call,
         "answered" if answered else "asks"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    told: list[dict[str, Any]] = json.loads(ran.stdout)
    return told


def _settle(book: Book) -> None:
    """Whatever is due is sent, and lands."""
    for row in book.claimer().claim(64):
        with book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row, "pi_A"))])


@pytest.mark.parametrize("meanwhile", ["nothing", "landed"])
def test_a_node_that_is_resumed_twice_in_new_processes_asks_for_each_write_once(
    book: Book, meanwhile: str
) -> None:
    """B05: A was asked for before the pause, B after it; A may have been settled by then."""
    (first,) = _node(book, "call_1", answered=False)
    assert first["deduplicated"] is False
    if meanwhile != "nothing":
        _settle(book)
    resumed, again = (_node(book, call, answered=True) for call in ("call_2", "call_3"))
    state = {"nothing": "accepted", "landed": "settled"}[meanwhile]
    assert [one["deduplicated"] for one in resumed] == [True, False]
    assert [one["deduplicated"] for one in again] == [True, True]
    assert {resumed[0]["intent_id"], again[0]["intent_id"]} == {first["intent_id"]}
    assert [one["state"] for one in (resumed[0], again[0])] == [state, state]
    assert resumed[1]["intent_id"] == again[1]["intent_id"] != first["intent_id"]
    assert book.count() == 2
    assert len(book.claimer().claim(64)) == (2 if meanwhile == "nothing" else 1)


def test_a_call_whose_connection_dropped_after_the_commit_is_issued_again_and_is_one_write(
    book: Book, proxy: PostgresProxy
) -> None:
    """B06: nobody told the client that it was recorded; it comes back twice at once."""
    args = charge("in_dropped")
    url = plain(proxy.url(book.settings.database_url))
    first = psycopg.connect(url)
    recorded = book.outbox.enqueue(first, CHARGE, SCOPE, args)
    proxy.lose_commit_reply = 1
    with pytest.raises(psycopg.OperationalError):
        first.commit()
    assert proxy.lost == 1
    start = threading.Barrier(2)

    def issue(number: int) -> Answer:
        with psycopg.connect(book.url) as connection:
            start.wait()
            reworded = {**args, "memo": f"once more ({number})", "tool_call_id": f"call_{number}"}
            return book.outbox.enqueue(connection, CHARGE, SCOPE, reworded)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(issue, range(2)))
    for answer in answers:
        assert (answer.intent_id, answer.deduplicated) == (recorded.intent_id, True)
        said = answer.as_json()
        assert said["state"] == "accepted"
        assert said["intent_id"] == str(recorded.intent_id)
        assert "do not" in said["next"]
    assert book.count() == 1
    assert len(book.claimer().claim(64)) == 1


def test_a_call_that_is_issued_again_while_its_write_is_in_doubt_is_told_unknown(
    book: Book,
) -> None:
    """B06: never a plain error, which invites a new call."""
    args = charge("in_doubt")
    answer = book.enqueue(args=args)
    (row,) = book.claimer().claim(64)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Lost("no reply"))])
    again = book.enqueue(args=args)
    assert (again.intent_id, again.told) == (answer.intent_id, "unknown")
    assert "do NOT retry" in again.next
    assert book.claimer().claim(64) == []


def test_a_schedule_that_repeats_the_next_day_is_told_whose_answer_it_gets(book: Book) -> None:
    """B36: never in silence. The run is the same, so the write is; its time says so."""
    args = charge("in_daily")
    first = book.enqueue(args=args)
    _settle(book)
    book.forward(DAY)
    again = book.enqueue(args=args)
    assert (again.intent_id, again.deduplicated) == (first.intent_id, True)
    assert again.recorded_at == first.recorded_at
    tomorrow = book.enqueue(scope=replace(SCOPE, run_id="run-of-the-next-day"), args=args)
    assert tomorrow.intent_id != first.intent_id
    assert not tomorrow.deduplicated
    assert tomorrow.recorded_at is not None
    assert first.recorded_at is not None
    assert (tomorrow.recorded_at - first.recorded_at).total_seconds() >= DAY

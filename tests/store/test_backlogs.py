"""A backlog of one account, however large, keeps no other account waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from outbox.errors import Busy
from outbox.store import claims_sql
from outbox.store.claims import Claimer
from outbox.store.connection import Store, Transaction
from tests.statements import copied
from tests.store.book import ACCOUNT, LANED, Book

MANY = 3000
_GATES = {
    "gate": "account || '/charge/t' || n || '/'",
    "tenant": "'t' || n",
}
_LANES = {
    "lane": "account || '/' || left(encode(sha256(convert_to(i.tenant, 'UTF8')), 'hex'), 32) "
    "|| '/' || encode(sha256(n::text::bytea), 'hex')"
}


def _fill(book: Book, account: str, count: int, **columns: str) -> None:
    """Rows like the first one, of another account."""
    prefix = f"'stripe/{account}'"
    made = {
        "key": "sha256(gen_random_uuid()::text::bytea)",
        "fingerprint": "sha256(gen_random_uuid()::text::bytea)",
        "account": f"'{account}'",
        "gate": f"{prefix} || '/charge/acme/'",
        **{name: sql.replace("account", prefix) for name, sql in columns.items()},
    }
    copied(book.sql, count, made)


def _pause(book: Book, account: str) -> None:
    book.sql(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) VALUES "
        f"('vendor:stripe/{account}', 'pause', 'stripe/{account}/', 'x', 'me', now())"
    )


@pytest.mark.parametrize("columns", [_GATES, _LANES], ids=["gates", "lanes"])
@pytest.mark.parametrize("closed", ["paused", "not known here"])
def test_all_of_a_closed_accounts_gates_and_lanes_cost_one_step(
    book: Book, columns: dict[str, str], closed: str
) -> None:
    """A backlog of 300,000 tenants or lanes took every claim past its time, of every account."""
    first = book.enqueue(LANED if columns is _LANES else replace(LANED, lane=()))
    _fill(book, "closed", MANY, **columns)
    accounts = [ACCOUNT, replace(ACCOUNT, name="closed")]
    if closed == "paused":
        _pause(book, "closed")
    else:
        accounts.pop()
    claimer = _claimer(book, *accounts, steps=4)
    asked = _Counted(claimer)
    assert [row.id for row in claimer.claim(64)] == [first.intent_id]
    assert asked.scans == 1


def test_a_scan_is_done_in_steps_and_goes_round_once(book: Book) -> None:
    """Open gates of which nothing is due: bounded statements, from where the last one stopped."""
    book.enqueue(replace(LANED, lane=()))
    _fill(book, "busy", 40, **_GATES)
    book.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 hour'")
    claimer = _claimer(book, ACCOUNT, replace(ACCOUNT, name="busy"), steps=10)
    asked = _Counted(claimer)
    assert claimer.claim(64) == []
    assert 4 <= asked.scans <= 6
    due = book.sql("SELECT id, gate FROM outbox.intents ORDER BY gate DESC LIMIT 1")
    book.sql("UPDATE outbox.intents SET due_at = now() WHERE id = %(id)s", due[0])
    assert [row.id for row in claimer.claim(64)] == [due[0]["id"]]
    assert claimer.claim(64) == []


def test_a_scan_that_begins_in_the_middle_finds_what_lies_before_it(book: Book) -> None:
    book.enqueue(replace(LANED, lane=()))
    _fill(book, "busy", 20, **_GATES)
    claimer = _claimer(book, ACCOUNT, replace(ACCOUNT, name="busy"), steps=3)
    got = [row.id for _ in range(21) for row in claimer.claim(1)]
    assert len(set(got)) == 21
    assert claimer.claim(64) == []


def _claimer(book: Book, *accounts: Any, steps: int) -> Claimer:
    made = book.claimer(*accounts)
    for part in made._parts:
        part.params = {**part.params, "steps": steps}
    return made


class _Counted:
    """Counts the scans of a claimer."""

    def __init__(self, claimer: Claimer) -> None:
        self.scans = 0
        (part,) = claimer._parts
        run = part._run

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.scans += 1
            return run(*args, **kwargs)

        part._run = counted  # type: ignore[method-assign]


def test_lanes_that_cannot_be_read_in_time_hold_up_no_row_without_one(book: Book) -> None:
    book.enqueue(LANED)
    free = book.enqueue(replace(LANED, lane=()))
    claimer = book.claimer()
    (part,) = claimer._parts
    scan = part._scan

    def slow(ways: Any, limit: int, start: str, place: Any) -> Any:
        if set(ways) & set(claims_sql.LANE_BATCH.values()):
            with book.store.transaction() as tx:
                tx.run("SET LOCAL statement_timeout = 1")
                tx.run("SELECT pg_sleep(60)")
        return scan(ways, limit, start, place)

    part._scan = slow  # type: ignore[method-assign]
    assert [row.id for row in claimer.claim(64)] == [free.intent_id]
    with pytest.raises(Busy):
        claimer.claim(64)


def test_a_lock_that_is_not_had_in_time_is_said_to_be_busy_and_not_away(
    book: Book,
) -> None:
    book.enqueue()
    with psycopg.connect(book.url) as holding:
        holding.execute("SELECT id FROM outbox.intents FOR UPDATE")
        store = Store(replace(book.settings, lock_timeout_s=0.1))
        try:
            with pytest.raises(Busy), store.transaction() as tx:
                _lock_all(tx)
        finally:
            store.close()


def _lock_all(tx: Transaction) -> None:
    tx.run("SELECT id FROM outbox.intents FOR UPDATE")


def test_an_empty_table_is_asked_one_question(book: Book) -> None:
    """The claim is planned each time: where nothing waits, nothing is planned."""
    claimer = _claimer(book, ACCOUNT, steps=10)
    asked = _Counted(claimer)
    assert claimer.claim(64) == []
    assert claimer.claim_alone() == []
    assert asked.scans == 0

"""A new fingerprint rule finds what was recorded under the one before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import rfc8785

from outbox import IntentMismatch, Invalid, RetryTransaction, Scope
from outbox import fingerprint as fingerprints
from tests.store.book import CHARGE, ONCE, SCOPE, TURN, Book, charge, receipt, wait_until
from tests.store.test_waiting import settle


def another_rule(identity: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(b"2:" + rfc8785.dumps(dict(identity))).digest()


@pytest.fixture
def records_under(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Both rules are known; the value says under which one this process records."""
    monkeypatch.setitem(fingerprints.RULES, 2, another_rule)
    return lambda version: monkeypatch.setattr(fingerprints, "FINGERPRINT_VERSION", version)


def versions(book: Book) -> list[int]:
    rows = book.sql("SELECT fingerprint_version AS n FROM outbox.intents ORDER BY seq")
    return [row["n"] for row in rows]


@pytest.mark.parametrize("tool", [CHARGE, ONCE], ids=["once a run", "once a tenant"])
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)], ids=["rollout", "rollback"])
def test_the_same_write_under_another_rule_is_the_same_intent(
    book: Book, records_under: Callable[[int], None], tool: Any, first: int, then: int
) -> None:
    records_under(first)
    recorded = book.enqueue(tool, args=charge("in_a"))
    records_under(then)
    again = book.enqueue(tool, args=charge("in_a"))
    assert (again.intent_id, again.deduplicated) == (recorded.intent_id, True)
    with pytest.raises(IntentMismatch):
        book.enqueue(tool, args=charge("in_a", amount=1))
    other = book.enqueue(tool, args=charge("in_b"))
    assert not other.deduplicated
    assert versions(book) == [first, then]


def test_a_twin_of_a_later_turn_is_guarded_across_two_rules(
    book: Book, records_under: Callable[[int], None]
) -> None:
    records_under(1)
    first = book.enqueue(TURN, replace(SCOPE, epoch="e1"), charge("in_a"))
    records_under(2)
    second = book.enqueue(TURN, replace(SCOPE, epoch="e2"), charge("in_a"))
    assert second.intent_id == first.intent_id
    settle(book, first)
    assert book.outbox.wait(first, 0).told == "settled"
    assert not book.enqueue(TURN, replace(SCOPE, epoch="e3"), charge("in_a")).deduplicated
    assert versions(book) == [1, 2]


def test_rows_of_every_rule_that_is_known_are_claimed(
    book: Book, records_under: Callable[[int], None]
) -> None:
    records_under(1)
    book.enqueue()
    records_under(2)
    book.enqueue()
    book.enqueue()
    book.sql(
        "UPDATE outbox.intents SET fingerprint_version = 3 WHERE seq = "
        "(SELECT max(seq) FROM outbox.intents)"
    )
    assert sorted(row.fingerprint_version for row in book.claimer().claim(64)) == [1, 2]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("tool", [CHARGE, TURN], ids=["one key", "a twin"])
def test_two_processes_that_record_one_write_under_two_rules_record_it_once(
    book: Book, records_under: Callable[[int], None], tool: Any, ends: str
) -> None:
    turns = [replace(SCOPE, epoch=e) if tool is TURN else SCOPE for e in ("e1", "e2")]
    with psycopg.connect(book.url) as old, ThreadPoolExecutor(1) as pool:
        records_under(1)
        first = book.outbox.enqueue(old, tool, turns[0], charge("in_a"))
        records_under(2)
        racing = pool.submit(book.enqueue, tool, turns[1], charge("in_a"))
        wait_until(
            lambda: bool(
                book.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'")
            )
        )
        getattr(old, ends)()
        second = racing.result()
    assert (second.intent_id == first.intent_id) == (ends == "commit")
    assert versions(book) == ([1] if ends == "commit" else [2])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_hides_a_row_of_another_rule_repeats_the_transaction(
    book: Book, records_under: Callable[[int], None], level: str
) -> None:
    with psycopg.connect(book.url) as caller:
        caller.execute(
            f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}".encode()
        )
        caller.commit()
        caller.execute("SELECT count(*) FROM outbox.intents")
        records_under(1)
        recorded = book.enqueue(args=charge("in_a"))
        records_under(2)
        with pytest.raises(RetryTransaction):
            book.outbox.enqueue(caller, CHARGE, SCOPE, charge("in_a"))
        caller.rollback()
        again = book.outbox.enqueue(caller, CHARGE, SCOPE, charge("in_a"))
        assert (again.intent_id, again.deduplicated) == (recorded.intent_id, True)
        assert not book.outbox.enqueue(caller, CHARGE, SCOPE, charge("in_b")).deduplicated


# -- one text in two spellings -------------------------------------------------------------------

COMPOSED, DECOMPOSED = "Caf\u00e9-42", "Cafe\u0301-42"


def test_an_identity_in_another_unicode_form_is_the_same_write(book: Book) -> None:
    first = book.enqueue(args=charge(DECOMPOSED, customer="cus_\u00e9"))
    again = book.enqueue(args=charge(COMPOSED, customer="cus_e\u0301"))
    assert (again.intent_id, again.deduplicated, again.notes) == (first.intent_id, True, ())
    (row,) = book.claimer().claim(64)
    # What is sent is the composed form, whoever said it first.
    assert COMPOSED in (row.request or "")
    assert DECOMPOSED not in (row.request or "")
    assert receipt(row).reading.owner == str(first.intent_id)


@pytest.mark.parametrize("field", ["tenant", "run_id", "account", "epoch"])
def test_a_scope_in_another_unicode_form_is_refused(field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Scope(**{"tenant": "acme", "run_id": "run", field: DECOMPOSED})
    assert refused.value.field == f"scope.{field}"

"""The claim: who may send which row, and what forbids it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from outbox import Scope
from outbox.contract import Account
from outbox.intent import gate_prefix
from outbox.outcomes import Lost, NotSent
from outbox.states import Event
from outbox.store import doubt, epochs, intents, overdue, records, switches
from outbox.store.callers import run
from outbox.store.claims import Claimer
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import ACCOUNT, CHARGE, SCOPE, TURN, Book, charge

OTHER = Account("other", "test", credential="sk_test_y")


def ids(rows: list[Intent]) -> list[UUID]:
    return [row.id for row in rows]


def lose(book: Book, row: Intent, *, approve: bool = True) -> None:
    """The attempt's answer is lost; with ``approve`` the resolver allows a re-send at once."""
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Lost("no reply"))])
    if approve:
        with book.store.transaction() as tx:
            current = intents.lock(tx, row.id)
            assert current is not None
            apply(tx, current, Event.RESEND_APPROVED, Change(actor="resolver", due_in_s=0.0))


def crash(book: Book, row: Intent) -> None:
    """The worker of a row died; the resolver allows a re-send."""
    book.forward(61)
    with book.store.transaction() as tx:
        doubt.expire_leases(tx, limit=10, look_after_s=1.0, max_crashes=9)
        current = intents.lock(tx, row.id)
        assert current is not None
        apply(tx, current, Event.RESEND_APPROVED, Change(actor="resolver", due_in_s=0.0))


def tenants(book: Book, *names: str, account: str = "default", each: int = 1) -> None:
    for name in names:
        for _ in range(each):
            book.enqueue(scope=Scope(tenant=name, run_id="run-1", account=account))


def test_a_claim_leases_the_row_and_freezes_whose_it_is(book: Book) -> None:
    answer = book.enqueue()
    account = replace(ACCOUNT, vendor_account="acct_1")
    (row,) = book.claimer(account, owner="me", window_s=100.0).claim(64)
    assert (row.id, row.status, row.doubt) == (answer.intent_id, "in_flight", 0)
    assert (row.mode, row.vendor_account, row.lease_owner) == ("test", "acct_1", "me")
    assert (row.attempts, row.lease_no, row.version) == (1, 1, 2)
    assert row.first_sent_at == row.last_sent_at
    assert row.lease_until is not None
    assert row.window_ends_at is not None
    assert row.first_sent_at is not None
    assert (row.lease_until - row.first_sent_at).total_seconds() == 60
    assert (row.window_ends_at - row.first_sent_at).total_seconds() == 100
    assert (row.escalate_at, row.ttl_at > row.created_at) == (row.window_ends_at, True)


def test_a_re_send_keeps_the_first_sends_window_and_starts_a_new_lease(book: Book) -> None:
    first = book.in_flight()
    lose(book, first)
    book.forward(30)
    (second,) = book.claimer().claim(64)
    assert second.window_ends_at == first.window_ends_at
    assert second.first_sent_at == first.first_sent_at
    assert second.ttl_at == first.ttl_at
    assert (second.lease_no, second.lease_token != first.lease_token) == (2, True)


def test_the_window_starts_again_where_nothing_had_left(book: Book) -> None:
    first = book.in_flight()
    with book.store.transaction() as tx:
        records.record(tx, [Ended(first, NotSent("refused"))])
    book.forward(100)
    (second,) = book.claimer().claim(64)
    assert second.window_ends_at is not None
    assert first.window_ends_at is not None
    assert (second.window_ends_at - first.window_ends_at).total_seconds() >= 100


def test_a_row_that_was_escalated_before_its_first_send_is_watched_again_after_it(
    book: Book,
) -> None:
    answer = book.enqueue()
    with book.store.transaction() as tx:
        overdue.arm(tx, {answer.intent_id: None})
    assert book.row(answer.intent_id).escalate_at is None
    (row,) = book.claimer().claim(64)
    assert row.escalate_at is not None


def test_a_process_without_accounts_claims_nothing(book: Book) -> None:
    book.enqueue()
    claimer = Claimer(book.store, (), owner="me", lease_s=60.0)
    assert (claimer.claim(64), claimer.claim_alone()) == ([], [])


def test_a_row_is_not_due_before_its_time(book: Book) -> None:
    book.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 hour'")
    book.enqueue()
    book.sql("UPDATE outbox.intents SET due_at = outbox.clock() + INTERVAL '60 seconds'")
    claimer = book.claimer()
    assert claimer.claim(64) == []
    book.forward(61)
    assert len(claimer.claim(64)) == 1


RETRYABLE_VETOES: Mapping[str, str] = {
    "the window has closed": "window_ends_at = outbox.clock()",
    "a veto": "veto = 'stored_500'",
    "a contradiction": "contradicted_at = outbox.clock()",
    "another mode": "mode = 'live'",
    "another vendor account": "vendor_account = 'acct_other'",
    "an unknown operation": "operation = 'payment_intents.teleport'",
    "an unknown vendor": "vendor = 'stripo'",
    "an account without credentials": "account = 'other'",
    "a newer fingerprint": "fingerprint_version = 2",
}
PENDING_VETOES = [name for name in RETRYABLE_VETOES if name != "the window has closed"]


@pytest.mark.parametrize("why", RETRYABLE_VETOES)
def test_no_re_send_under_a_veto(book: Book, why: str) -> None:
    lose(book, book.in_flight())
    book.sql(f"UPDATE outbox.intents SET {RETRYABLE_VETOES[why]}")
    assert book.claimer().claim(64) == []
    assert book.claimer().claim_alone() == []
    assert book.value("SELECT status FROM outbox.intents") == "retryable"


@pytest.mark.parametrize("why", PENDING_VETOES)
def test_no_first_send_under_a_veto(book: Book, why: str) -> None:
    book.enqueue()
    book.sql(f"UPDATE outbox.intents SET {RETRYABLE_VETOES[why]}")
    assert book.claimer().claim(64) == []
    assert book.value("SELECT attempts FROM outbox.intents") == 0


def test_without_a_veto_the_re_send_is_claimed(book: Book) -> None:
    lose(book, book.in_flight())
    assert len(book.claimer().claim(64)) == 1


def test_a_vendor_that_honours_no_key_is_sent_to_again_only_without_doubt(book: Book) -> None:
    keyless = book.claimer(window_s=None)
    book.enqueue()
    (row,) = keyless.claim(64)
    assert row.window_ends_at is None
    lose(book, row)
    assert keyless.claim(64) == []
    book.sql("UPDATE outbox.intents SET doubt = 0")
    assert len(keyless.claim(64)) == 1


def test_a_new_send_forgets_the_absence_that_allowed_it(book: Book) -> None:
    row = book.in_flight()
    lose(book, row)
    book.sql("UPDATE outbox.intents SET absent_first_at = outbox.clock(), absent_last_at = now()")
    (again,) = book.claimer().claim(64)
    assert (again.absent_first_at, again.absent_last_at) == (None, None)


def test_a_doubted_clock_stops_re_sends_and_vendors_without_keys_and_nothing_else(
    book: Book,
) -> None:
    lose(book, book.in_flight())
    book.enqueue()
    with book.store.transaction() as tx:
        switches.doubt_clock(tx, "it stepped")
    assert book.claimer(window_s=None).claim(64) == []
    (row,) = book.claimer().claim(64)
    assert row.lease_no == 1


def test_a_row_whose_epoch_is_over_is_never_sent_and_a_compensation_is(book: Book) -> None:
    scope = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
    book.enqueue(TURN, scope)
    undo = replace(TURN, name="undo", side_effect="compensation")
    kept = book.enqueue(undo, scope)
    by_run = book.enqueue(CHARGE, scope)
    book.sql(
        "INSERT INTO outbox.epochs (tenant, run_id, epoch, started_at) "
        "VALUES ('acme', 'run-1', 'turn-2', now())"
    )
    assert set(ids(book.claimer().claim(64))) == {kept.intent_id, by_run.intent_id}


def test_advancing_the_epoch_leaves_what_was_claimed(book: Book) -> None:
    scope = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
    sent = book.enqueue(TURN, scope)
    book.claimer().claim(64)
    unsent = book.enqueue(TURN, scope)
    with book.engine.begin() as connection:
        assert run(epochs.advance("acme", "run-1", "turn-2"), connection) == 1
    assert book.row(sent.intent_id).status == "in_flight"
    assert book.row(unsent.intent_id).status == "cancelled"


# -- gates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pause", "freeze", "breaker"])
def test_a_closed_gate_is_skipped_whatever_its_backlog(book: Book, kind: str) -> None:
    tenants(book, "a", account="other", each=70)
    tenants(book, "a")
    prefix = gate_prefix("stripe", "other") if kind != "freeze" else None
    book.sql(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at, probe_at, "
        "probe_after_s) VALUES ('x', %(kind)s, %(prefix)s, '', 'test', now(), "
        "'infinity', 15)",
        {"kind": kind, "prefix": prefix or gate_prefix("stripe", "other", "charge_invoice")},
    )
    rows = book.claimer(ACCOUNT, OTHER).claim(64)
    assert [row.account for row in rows] == ["default"]
    book.sql("DELETE FROM outbox.switches")
    assert len(book.claimer(ACCOUNT, OTHER).claim(64)) == 64


def test_a_gate_name_cannot_reach_into_its_neighbour(book: Book) -> None:
    tenants(book, "a", account="other")
    tenants(book, "a", account="other/charge_invoice")
    with book.store.transaction() as tx:
        switches.pause(tx, "stripe", "other", kind="pause", reason="test", by="me")
    odd = replace(OTHER, name="other/charge_invoice")
    assert [r.account for r in book.claimer(OTHER, odd).claim(64)] == ["other/charge_invoice"]


def test_no_gate_starves_behind_a_backlog_that_sorts_before_it(book: Book) -> None:
    tenants(book, "a", each=40)
    tenants(book, "B", "c")
    claimer, served = book.claimer(), set()
    for _ in range(4):
        served |= {row.tenant for row in claimer.claim(4)}
    assert served == {"a", "B", "c"}


def test_a_claim_is_empty_only_after_a_scan_from_the_start(book: Book) -> None:
    claimer = book.claimer()
    tenants(book, "z")
    assert len(claimer.claim(64)) == 1
    tenants(book, "a")
    assert len(claimer.claim(64)) == 1


def test_the_limit_holds_over_gates(book: Book) -> None:
    tenants(book, "a", "b", "c", each=3)
    assert len(book.claimer().claim(5)) == 5


# -- breaker probes ------------------------------------------------------------------------------


def trip(book: Book) -> None:
    with book.store.transaction() as tx:
        assert switches.trip_breaker(tx, "stripe", "default", reason="test", probe_s=15.0)


def test_a_tripped_breaker_lets_one_row_through_however_many_gates_it_holds(book: Book) -> None:
    tenants(book, "a", "b", "c", each=2)
    trip(book)
    claimer = book.claimer()
    assert claimer.claim(64) == []
    book.forward(16)
    probes = claimer.claim(64)
    assert len(probes) == 1
    assert claimer.probes == set(ids(probes))
    assert claimer.claim(64) == []
    book.forward(16)
    assert len(claimer.claim(64)) == 1
    with book.store.transaction() as tx:
        assert switches.close_breaker(tx, "stripe", "default")
    assert len(book.claimer().claim(64)) == 4


def test_a_probe_is_not_used_up_by_a_claim_that_finds_nothing(book: Book) -> None:
    laned = replace(CHARGE, name="in_order", lane=("customer",))
    book.enqueue(laned, Scope(tenant="t", run_id="r", account="other"))
    trip(book)
    book.forward(16)
    claimer = book.claimer()
    assert claimer.claim(64) == []
    tenants(book, "a", "b")
    assert len(claimer.claim(64)) == 1


def test_two_claimers_do_not_probe_twice(book: Book) -> None:
    tenants(book, "a", "b", "c", "d", each=3)
    trip(book)
    book.forward(16)
    start = threading.Barrier(6)

    def probe(number: int) -> int:
        claimer = book.claimer(owner=f"w{number}")
        start.wait()
        return len(claimer.claim(64))

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(probe, range(6))) == 1


# -- crashes and races ---------------------------------------------------------------------------


def test_a_row_that_lost_its_worker_is_claimed_alone(book: Book) -> None:
    crashed = book.in_flight()
    crash(book, crashed)
    others = [book.enqueue().intent_id for _ in range(3)]
    claimer = book.claimer()
    assert set(ids(claimer.claim(64))) == set(others)
    assert ids(claimer.claim_alone()) == [crashed.id]
    assert claimer.claim_alone() == []


def race(book: Book, claimers: int, rounds: int, limit: int) -> list[UUID]:
    start = threading.Barrier(claimers)

    def work(number: int) -> list[UUID]:
        claimer: Claimer = book.claimer(owner=f"w{number}")
        start.wait()
        return [row.id for _ in range(rounds) for row in claimer.claim(limit)]

    with ThreadPoolExecutor(claimers) as pool:
        return [each for got in pool.map(work, range(claimers)) for each in got]


@pytest.mark.parametrize("crashed", [False, True])
def test_a_claim_does_not_wait_for_a_row_that_somebody_else_holds(
    book: Book, crashed: bool
) -> None:
    held, free = book.enqueue().intent_id, book.enqueue().intent_id
    if crashed:
        book.sql("UPDATE outbox.intents SET crashes = 1")
    with psycopg.connect(book.url) as holder:
        holder.execute("SELECT 1 FROM outbox.intents WHERE id = %s FOR UPDATE", [held])
        claimer = book.claimer()
        rows = claimer.claim_alone() if crashed else claimer.claim(64)
        assert ids(rows) == [free]


def test_two_claimers_never_get_one_row(book: Book) -> None:
    with book.engine.begin() as connection:
        wanted = book.outbox.enqueue_many(
            connection, CHARGE, [(SCOPE, charge()) for _ in range(120)]
        )
    got = race(book, claimers=6, rounds=8, limit=7)
    assert len(got) == len(set(got))
    got += [row.id for row in book.claimer().claim(200)]
    assert set(got) == {answer.intent_id for answer in wanted}
    assert book.value("SELECT max(attempts) FROM outbox.intents") == 1


def test_a_switch_that_is_closed_between_two_claims_is_seen_by_the_second(book: Book) -> None:
    claimer = book.claimer()
    tenants(book, "a")
    assert len(claimer.claim(64)) == 1
    with book.store.transaction() as tx:
        switches.pause(tx, "stripe", "default", kind="pause", reason="stop", by="me")
    tenants(book, "a")
    assert claimer.claim(64) == []


def test_a_row_with_a_lower_number_that_commits_later_is_sent(book: Book) -> None:
    with psycopg.connect(book.url) as slow:
        lower = book.outbox.enqueue(slow, CHARGE, SCOPE, charge())
        higher = book.enqueue()
        claimer = book.claimer()
        assert ids(claimer.claim(64)) == [higher.intent_id]
    assert book.row(lower.intent_id).seq < book.row(higher.intent_id).seq
    assert ids(claimer.claim(64)) == [lower.intent_id]

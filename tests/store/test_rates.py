"""The rate of one account, shared by every claim: no more rows than the bucket holds tokens for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from outbox import Scope
from outbox.contract import Account
from outbox.outcomes import NotSent
from outbox.store import claims_metered_sql, doubt, intents, rates, records
from outbox.store.claims import Claimer
from outbox.store.intents import Intent
from outbox.store.rates import Meter
from outbox.store.records import Ended
from tests.store.book import ACCOUNT, CHARGE, LANED, Book, charge

# Slow enough that no token comes while a test runs: time passes only where a test moves it.
EVERY_S = 100.0
FREE = Account("free", "test", credential="sk_test_y")


def limited(burst: int, every_s: float = EVERY_S, name: str = "default") -> Account:
    return replace(ACCOUNT, name=name, rate_per_s=1 / every_s, burst=burst)


def meter(account: Account) -> Meter:
    found = Meter.of("stripe", account)
    assert found is not None
    return found


def fill(book: Book, count: int, account: str = "default", tenant: str = "acme") -> None:
    scope = Scope(tenant=tenant, run_id="run-1", account=account)
    for _ in range(count):
        book.enqueue(scope=scope)


def test_a_claim_takes_what_the_bucket_holds_and_then_a_row_for_each_token(book: Book) -> None:
    fill(book, 12)
    claimer = book.claimer(limited(5))
    assert (len(claimer.claim(64)), claimer.claim(64)) == (5, [])
    book.forward(EVERY_S)
    assert (len(claimer.claim(64)), claimer.claim(64)) == (1, [])
    book.forward(3 * EVERY_S)
    assert len(claimer.claim(64)) == 3
    book.forward(50 * EVERY_S)
    assert len(claimer.claim(64)) == 3


def test_a_bucket_never_holds_more_than_its_burst(book: Book) -> None:
    fill(book, 9)
    claimer = book.claimer(limited(4))
    claimer.claim(1)
    book.forward(1000 * EVERY_S)
    assert len(claimer.claim(64)) == 4


def test_a_row_that_waits_for_a_token_loses_nothing(book: Book) -> None:
    fill(book, 2)
    claimer = book.claimer(limited(1))
    (taken,) = claimer.claim(64)
    before = book.sql("SELECT * FROM outbox.intents WHERE id <> %(id)s", {"id": taken.id})
    book.forward(EVERY_S / 2)
    assert (claimer.claim(64), claimer.claim_alone()) == ([], [])
    assert book.sql("SELECT * FROM outbox.intents WHERE id <> %(id)s", {"id": taken.id}) == before
    assert (before[0]["status"], before[0]["attempts"], before[0]["lease_no"]) == ("pending", 0, 0)


def test_claims_that_race_share_one_bucket(book: Book) -> None:
    """Reading what is left and taking it later would let each of them have all of it."""
    fill(book, 120)
    claimers = [book.claimer(limited(50), owner=f"worker-{n}") for n in range(8)]

    def claims(claimer: Claimer) -> int:
        return sum(len(claimer.claim(7)) for _ in range(12))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claims, claimers)) <= 50
    for claimer in claimers:
        claims(claimer)
    assert book.value("SELECT count(*) FROM outbox.intents WHERE status = 'in_flight'") == 50


def test_a_claim_that_has_not_committed_yet_keeps_its_tokens_from_others(book: Book) -> None:
    for tenant in range(12):
        fill(book, 1, tenant=f"t-{tenant}")
    claimer = book.claimer(limited(2))
    claimer.claim_alone()  # opens the bucket
    (part,) = claimer._parts
    with psycopg.connect(book.url) as other:
        params = {**part.params, "limit": 64, "cursor": "", "owner": "other"}
        assert len(other.execute(claims_metered_sql.BATCH[False].encode(), params).fetchall()) == 2
        assert claimer.claim(64) == []
    assert claimer.claim(64) == []


def test_an_account_without_a_rate_is_not_slowed_by_one_with(book: Book) -> None:
    fill(book, 30)
    fill(book, 30, account="free")
    claimer = book.claimer(limited(2), FREE)
    found: list[Intent] = []
    while rows := claimer.claim(16):
        found += rows
    assert [row.account for row in found].count("free") == 30
    assert [row.account for row in found].count("default") == 2


def test_a_backlog_without_a_rate_does_not_keep_the_others_tokens_unused(book: Book) -> None:
    fill(book, 40, account="free")
    fill(book, 4)
    claimer = book.claimer(limited(2), FREE)
    found = claimer.claim(8) + claimer.claim(8)
    assert [row.account for row in found].count("default") == 2


def test_a_bucket_in_another_claims_hands_delays_its_own_account_only(book: Book) -> None:
    fill(book, 2)
    fill(book, 2, account="other")
    fill(book, 2, account="free")
    claimer = book.claimer(limited(2), limited(2, name="other"), FREE)
    claimer.claim_alone()  # opens the buckets
    with psycopg.connect(book.url) as holding:
        holding.execute(
            "SELECT 1 FROM outbox.rates WHERE gate_prefix = 'stripe/default/' FOR UPDATE"
        )
        assert {row.account for row in claimer.claim(64)} == {"other", "free"}
        assert claimer.token_in_s is not None
        assert claimer.token_in_s < 1
    assert {row.account for row in claimer.claim(64)} == {"default"}


def test_each_account_has_a_bucket_of_its_own(book: Book) -> None:
    fill(book, 9)
    fill(book, 9, account="other")
    claimer = book.claimer(limited(3), limited(1, name="other"))
    found: list[str] = []
    while rows := claimer.claim(64):
        found += [row.account for row in rows]
    assert sorted(found) == ["default"] * 3 + ["other"]


def test_a_tenants_backlog_does_not_get_every_token(book: Book) -> None:
    """The gates of one account share its tokens, a row each before a second one of any."""
    fill(book, 60, tenant="a-flood")
    for tenant in ("m-small", "z-small"):
        fill(book, 2, tenant=tenant)
    claimer = book.claimer(limited(3))
    assert {row.tenant for row in claimer.claim(64)} == {"a-flood", "m-small", "z-small"}
    for _ in range(60):
        book.forward(EVERY_S)
        claimer.claim(64)
    left = book.sql("SELECT DISTINCT tenant FROM outbox.intents WHERE status = 'pending'")
    assert left == [{"tenant": "a-flood"}]


def test_lanes_and_the_rest_take_turns_at_the_tokens(book: Book) -> None:
    for customer in range(20):
        book.enqueue(LANED, args=charge(customer=f"cus_{customer}"))
    fill(book, 20)
    claimer = book.claimer(limited(1))
    seen = set()
    for _ in range(4):
        (row,) = claimer.claim(64)
        seen.add(row.tool)
        book.forward(EVERY_S)
    assert seen == {CHARGE.name, LANED.name}


def test_lanes_share_the_bucket_and_keep_their_order(book: Book) -> None:
    for customer in range(3):
        for _ in range(2):
            book.enqueue(LANED, args=charge(customer=f"cus_{customer}"))
    claimer = book.claimer(limited(2))
    first = claimer.claim(64)
    book.forward(10 * EVERY_S)
    rest = claimer.claim(64)
    assert (len(first), len(rest)) == (2, 1)
    assert len({row.lane for row in first + rest}) == 3


def test_a_row_that_lost_its_worker_takes_a_token_too(book: Book) -> None:
    fill(book, 1)
    account = limited(1)
    claimer = book.claimer(account)
    (row,) = claimer.claim(64)
    book.forward(61)
    with book.store.transaction() as tx:
        doubt.expire_leases(tx, limit=1, look_after_s=0.0, max_crashes=3)
    book.sql("UPDATE outbox.intents SET status = 'retryable', due_at = outbox.clock()")
    # What the lost worker took stays taken: it may have sent.
    assert claimer.claim_alone() == []
    book.forward(EVERY_S)
    assert [found.id for found in claimer.claim_alone()] == [row.id]
    assert claimer.claim_alone() == []
    with book.store.transaction() as tx:
        assert rates.spare_for_looks(tx, meter(account), at_least=0) == 0


def test_a_claim_that_was_not_committed_took_no_token(book: Book) -> None:
    fill(book, 3)
    claimer = book.claimer(limited(2))
    claimer.claim_alone()
    # The lock of each row is there, and a lease that cannot be written undoes the statement.
    book.sql("ALTER TABLE outbox.intents ADD CONSTRAINT nobody CHECK (lease_owner <> 'worker')")
    with pytest.raises(psycopg.errors.CheckViolation):
        claimer.claim(64)
    book.sql("ALTER TABLE outbox.intents DROP CONSTRAINT nobody")
    assert len(claimer.claim(64)) == 2


def test_a_probe_of_a_breaker_takes_one_token(book: Book) -> None:
    fill(book, 5)
    account = limited(3)
    claimer = book.claimer(account)
    claimer.claim_alone()
    book.sql(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at, probe_at, "
        "probe_after_s) VALUES ('vendor:stripe/default', 'breaker', 'stripe/default/', '', 'test', "
        "outbox.clock(), outbox.clock(), 1000)"
    )
    (probe,) = claimer.claim(64)
    assert claimer.probes == {probe.id}
    with book.store.transaction() as tx:
        assert rates.spare_for_looks(tx, meter(account), at_least=0) == 1


def test_how_soon_to_claim_again_is_told(book: Book) -> None:
    fill(book, 8)
    fill(book, 1, account="other")

    def waits_s(claimer: Claimer) -> float | None:
        claimer.claim(64)
        return claimer.token_in_s

    claimer = book.claimer(limited(6))
    # Half a bucket at a time: a claim for each token would cost more than it sends.
    assert EVERY_S * 2 < (waits_s(claimer) or 0) <= EVERY_S * 3
    book.forward(6 * EVERY_S)
    assert waits_s(claimer) is None
    assert 0 < (waits_s(book.claimer(limited(1, name="other"))) or 0) <= EVERY_S


def test_a_bucket_that_is_pushed_back_is_empty_until_then_and_starts_with_one(book: Book) -> None:
    fill(book, 9)
    account = limited(5)
    claimer = book.claimer(account)
    claimer.claim_alone()
    with book.store.transaction() as tx:
        rates.push_back(tx, meter(account), 1000.0)
        rates.push_back(tx, meter(account), 10.0)
    book.forward(990)
    assert claimer.claim(64) == []
    book.forward(15)
    assert (len(claimer.claim(64)), claimer.claim(64)) == (1, [])
    book.forward(EVERY_S)
    assert len(claimer.claim(64)) == 1


def test_looks_leave_half_of_the_bucket_to_sends(book: Book) -> None:
    account = limited(6)
    with book.store.transaction() as tx:
        rates.open_buckets(tx, [meter(account)])
        assert rates.spare_for_looks(tx, meter(account), at_least=1) == 3
        rates.spend(tx, meter(account), 3)
        assert rates.spare_for_looks(tx, meter(account), at_least=0) == 0
    fill(book, 9)
    assert len(book.claimer(account).claim(64)) == 3


def test_the_one_look_that_sends_cannot_keep_out_is_owed_and_paid_back(book: Book) -> None:
    fill(book, 9)
    account = limited(4)
    claimer = book.claimer(account)
    claimer.claim(64)
    with book.store.transaction() as tx:
        assert rates.spare_for_looks(tx, meter(account), at_least=1) == 1
        rates.spend(tx, meter(account), 1)
        assert rates.spare_for_looks(tx, meter(account), at_least=1) == 0
    book.forward(1.5 * EVERY_S)
    assert claimer.claim(64) == []
    book.forward(EVERY_S)
    assert len(claimer.claim(64)) == 1


def test_a_token_is_taken_by_one_of_those_who_ask_at_once(book: Book) -> None:
    account = limited(3)
    with book.store.transaction() as tx:
        rates.open_buckets(tx, [meter(account)])

    def ask(_: int) -> float:
        with book.store.transaction() as tx:
            return rates.take_one(tx, meter(account))

    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(ask, range(16)))
    assert waits.count(0.0) == 3
    assert all(0 < wait <= EVERY_S for wait in waits if wait)


def test_two_processes_of_two_settings_share_the_row(book: Book) -> None:
    """A roll-out: what one took the other one finds gone, each by its own burst."""
    fill(book, 20)
    assert len(book.claimer(limited(6)).claim(64)) == 6
    assert book.claimer(limited(2)).claim(64) == []
    assert len(book.claimer(limited(9)).claim(64)) == 3


def test_a_rate_that_is_raised_helps_at_once(book: Book) -> None:
    """What was taken at a slow rate was owed for as long as that rate would have taken."""
    fill(book, 60)
    assert len(book.claimer(limited(40)).claim(64)) == 40
    quick = book.claimer(limited(10, every_s=EVERY_S / 10))
    assert quick.claim(64) == []
    book.forward(3.5 * EVERY_S)
    assert len(quick.claim(64)) == 5
    book.forward(2 * EVERY_S)
    assert len(quick.claim(64)) == 10


def test_a_host_with_a_slower_rate_stalls_no_other(book: Book) -> None:
    fill(book, 40)
    slow, quick = book.claimer(limited(3)), book.claimer(limited(20, every_s=0.1))
    assert len(slow.claim(64)) == 3
    for _ in range(3):
        book.forward(0.5)
        assert len(quick.claim(5)) == 5
        assert slow.claim(64) == []


@pytest.mark.parametrize("ahead_s", [86400.0, 366 * 86400.0])
def test_a_bucket_of_a_clock_that_was_ahead_is_full(book: Book, ahead_s: float) -> None:
    fill(book, 9)
    account = limited(3)
    claimer = book.claimer(account)
    book.forward(ahead_s)
    assert len(claimer.claim(64)) == 3
    with book.store.transaction() as tx:
        rates.push_back(tx, meter(account), 600.0)
        rates.spend(tx, meter(account), 1)
    book.forward(-ahead_s)
    assert len(claimer.claim(64)) == 3
    book.forward(EVERY_S)
    assert len(claimer.claim(64)) == 1


def test_a_bucket_that_a_person_took_away_is_opened_anew(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(book, 4)
    claimer = book.claimer(limited(2))
    assert len(claimer.claim(1)) == 1
    book.sql("DELETE FROM outbox.rates")
    monkeypatch.setattr("outbox.store.claims._OPEN_S", 0.0)
    claimer._open_until = 0.0
    assert len(claimer.claim(64)) == 2


def test_a_tenant_of_many_lanes_and_tools_has_no_more_turns_than_one_of_one(book: Book) -> None:
    for customer in range(40):
        book.enqueue(LANED, args=charge(customer=f"cus_{customer}"))
    for tool in range(12):
        book.enqueue(replace(CHARGE, name=f"charge-{tool}"))
    small = Scope(tenant="small", run_id="run-1", account="default")
    book.enqueue(LANED, scope=small)
    book.enqueue(scope=small)
    claimer = book.claimer(limited(2))
    for _ in range(2):  # the lanes, and then the rest
        assert {row.tenant for row in claimer.claim(64)} == {"acme", "small"}
        book.forward(2 * EVERY_S)


def test_pages_of_a_look_leave_sends_three_quarters(book: Book) -> None:
    fill(book, 200)
    account = limited(6)
    claimer = book.claimer(account)
    claimer.claim(64)
    sent = pages = 0
    for _ in range(80):
        book.forward(EVERY_S / 2)
        with book.store.transaction() as tx:
            pages += rates.take_one(tx, meter(account)) == 0.0
        sent += len(claimer.claim(64))
    assert (sent + pages, pages) == (40, 10)


def test_pages_of_a_look_have_all_where_nothing_waits(book: Book) -> None:
    account = limited(1)
    with book.store.transaction() as tx:
        rates.open_buckets(tx, [meter(account)])
    pages = 0
    for _ in range(20):
        book.forward(EVERY_S / 2)
        with book.store.transaction() as tx:
            pages += rates.take_one(tx, meter(account)) == 0.0
    assert pages == 10


def test_a_vendor_that_asks_to_be_left_alone_is_read_by_nobody(book: Book) -> None:
    account = limited(1)
    with book.store.transaction() as tx:
        rates.open_buckets(tx, [meter(account)])
        rates.push_back(tx, meter(account), 600.0)
    book.forward(599.5)
    with book.store.transaction() as tx:
        assert rates.spare_for_looks(tx, meter(account), at_least=1) == 0
        for hurry in (False, True):
            with pytest.raises(rates.Held):
                rates.take_one(tx, meter(account), hurry=hurry)
    book.forward(1.0)
    with book.store.transaction() as tx:
        assert rates.spare_for_looks(tx, meter(account), at_least=1) == 1


def test_a_refused_send_gives_no_token_back(book: Book) -> None:
    fill(book, 2)
    claimer = book.claimer(limited(1))
    (row,) = claimer.claim(64)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, NotSent("handed back"))])
    assert claimer.claim(64) == []
    with book.store.transaction() as tx:
        assert intents.read(tx, row.id) is not None

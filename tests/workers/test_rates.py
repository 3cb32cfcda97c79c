"""An account's rate, shared by all senders and look-ups: what arrives at the vendor, and when."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from outbox.outcomes import NotSent
from outbox.store import invariants, vitals
from outbox.store.claims import Claimer
from tests.workers.floor import PRODUCTION, READS, Floor, new_account, open_floor
from vendors import stripe_lookup
from vendors.sandbox.client import Sandbox
from workers.flight import Flight
from workers.recording import Recorder
from workers.sender import Sender

# Where a test counts tokens, so slow that none comes by itself while it runs.
SLOW = 0.01
EVERY_S = 1 / SLOW


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened


def limit(floor: Floor, rate_per_s: float | None, burst: int = 1) -> None:
    """The rate of the floor's account, for parts that are built from here on."""
    account = floor.directory.account("stripe", "default")
    assert account is not None
    floor.directory.learn("stripe", replace(account, rate_per_s=rate_per_s, burst=burst))


def arrivals(floor: Floor) -> list[float]:
    """When each request arrived, by the vendor's clock; whose the account is was asked before."""
    rows = floor.sandbox.requests(floor.account)
    return sorted(r["at"] for r in rows if r["origin"] == "client" and r["path"] != "/v1/account")


def most_within(times: list[float], span_s: float) -> int:
    """The most arrivals in any span of that length."""
    return max(sum(1 for at in times if start <= at < start + span_s) for start in times)


def throttled(floor: Floor) -> int:
    return sum(1 for r in floor.sandbox.requests(floor.account) if r["status"] == 429)


def drain_all(floor: Floor, senders: list[Sender]) -> None:
    for thread in [floor.drain_beside(sender) for sender in senders]:
        thread.join()


def test_two_senders_that_share_a_rate_are_never_throttled(floor: Floor) -> None:
    """B30: the vendor takes 20 in any second, which is what a burst and a second's rate are."""
    limit(floor, 10.0, burst=10)
    floor.sandbox.set_account(floor.account, requests_per_s=20)
    ids = floor.enqueue(60)
    senders = [floor.new_sender() for _ in range(2)]
    for _ in range(20):
        drain_all(floor, senders)
        if floor.statuses() == {"succeeded": 60}:
            break
        floor.advance(1.0)
    assert floor.statuses() == {"succeeded": 60}
    assert throttled(floor) == 0
    assert most_within(arrivals(floor), 1.0) <= 20
    assert {floor.row(i)["attempts"] for i in ids} == {1}


def test_the_same_senders_without_a_rate_are_throttled(floor: Floor) -> None:
    floor.sandbox.set_account(floor.account, requests_per_s=20)
    floor.enqueue(60)
    drain_all(floor, [floor.new_sender() for _ in range(2)])
    assert throttled(floor) > 0


def test_what_waits_for_a_token_has_no_attempt_and_no_lease(floor: Floor) -> None:
    limit(floor, SLOW, burst=2)
    ids = floor.enqueue(5)
    assert floor.drain() == 2
    waiting = [row for i in ids if (row := floor.row(i))["status"] == "pending"]
    assert len(waiting) == 3
    for row in waiting:
        assert (row["attempts"], row["lease_no"], row["first_sent_at"]) == (0, 0, None)
        assert floor.attempts(row["id"]) == []
    floor.advance(EVERY_S)
    assert floor.drain() == 1
    assert len(floor.posts()) == 3


def test_a_sender_that_starts_anew_finds_the_bucket_as_it_was_left(floor: Floor) -> None:
    limit(floor, SLOW, burst=2)
    floor.enqueue(5)
    assert floor.new_sender().drain() == 2
    assert floor.new_sender().drain() == 0


def test_a_worker_that_died_between_its_claim_and_its_sends_gives_nothing_away_twice(
    floor: Floor,
) -> None:
    limit(floor, SLOW, burst=3)
    ids = floor.enqueue(4)
    dead = Claimer(floor.store, floor.directory.sendable(), owner="dead", lease_s=60.0)
    assert len(dead.claim(2)) == 2
    assert floor.drain() == 1
    assert floor.drain() == 0
    floor.advance(61)
    floor.expire()
    assert floor.drain() == 0
    assert len(floor.posts()) == 1
    for _ in range(12):
        floor.advance(10 * EVERY_S)
        floor.round()
    assert floor.statuses() == {"succeeded": 4}
    assert [floor.effects(i) for i in ids] == [1, 1, 1, 1]


def test_an_account_without_a_rate_is_sent_for_as_ever(floor: Floor) -> None:
    found = floor.directory.account("stripe", "default")
    assert found is not None
    other = new_account()
    floor.sandbox.set_account(other, any_customer=True)
    key = floor.sandbox.api_key(other)
    free = replace(found, name="free", credential=key, vendor_account=f"acct_{other}")
    floor.directory.learn("stripe", free)
    limit(floor, SLOW)
    limited_ids = floor.enqueue(5)
    free_ids = floor.enqueue(30, account="free")
    assert floor.drain() == 31
    assert {floor.status(i) for i in free_ids} == {"succeeded"}
    assert [floor.status(i) for i in limited_ids].count("succeeded") == 1


def test_a_retry_after_empties_the_accounts_bucket_until_then(floor: Floor) -> None:
    """B30: what one request is told holds for all of its account."""
    limit(floor, 1.0, burst=1)
    floor.sandbox.fault("rate_limited_429", account=floor.account, times=1, after_s=600)
    floor.enqueue(3)
    assert floor.drain() == 1
    assert throttled(floor) == 1
    floor.advance(590)
    assert floor.drain() == 0
    floor.advance(15)
    assert floor.drain() >= 1
    assert throttled(floor) == 1


def test_a_retry_after_holds_an_account_without_a_rate_too(floor: Floor) -> None:
    """Each of its 300 rows asked for itself, and was told the same."""
    floor.sandbox.fault("rate_limited_429", account=floor.account, times=1, after_s=600)
    floor.one()
    floor.drain()
    floor.enqueue(20)
    floor.advance(590)
    assert floor.drain() == 0
    assert throttled(floor) == 1
    floor.advance(15)
    floor.drain()
    assert floor.statuses() == {"succeeded": 21}
    assert throttled(floor) == 1


def test_a_throttled_read_empties_the_bucket_too(floor: Floor) -> None:
    limit(floor, 1.0, burst=4)
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    floor.sandbox.fault(
        "rate_limited_429", account=floor.account, endpoint=READS, times=1, after_s=600
    )
    first = floor.one()
    floor.drain()
    floor.jump(first)
    assert floor.look() == 1
    floor.enqueue(2)
    assert floor.drain() == 0
    floor.advance(605)
    assert floor.drain() >= 1


def test_a_429_that_asks_for_no_time_leaves_the_bucket_alone(floor: Floor) -> None:
    """A lock on one object says nothing of the account."""
    limit(floor, SLOW, burst=4)
    floor.sandbox.fault("lock_timeout_429", account=floor.account, times=1)
    floor.enqueue(4)
    floor.drain()
    assert floor.statuses() == {"succeeded": 3, "pending": 1}


def test_look_ups_count_and_take_what_sends_leave(floor: Floor) -> None:
    limit(floor, SLOW, burst=20)
    floor.sandbox.fault("lost_ack", account=floor.account, times=4)
    lost = floor.enqueue(4)
    floor.drain()
    assert floor.statuses() == {"unknown": 4}
    floor.enqueue(20)
    assert floor.drain() == 16
    # What no list shows for all: each is a look of its own.
    floor.sql("UPDATE outbox.intents SET veto = 'stored_500' WHERE status = 'unknown'")
    # Nothing is left: one look goes all the same, and what it asks is owed.
    floor.advance(6)
    assert floor.look() == 1
    assert floor.drain() == 0
    reads = len(floor.reads())
    assert reads >= 1
    floor.advance((reads + 1) * EVERY_S)
    assert floor.drain() == 1
    # A full bucket: sends have nothing to do, and all are looked at.
    floor.advance(30 * EVERY_S)
    floor.drain()
    floor.advance(30 * EVERY_S)
    floor.look()
    assert {floor.status(i) for i in lost} == {"succeeded"}


@pytest.mark.parametrize("together", [True, False])
def test_many_looks_stay_within_the_rate(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The requests of a look are several, and each takes its token."""
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 1 if together else 100)
    floor.sandbox.fault("lost_ack", account=floor.account, times=24)
    floor.enqueue(24)
    floor.drain()
    if not together:
        floor.sql("UPDATE outbox.intents SET veto = 'stored_500'")
    limit(floor, 20.0, burst=8)
    floor.advance(6)
    before = len(arrivals(floor))
    floor.look()
    for _ in range(40):
        if floor.statuses() == {"succeeded": 24}:
            break
        floor.advance(1.0)
        floor.look()
    assert floor.statuses() == {"succeeded": 24}
    times = arrivals(floor)[before:]
    assert len(times) > 24
    assert most_within(times, 1.0) <= 8 + 20 + 1


def test_a_rate_so_slow_that_a_look_would_never_end_is_owed(floor: Floor) -> None:
    limit(floor, SLOW, burst=1)
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    intent_id = floor.one()
    floor.drain()
    floor.advance(EVERY_S)
    assert floor.look() == 1
    assert floor.status(intent_id) == "succeeded"


def test_the_next_drain_is_due_when_the_next_token_is(floor: Floor) -> None:
    limit(floor, 4.0, burst=1)
    floor.enqueue(3)
    floor.drain()
    assert 0 < floor.sender.next_in_s() <= 0.25
    # Said once: the row may have gone by then.
    assert floor.sender.next_in_s() == floor.settings.policy.tick_drain_s


def test_what_waits_for_its_rate_is_told_as_no_fault(floor: Floor) -> None:
    """`health` said that sends wait, and `doctor` that no worker sends."""
    limit(floor, 0.002)
    floor.enqueue(4)
    assert floor.drain() == 1
    floor.advance(400)

    def overdue() -> tuple[float | None, list[str]]:
        with floor.store.transaction() as tx:
            (rule,) = [r for r in invariants.OF_INTENTS if r.check == "due_and_not_sent"]
            broken = tx.all(rule.broken, {"due_s": 60.0, "reached": ["stripe/default"]})
            return vitals.gauges(tx)["oldest_due_s"], [row["id"] for row in broken]

    assert overdue() == (None, [])
    floor.advance(200)  # its token is there, and nobody comes for it
    oldest_s, broken = overdue()
    assert oldest_s is not None
    assert len(broken) == 3
    assert floor.drain() == 1
    assert overdue() == (None, [])


def test_a_rate_does_not_hold_up_a_row_that_lost_its_worker(floor: Floor) -> None:
    limit(floor, SLOW)
    (first,) = floor.enqueue(1)
    dead = Claimer(floor.store, floor.directory.sendable(), owner="dead", lease_s=60.0)
    assert len(dead.claim(1)) == 1
    floor.enqueue(30)
    assert floor.drain() == 0
    floor.advance(61)
    floor.expire()
    floor.sql(
        "UPDATE outbox.intents SET status = 'retryable', due_at = outbox.clock() WHERE id = %(id)s",
        {"id": first},
    )
    floor.advance(EVERY_S)
    assert floor.drain() == 1
    assert floor.status(first) == "succeeded"


def test_letting_time_pass_until_all_is_settled_waits_for_tokens_too(floor: Floor) -> None:
    limit(floor, SLOW)
    floor.enqueue(4)
    assert floor.box.settle(within_s=10 * EVERY_S)
    assert floor.statuses() == {"succeeded": 4}


def test_an_answer_that_waits_for_its_row_pushes_nothing_back_before_it_is_written(
    floor: Floor,
) -> None:
    """It is offered again and again: each time would be later."""
    limit(floor, 1.0, burst=1)
    intent_id = floor.one()
    (row,) = Claimer(floor.store, floor.directory.sendable(), owner="me", lease_s=60.0).claim(1)
    recorder = Recorder(floor.store, floor.directory, probes=set(), jitter=lambda: 0.5)
    flight = Flight(
        row, start_by=0.0, deadline_s=1.0, results=queue.SimpleQueue(), since_boot_s=lambda: 0.0
    )
    answer = (flight, NotSent("rate_limit", throttled=True, retry_after_s=600.0))

    def is_pushed_back() -> bool:
        (bucket,) = floor.sql("SELECT held_until IS NOT NULL AS later FROM outbox.rates")
        return bool(bucket["later"])

    floor.advance(10)
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as holding:
        holding.execute("SELECT FROM outbox.intents FOR UPDATE")
        assert recorder.write([answer]).held == [answer]
        assert not is_pushed_back()
    assert recorder.write([answer]).held == []
    assert is_pushed_back()
    assert floor.status(intent_id) == "pending"


def test_looks_of_many_pages_leave_sends_their_part(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy account's list has fifty pages; each of them took the token that a send waited for."""
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 1)
    floor.sandbox.fault("lost_ack", account=floor.account, times=12)
    floor.enqueue(12)
    floor.drain()
    limit(floor, 40.0, burst=4)
    floor.enqueue(200)
    floor.advance(6)
    looked = threading.Event()

    def send() -> None:
        while not looked.is_set():
            floor.sender.drain()
            looked.wait(floor.sender.next_in_s())

    sending = threading.Thread(target=send)
    sending.start()
    floor.look()
    looked.set()
    reads, sent = len(floor.reads()), len(floor.posts()) - 12
    sending.join()
    assert floor.statuses().get("unknown", 0) == 0
    assert reads >= 24
    assert sent > reads

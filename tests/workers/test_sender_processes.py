"""Several consumers, lost ones and ones that are told to end."""

from __future__ import annotations

import itertools
import threading
from uuid import UUID

from outbox.doorbell import Doorbell
from outbox.store.claims import Claimer
from tests.workers.floor import READS, Floor
from workers.sender import Sender


def _lose_a_worker(floor: Floor, alone: bool = False) -> list[UUID]:
    """Somebody claims what is due and is never heard of again; its leases end."""
    claimer = Claimer(
        floor.store, floor.directory.sendable(), owner="lost", lease_s=floor.settings.policy.lease_s
    )
    rows = claimer.claim_alone() if alone else claimer.claim(100)
    floor.advance(floor.settings.policy.lease_s + 0.1)
    floor.expire()
    return [row.id for row in rows]


def test_two_senders_racing_over_two_hundred_rows_send_each_once(floor: Floor) -> None:
    """B02, B32: at any moment one live call for a key, whoever claims."""
    ids = floor.enqueue(200)
    threads = [floor.drain_beside(floor.new_sender()) for _ in range(2)]
    for thread in threads:
        thread.join()
    posts = floor.posts()
    assert len(posts) == len({p["key"] for p in posts}) == len(ids)
    assert floor.statuses() == {"succeeded": 200}
    assert floor.sql("SELECT id FROM outbox.attempts WHERE outcome <> 'receipt'") == []


def test_one_sender_drains_once_at_a_time(floor: Floor) -> None:
    floor.sandbox.fault("slow", account=floor.account, after_s=0.5)
    floor.enqueue(3)
    first = floor.drain_beside()
    while floor.statuses().get("in_flight") != 3:
        threading.Event().wait(0.01)
    assert floor.drain() == 0
    first.join()
    assert floor.statuses() == {"succeeded": 3}


def test_a_process_told_to_end_hands_unstarted_rows_back(floor: Floor) -> None:
    """B44: after the claim and before the call."""

    def stopping() -> bool:
        # Told to end the moment that rows are claimed.
        if floor.statuses().get("in_flight"):
            floor.told_to_stop.set()
        return floor.told_to_stop.is_set()

    sender = Sender(
        floor.store,
        floor.directory,
        Doorbell("", timeout_s=0.1),
        owner="ending",
        stopping=stopping,
        jitter=lambda: 0.5,
    )
    floor.senders.append(sender)
    ids = floor.enqueue(5)
    sender.drain(5.0)
    assert floor.posts() == []
    assert floor.statuses() == {"pending": 5}
    assert floor.outcomes(ids[0])[0] == "not_sent"
    # Due at once, for the process that takes over.
    floor.told_to_stop.clear()
    assert floor.drain() == 5
    assert floor.statuses() == {"succeeded": 5}


def test_a_process_told_to_end_finishes_what_is_in_flight(floor: Floor) -> None:
    """B44: during the call, and after it before its record."""
    floor.sandbox.fault("slow", account=floor.account, after_s=0.5)
    ids = floor.enqueue(3)
    drain = floor.drain_beside()
    while len(floor.posts()) < 3:
        threading.Event().wait(0.01)
    floor.told_to_stop.set()
    late = floor.enqueue(1)
    drain.join()
    assert [floor.status(i) for i in ids] == ["succeeded"] * 3
    assert floor.status(late[0]) == "pending"


def test_a_row_that_lost_its_worker_is_claimed_alone_from_then_on(floor: Floor) -> None:
    floor.enqueue(3)
    lost = _lose_a_worker(floor)
    assert len(lost) == 3
    for intent_id in lost:
        row = floor.row(intent_id)
        assert (row["status"], row["doubt"], row["crashes"]) == ("unknown", 1, 1)
        assert floor.outcomes(intent_id) == ["lease_expired"]
    floor.settle()
    posts = sorted(floor.posts(), key=lambda p: p["arrived_at"])
    assert len(posts) == 3
    for before, after in itertools.pairwise(posts):
        assert before["answered_at"] <= after["arrived_at"]
    assert all(floor.row(i)["crashes"] == 0 for i in lost)


def test_a_row_that_kills_its_process_is_parked_after_three_and_asks_a_person_at_once(
    floor: Floor,
) -> None:
    """B45: a payload that kills whoever sends it, with good rows behind."""
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    bad = floor.one()
    assert _lose_a_worker(floor) == [bad]
    good = floor.enqueue(5)
    for lost in (2, 3):

        def approved() -> bool:
            floor.look()
            return floor.status(bad) == "retryable"

        while not approved():
            floor.advance(0.2)
        assert _lose_a_worker(floor, alone=True) == [bad]
        assert floor.row(bad)["crashes"] == lost
    floor.escalate()
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (bad, ["worker_lost"])
    floor.drain()
    assert [floor.status(i) for i in good] == ["succeeded"] * 5
    for _ in range(5):
        floor.advance(1)
        floor.round()
    assert floor.status(bad) == "unknown"
    assert floor.posts(bad) == []


def test_a_steady_load_does_not_keep_a_crashed_row_waiting(floor: Floor) -> None:
    crashed = floor.one()
    _lose_a_worker(floor)
    while floor.status(crashed) != "retryable":
        floor.advance(0.1)
        floor.look()
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            floor.enqueue(20)

    thread = threading.Thread(target=load)
    thread.start()
    for _ in range(10):
        floor.sender.drain(budget_s=0.3)
        if floor.status(crashed) == "succeeded":
            break
    ended.set()
    thread.join()
    assert floor.status(crashed) == "succeeded"

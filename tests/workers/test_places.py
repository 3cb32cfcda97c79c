"""Places: who may have another call in the air, by how long the calls before it take."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

from workers.flight import Flight
from workers.places import SLOW_S, Places, Room

A, B, C = ("stripe", "a"), ("stripe", "b"), ("mail", "a")


def fly(places: Places, where: tuple[str, str], count: int, now_s: float = 0.0) -> list[Flight]:
    """So many calls of an account begin."""
    intent: Any = SimpleNamespace(vendor=where[0], account=where[1])
    made = [
        Flight(intent, start_by=0.0, deadline_s=1.0, results=queue.SimpleQueue(),
               since_boot_s=lambda: 0.0)
        for _ in range(count)
    ]  # fmt: skip
    for flight in made:
        places.take(flight, now_s)
    return made


def land(places: Places, flights: list[Flight]) -> None:
    for flight in flights:
        places.free(flight)


def test_calls_that_answer_in_time_share_the_places_whoever_they_are_for() -> None:
    places = Places(16)
    assert places.room(0.0) == Room(16)
    flights = fly(places, A, 10)
    fly(places, B, 4)
    assert places.room(SLOW_S / 2) == Room(2)
    land(places, flights[:3])
    assert places.room(SLOW_S / 2) == Room(5)


def test_slow_calls_give_their_places_to_others_and_their_account_gets_none() -> None:
    places = Places(16)
    flights = fly(places, A, 16)
    assert places.room(SLOW_S / 2).limit == 0
    assert places.room(SLOW_S) == Room(16, frozenset({A}))
    # What is claimed for others is in the air with them.
    fly(places, B, 5, SLOW_S)
    assert places.room(SLOW_S) == Room(11, frozenset({A}))
    land(places, flights[:1])
    assert places.room(SLOW_S) == Room(11, frozenset({A}))


def test_a_slow_account_is_claimed_for_again_once_a_part_of_its_places_is_free() -> None:
    places = Places(16)
    flights = fly(places, A, 16)
    assert A in places.room(SLOW_S).full
    land(places, flights[:2])
    # No more than would fill it: the claim cannot tell whose the rows are.
    assert places.room(SLOW_S) == Room(2)
    land(places, flights[2:])
    assert places.room(SLOW_S) == Room(16)


def test_an_account_never_has_more_calls_in_the_air_than_there_are_places() -> None:
    places, now_s = Places(16), 0.0
    for _ in range(10):
        room = places.room(now_s)
        fly(places, A, 0 if A in room.full else room.limit, now_s)
        now_s += SLOW_S
    assert places.room(now_s).full == {A}
    assert places.most - 16 == places.room(now_s).limit + 2 * 16


def test_slow_accounts_share_the_threads_that_there_are() -> None:
    places, now_s, in_air = Places(16), 0.0, 0
    for number in range(9):
        limit = places.room(now_s).limit
        in_air += len(fly(places, ("vendor", str(number)), limit, now_s))
        assert in_air <= places.most
        now_s += SLOW_S
    assert in_air == places.most
    assert places.room(now_s).limit == 0


def test_two_slow_accounts_of_two_vendors_are_two() -> None:
    places = Places(8)
    fly(places, A, 8)
    assert places.room(SLOW_S).full == {A}
    fly(places, C, 8, SLOW_S)
    assert places.room(2 * SLOW_S) == Room(8, frozenset({A, C}))


def test_at_the_end_of_a_budget_only_others_than_the_slow_are_claimed_for() -> None:
    places = Places(16)
    assert places.room(0.0, ending=True) == Room(0)
    first = fly(places, A, 1)
    assert places.room(SLOW_S / 2, ending=True) == Room(0)
    assert places.room(SLOW_S, ending=True) == Room(16, frozenset({A}))
    assert places.room(SLOW_S) == Room(15)
    land(places, first)
    assert places.room(SLOW_S, ending=True) == Room(0)

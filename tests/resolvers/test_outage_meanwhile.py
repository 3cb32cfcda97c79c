"""What else happens while one reading looks up many rows: to the rows, to the process, and by
others that look too."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from outbox.contract import Listing, Sought, Vendor
from outbox.outcomes import Unreadable
from resolvers import looking, together
from resolvers.looking import Looker
from tests.resolvers.outages import BACK_IN_S, lose
from tests.workers.doubles import Stalled
from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox


class _Meanwhile(Stalled):
    """Something happens once a list has been read, and before anybody knows what it showed."""

    floor: Floor
    happens = ""

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        seen = super().read_list(sought)
        if self.happens:
            self.floor.sql(self.happens)
        return seen


@pytest.fixture
def meanwhile(database: str, sandbox: Sandbox) -> Iterator[_Meanwhile]:
    made: list[_Meanwhile] = []

    def wrap(vendor: Vendor) -> Vendor:
        made.append(_Meanwhile(vendor))
        return made[0]

    with open_floor(database, sandbox, PRODUCTION, vendor=wrap) as floor:
        made[0].floor = floor
        yield made[0]


def test_an_account_with_more_due_is_read_once_at_a_time(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many readings at once as there are threads would read the same pages as often."""
    monkeypatch.setattr(looking, "MOST_ROWS", 30)
    floor = meanwhile.floor
    lose(floor, 100)
    floor.advance(BACK_IN_S)
    at_once: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        at_once.append(1)
        seen = read_list(sought)
        (held,) = floor.sql(
            "SELECT count(*) AS n FROM outbox.intents WHERE resolver_until > outbox.clock()"
        )
        assert held["n"] <= 30, "another reading of the same list has begun"
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 100
    assert len(at_once) == 4
    assert floor.statuses() == {"succeeded": 100}


def test_what_a_reading_said_of_a_row_that_moved_meanwhile_is_dropped(
    meanwhile: _Meanwhile,
) -> None:
    floor = meanwhile.floor
    ids = lose(floor, 4, "lost_request")
    meanwhile.happens = (
        "UPDATE outbox.intents SET version = version + 1, resolver_token = NULL, "
        f"resolver_until = NULL, due_at = outbox.clock() + INTERVAL '1 s' WHERE id = '{ids[1]}'"
    )
    floor.advance(BACK_IN_S)
    floor.look()
    assert [floor.row(i)["looks"] for i in ids] == [1, 0, 1, 1]


def test_no_row_is_looked_at_twice_while_a_reading_lasts(meanwhile: _Meanwhile) -> None:
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    others: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        others.append(floor.new_looker().once())
        return read_list(sought)

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 40
    assert others == [0]


def test_a_reading_that_lasts_longer_than_a_hold_keeps_its_rows(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    passed_s = 0.0
    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=lambda: passed_s))
    others: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        nonlocal passed_s
        seen = read_list(sought)
        for _ in range(2):
            passed_s += 50
            floor.advance(50)
            others.append(floor.new_looker().once())
            read_list(sought)  # one page more
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 40
    assert others == [0, 0]
    assert floor.statuses() == {"succeeded": 40}


def test_a_process_that_ends_leaves_the_rest_of_a_reading_to_another(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not take as long as very many rows do."""
    monkeypatch.setattr(together, "_PIECE", 10)
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    ending = floor.new_looker()
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        seen = read_list(sought)
        ending._looking.stop()
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert ending.once() == 40
    assert floor.statuses() == {"unknown": 40}
    floor.advance(floor.settings.policy.look_hold_s())
    meanwhile.read_list = read_list  # type: ignore[method-assign]
    assert floor.look() == 40
    assert floor.statuses() == {"succeeded": 40}


def test_rows_of_a_resolver_that_died_are_looked_at_by_another(floor: Floor) -> None:
    lose(floor, 20)
    floor.advance(BACK_IN_S)
    dead = Looker(floor.store, floor.directory)
    for due in dead._all_due():
        dead._claim(due)
    dead.close()
    assert floor.look() == 0
    floor.advance(floor.settings.policy.look_hold_s())
    assert floor.look() == 20
    assert floor.statuses() == {"succeeded": 20}


@pytest.mark.parametrize("waiting", [True, False])
def test_where_something_is_to_be_sent_each_piece_is_followed_by_a_rest(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    monkeypatch.setattr(together, "_PIECE", 10)
    lose(floor, 40)
    if waiting:
        floor.enqueue(1)
    floor.advance(BACK_IN_S)
    rests: list[float] = []
    stopping = floor.looker._looking._stopping
    monkeypatch.setattr(stopping, "wait", rests.append)
    assert floor.look() == 40
    assert len(rests) == (4 if waiting else 0)
    assert all(rest > 0 for rest in rests)

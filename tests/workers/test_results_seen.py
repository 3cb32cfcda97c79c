"""Results that do not reach the caller's tables are seen by health and by doctor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from outbox import Settlement
from outbox.consuming import Consumer
from resolvers.doctoring import findings
from resolvers.health import health
from tests.workers.floor import Floor


class Books:
    """A consumer that cannot use a thing until it is mended."""

    def __init__(self, floor: Floor) -> None:
        self.mended = False
        self.consumer = Consumer(floor.settings, "billing", self.apply)

    def apply(self, _: Session, settlement: Settlement) -> None:
        if not self.mended:
            raise ValueError(settlement.receipt_id)


@pytest.fixture
def books(floor: Floor) -> Iterator[Books]:
    opened = Books(floor)
    yield opened
    opened.consumer.close()


def problems(floor: Floor) -> list[str]:
    found = health(floor.store, floor.directory)
    return [p for p in found["problems"] if p.startswith("results")]


def notices(floor: Floor) -> list[str]:
    found = health(floor.store, floor.directory)
    return [n for n in found["notices"] if n.startswith("results")]


def doctor(floor: Floor) -> list[tuple[str, ...]]:
    found = findings(floor.store, floor.directory)
    return [one.sample for one in found if one.check == "settlement_not_taken" and not one.ok]


def test_a_result_that_its_consumer_fails_at_is_a_problem_until_it_is_used(
    floor: Floor, books: Books
) -> None:
    floor.one()
    floor.drain()
    assert len(books.consumer.once().failed) == 1
    assert (problems(floor), doctor(floor)) == ([], [])
    for _ in range(5):
        floor.clock.advance(60)
        books.consumer.once()
    assert len(problems(floor)) == 1
    ((result,),) = doctor(floor)
    assert result.startswith("billing:")
    books.mended = True
    assert books.consumer.once(hurry=True).done == 1
    assert (problems(floor), doctor(floor)) == ([], [])


def test_a_result_that_nobody_takes_is_told_and_is_no_problem_of_the_outbox(
    floor: Floor, books: Books
) -> None:
    books.mended = True
    books.consumer.once()
    floor.one()
    floor.drain()
    floor.clock.advance(3600)
    assert (problems(floor), notices(floor)) == ([], [])
    floor.clock.advance(2 * 3600)
    assert (problems(floor), len(notices(floor))) == ([], 1)
    floor.clock.advance(24 * 3600)
    assert len(doctor(floor)) == 1
    assert books.consumer.once().done == 1
    assert (problems(floor), notices(floor), doctor(floor)) == ([], [], [])

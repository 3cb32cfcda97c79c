"""Which rows one reading looks up, and what it may take."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outbox.store.neighbours import Held
from resolvers.windows import created_near, windows

EPOCH = datetime(2026, 11, 30, tzinfo=UTC)
# What one look reads around the moment of its row.
BEFORE_S, AFTER_S = 600, 780


def held(number: int, at_s: float) -> Held:
    created = EPOCH + timedelta(seconds=at_s)
    return Held(UUID(int=number), number.to_bytes(32), 1, created, created, created, None)


def span(row: Held) -> tuple[int, int]:
    at = int((row.created_at - EPOCH).total_seconds())
    return at - BEFORE_S, at + AFTER_S


def stretches(*at_s: float) -> list[list[int]]:
    rows = [held(number, at) for number, at in enumerate(at_s)]
    random.Random(7).shuffle(rows)
    return [[row.id.int for row in one.rows] for one in windows(rows, span)]


def test_rows_of_one_minute_are_one_reading_of_all_that_their_looks_read() -> None:
    (one,) = windows([held(n, float(n)) for n in range(60)], span)
    assert (one.since_epoch_s, one.until_epoch_s) == (-BEFORE_S, 59 + AFTER_S)
    assert len(one.rows) == 60


def test_a_row_that_would_make_a_reading_much_longer_has_one_of_its_own() -> None:
    width = BEFORE_S + AFTER_S
    assert stretches(0, width / 2) == [[0, 1]]
    assert stretches(0, width / 2 + 2) == [[0], [1]]


def test_the_oldest_stretch_comes_first_whatever_the_order_of_the_rows() -> None:
    assert stretches(9000, 0, 9001, 1, 20_000) == [[1, 3], [0, 2], [4]]


def test_rows_without_end_are_read_in_stretches_of_about_an_hour() -> None:
    found = windows([held(n, n * 300.0) for n in range(100)], span)
    assert sum(len(one.rows) for one in found) == 100
    assert len(found) > 1
    longest = max(one.until_epoch_s - one.since_epoch_s for one in found)
    assert longest <= 3600 + BEFORE_S + AFTER_S


def test_a_row_that_was_sent_again_for_hours_is_not_read_with_those_of_one_minute() -> None:
    rows = [held(1, 0.0), held(2, 0.0)]
    found = windows(rows, lambda row: (-600, 780 if row.id.int == 1 else 40_000))
    assert [len(one.rows) for one in found] == [1, 1]


def test_no_rows_are_no_reading() -> None:
    assert windows([], span) == []


@pytest.mark.parametrize(("rows", "looks", "deadlines"), [(1, 1, 1), (2, 2, 4), (500, 15, 15)])
def test_a_reading_may_take_what_its_looks_would_up_to_a_bound(
    rows: int, looks: int, deadlines: int
) -> None:
    (one,) = windows([held(n, 0.0) for n in range(rows)], span)
    assert (one.looks, one.deadlines) == (looks, deadlines)


def test_rows_are_sought_around_the_first_ones_and_no_further_than_a_stretch() -> None:
    first, last = created_near([held(1, 100.0), held(2, 700.0)])
    assert (first, last) == (EPOCH - timedelta(seconds=1400), EPOCH + timedelta(seconds=2200))
    far = [held(1, 0.0), held(2, 9000.0)]
    assert created_near(far) == (EPOCH, EPOCH + timedelta(seconds=9000))

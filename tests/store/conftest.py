"""A ledger of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.book import Book, open_book


@pytest.fixture
def book(database: str) -> Iterator[Book]:
    with open_book(database) as opened:
        yield opened

"""The tests of what is personal: a desk to type at, and a ledger of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.desk import Desk, open_desk
from tests.store.book import Book, open_book
from vendors.sandbox.client import Sandbox


@pytest.fixture
def desk(database: str, sandbox: Sandbox) -> Iterator[Desk]:
    with open_desk(database, sandbox) as opened:
        yield opened


@pytest.fixture
def book(database: str) -> Iterator[Book]:
    with open_book(database) as opened:
        yield opened

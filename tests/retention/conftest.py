"""The tests of retention: a desk to type at, and what is old on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.desk import open_desk
from tests.retention.attic import Attic
from vendors.sandbox.client import Sandbox


@pytest.fixture
def attic(database: str, sandbox: Sandbox) -> Iterator[Attic]:
    with open_desk(database, sandbox) as opened:
        yield Attic(opened)

"""One sandbox process for the command line's tests; each test has a desk of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.desk import Desk, open_desk
from vendors.sandbox.client import Sandbox


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox.start(tmp_path_factory.mktemp("sandbox") / "vendor.sqlite") as started:
        yield started


@pytest.fixture
def desk(database: str, sandbox: Sandbox) -> Iterator[Desk]:
    with open_desk(database, sandbox) as opened:
        yield opened

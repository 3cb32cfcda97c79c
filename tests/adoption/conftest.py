"""One sandbox process for the tests of applications; each test has its own account in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.floor import Floor, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox.start(tmp_path_factory.mktemp("adoption") / "vendor.sqlite") as started:
        yield started


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """A ledger, a vendor and a sender; the application is a process of its own beside them."""
    with open_floor(database, sandbox) as opened:
        yield opened

"""One sandbox process for the resolvers' tests; each test has its own account in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox.start(tmp_path_factory.mktemp("resolvers") / "vendor.sqlite") as started:
        yield started


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """Real periods; time passes where the test says so."""
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened

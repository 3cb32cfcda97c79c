"""The resolvers' tests: a floor whose time passes where the test says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """Real periods; time passes where the test says so."""
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened

"""The tests of the consuming side: a floor that waits little."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.floor import Floor, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """A floor with small waits and no breaker."""
    with open_floor(database, sandbox) as opened:
        yield opened

"""The command line's tests: each has a desk of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.desk import Desk, open_desk
from vendors.sandbox.client import Sandbox


@pytest.fixture(scope="session")
def sandbox(outbox_sandbox: Sandbox) -> Sandbox:
    """The vendor; named here too for the tests elsewhere that take the desk from here."""
    return outbox_sandbox


@pytest.fixture
def desk(database: str, sandbox: Sandbox) -> Iterator[Desk]:
    with open_desk(database, sandbox) as opened:
        yield opened

"""The resolvers' tests: a floor whose time passes where the test says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox.policy import Policy
from tests.resolvers.ledger import Ledger, open_ledger
from tests.resolvers.page_target import Target, page_target
from tests.workers.floor import PRODUCTION, Floor, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """Real periods; time passes where the test says so."""
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened


@pytest.fixture
def ledger_policy() -> Policy | None:
    """The periods and thresholds of ``ledger``; None: the real ones, and no groups of pages."""
    return None


@pytest.fixture
def ledger(database: str, ledger_policy: Policy | None) -> Iterator[Ledger]:
    """A ledger and its questions, without a vendor."""
    with open_ledger(database, ledger_policy) as opened:
        yield opened


@pytest.fixture
def first() -> Iterator[Target]:
    """A target of pages, and what it is told."""
    with page_target() as found:
        yield found


@pytest.fixture
def second() -> Iterator[Target]:
    """The target after the first."""
    with page_target() as found:
        yield found

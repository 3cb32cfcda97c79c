"""The properties' fixtures. A property is tried on many examples: its database is its module's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox.testing import Databases
from tests.properties.scene import Scene, open_scene


@pytest.fixture(scope="module")
def module_database(outbox_databases: Databases, outbox_template: str) -> Iterator[str]:
    """The URL of a migrated database of this module's own."""
    with outbox_databases.fresh(outbox_template) as url:
        yield url


@pytest.fixture(scope="module")
def scene(module_database: str) -> Iterator[Scene]:
    """A ledger and the product's parts over it."""
    with open_scene(module_database) as opened:
        yield opened

"""The store with two connections, under any interleaving of their statements and commits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import TwoConnections
from tests.properties.profiles import bounded
from tests.properties.scene import Scene, open_scene


@pytest.fixture
def impatient(module_database: str) -> Iterator[Scene]:
    """A lock that the other side holds is not waited for: nobody else would ever let it go."""
    with open_scene(
        module_database, lock_timeout_s=0.03, idle_in_transaction_timeout_s=120.0
    ) as opened:
        yield opened


def test_whatever_two_connections_do_the_ledger_says_what_is_true(impatient: Scene) -> None:
    class Here(TwoConnections):
        scene = impatient

    run_state_machine_as_test(Here, settings=bounded(10, stateful_step_count=30))

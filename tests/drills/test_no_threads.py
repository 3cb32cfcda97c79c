"""A host that has no thread to give while a worker's children start."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.drills.works import Works, open_works
from tests.workers.floor import wait_until

_REFUSING = Path(__file__).with_name("refusing")


def _in_their_stead(works: Works, those: list[psutil.Process]) -> list[psutil.Process]:
    """The children that have been started since."""
    found: list[psutil.Process] = []

    def are_there() -> bool:
        found[:] = [child for child in works.children() if child not in those]
        return len(found) >= len(those)

    wait_until(are_there)
    return found


@pytest.mark.heavy
def test_children_that_cannot_start_are_replaced_until_they_can(tmp_path: Path) -> None:
    """They lived on without what they needed, took each tick, and did nothing about it."""
    refused = tmp_path / "refused"
    more = {"REFUSE_THREADS_WHILE": str(refused), "PYTHONPATH": str(_REFUSING)}
    with open_works(tmp_path, broker=True, more=more) as works:
        works.stack.start("worker", "beat")
        account = works.account()
        ids = works.enqueue(account, 3)
        works.wait_until_settled(ids)
        refused.touch()
        first = works.children()
        for child in first:
            child.kill()
        psutil.wait_procs(first)
        # Those that come in their stead come to nothing: each is seen to end.
        for child in _in_their_stead(works, first):
            child.wait(30)
        refused.unlink()
        ids += works.enqueue(account, 3)
        works.wait_until_settled(ids)
        works.check(account, ids)
        assert works.stack.dead() == []

"""Celery's time limits fire in the middle of a drain."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.drills.works import Works, open_works
from tests.workers.floor import wait_until

pytestmark = pytest.mark.heavy

LIMITS = {
    "OUTBOX_CALL_DEADLINE_S": "1",
    "OUTBOX_LEASE_S": "3",
    "OUTBOX_DRAIN_BUDGET_S": "0.5",
    "OUTBOX_BUDGET_SLACK_S": "0.1",
    "OUTBOX_SOFT_LIMIT_S": "2",
    "OUTBOX_HARD_LIMIT_S": "3",
    "OUTBOX_VISIBILITY_TIMEOUT_S": "30",
    "OUTBOX_LOCK_TIMEOUT_S": "0.5",
    # Only the broker's messages start a drain: the poll comes too late to help.
    "OUTBOX_TICK_DRAIN_S": "1",
}


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with open_works(tmp_path_factory.mktemp("works"), "worker", "beat", more=LIMITS) as opened:
        yield opened


def test_a_soft_limit_while_answers_are_recorded_loses_none_and_kills_nobody(
    works: Works,
) -> None:
    """B37: the limit fires inside the database write after the answer, and later the hard one."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=0.5)
    wait_until(lambda: len(works.children()) == works.settings.policy.children)
    before = {child.pid for child in works.children()}
    ids = works.enqueue(account, 10)
    works.wait_for_posts(account, 10)
    url = works.servers.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as holding:
        # Nothing of these can be written until both limits have passed.
        holding.execute("SELECT id FROM outbox.intents WHERE id = ANY(%s) FOR UPDATE", (ids,))
        threading.Event().wait(4)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == 10
    outcomes = works.sql(
        "SELECT DISTINCT outcome FROM outbox.attempts WHERE intent_id = ANY(%(ids)s)", {"ids": ids}
    )
    assert {row["outcome"] for row in outcomes} <= {"receipt", "lease_expired"}
    assert {child.pid for child in works.children()} == before


def test_a_call_longer_than_the_limits_is_doubt_and_never_a_failure(works: Works) -> None:
    """B37: the vendor commits at once and answers after every limit."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=6, attempts=[1])
    ids = works.enqueue(account, 5)
    wait_until(lambda: works.statuses(ids).get("unknown"))
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == 5

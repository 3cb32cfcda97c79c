"""A thousand rows in doubt at a vendor that is away for longer than their time to live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.policy import Policy
from resolvers.escalating import escalate_once
from resolvers.looking import Looker
from resolvers.paging import page_once
from tests.resolvers.ledger import ACCOUNT, Ledger, open_ledger
from tests.resolvers.page_target import Target, pagers_of
from tests.resolvers.test_paging_storm import HOUR_S, record

ROWS = 1_000


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    """Real periods and thresholds, and a vendor at whose address nobody listens."""
    away = replace(ACCOUNT, base_url="http://127.0.0.1:9")
    with open_ledger(database, Policy(), accounts={("stripe", "default"): away}) as opened:
        yield opened


def in_doubt(ledger: Ledger) -> None:
    """All of them were sent, and no answer came."""
    ledger.sql(
        "UPDATE outbox.intents SET status = 'unknown', doubt = 1, attempts = 1, mode = 'test', "
        "vendor_account = 'acct_ledger', first_sent_at = outbox.clock(), "
        "last_sent_at = outbox.clock(), last_lease_end = outbox.clock(), resends = 8, "
        "window_ends_at = outbox.clock() + INTERVAL '22 hours', "
        "due_at = outbox.clock() + INTERVAL '5 seconds'"
    )


def test_a_thousand_rows_that_nobody_could_look_up_share_one_question_and_one_page(
    ledger: Ledger, first: Target
) -> None:
    record(ledger, ROWS)
    in_doubt(ledger)
    pagers = pagers_of(first)
    looker = Looker(ledger.store, ledger.directory)
    for passes_s in (6.0, 4 * HOUR_S, 1800.0, 1800.0):
        ledger.forward(passes_s)
        looker.once()
        escalate_once(ledger.store, ledger.directory)
        page_once(ledger.store, pagers, ledger.settings)
    looker.close()
    rows = ledger.sql(
        "SELECT DISTINCT status, absent_looks, looks > 0 AS looked FROM outbox.intents"
    )
    assert rows == [{"status": "unknown", "absent_looks": 0, "looked": True}]
    asked = ledger.sql("SELECT DISTINCT reasons FROM outbox.escalations WHERE holder IS NULL")
    assert asked == [{"reasons": ["ttl"]}]
    # Told again as time passes, by the next key of the same question.
    questions = {key.partition(":ttl")[0] for action, key in first.seen if action == "trigger"}
    assert len(questions) == 1
    counts = [
        body["payload"]["custom_details"].get("count")
        for body in first.bodies
        if body["event_action"] == "trigger"
    ]
    assert len(counts) <= 3
    assert counts[-1] == ROWS

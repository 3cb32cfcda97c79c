"""Many questions at once are one page, and one page stays one however it flaps."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from outbox import Outbox, Scope
from outbox.policy import Policy
from resolvers import holding
from resolvers.escalating import escalate_once
from resolvers.paging import page_once
from tests.resolvers.ledger import ARGS, CHARGE, Ledger
from tests.resolvers.page_target import (
    Died,
    DiesAfterSending,
    Target,
    file_pager,
    pagers_of,
)

ROWS = 500
HOUR_S = 3600.0


@pytest.fixture
def ledger_policy() -> Policy:
    """Real periods and thresholds."""
    return Policy()


def record(ledger: Ledger, rows: int, first_number: int = 0) -> list[UUID]:
    """That many writes, recorded in one transaction and never sent: their vendor is away."""
    asked = [
        (Scope(tenant="acme", run_id="run-1"), {**ARGS, "invoice_id": f"in_storm_{number}"})
        for number in range(first_number, first_number + rows)
    ]
    with psycopg.connect(ledger.settings.database_url.replace("+psycopg", "")) as connection:
        answers = Outbox(ledger.settings).enqueue_many(connection, CHARGE, asked)
    return [answer.intent_id for answer in answers]


def at_once(*runs: threading.Thread) -> None:
    for run in runs:
        run.start()
    for run in runs:
        run.join()


def test_five_hundred_rows_past_their_ttl_at_once_are_one_page_with_the_count_and_five_samples(
    ledger: Ledger, first: Target
) -> None:
    """B20: five hours of runs, two of each job always at once, and one sender that dies between
    its page and the record of it."""
    record(ledger, ROWS)
    pagers = pagers_of(first)
    ledger.forward(4 * HOUR_S + 1)
    escalate_once(ledger.store, ledger.directory)
    with pytest.raises(Died):
        page_once(ledger.store, [DiesAfterSending(pagers[0])], ledger.settings)
    for _ in range(10):
        ledger.forward(1800)
        at_once(
            *(
                threading.Thread(target=escalate_once, args=(ledger.store, ledger.directory))
                for _ in range(2)
            ),
            *(
                threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
                for _ in range(2)
            ),
        )
    # The one that died and the one that took over: the same key, so the target shows one page.
    assert len(first.requests) == 2
    ((key, _),) = {(key, action) for action, key in first.seen}
    (group,) = ledger.sql("SELECT * FROM outbox.escalations WHERE holder IS NOT NULL")
    assert key == f"outbox:{group['id']}:ttl"
    payload = first.bodies[-1]["payload"]
    assert payload["summary"].startswith(f"{ROWS} writes: ")
    assert payload["custom_details"]["count"] == ROWS
    samples = payload["custom_details"]["sample_escalations"].split(", ")
    oldest = ledger.sql(
        "SELECT id FROM outbox.escalations WHERE intent_id IS NOT NULL ORDER BY opened_at, id"
    )
    assert samples == [str(row["id"]) for row in oldest[:5]]
    assert len(oldest) == ROWS, "each row keeps a question of its own, for `escalation list`"
    states = ledger.sql("SELECT state, count(*) AS n FROM outbox.pages GROUP BY 1 ORDER BY 1")
    assert [(row["state"], row["n"]) for row in states] == [("dropped", ROWS), ("sent", 1)]


def test_an_outage_is_over_when_its_last_question_is_closed_and_says_so_once(
    ledger: Ledger, first: Target
) -> None:
    asked = [ledger.escalate(ledger.intent()) for _ in range(40)]
    pagers = pagers_of(first)
    at_once(
        *(
            threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
            for _ in range(2)
        )
    )
    late = ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    assert len(first.seen) == 1, "one more of the same is no news"
    for each in asked:
        ledger.close(each)
    page_once(ledger.store, pagers, ledger.settings)
    assert first.seen[1:] == [("trigger", f"outbox:{late}:ttl")], "it is alone now, and news"
    ledger.close(late)
    for _ in range(3):
        at_once(
            *(
                threading.Thread(target=page_once, args=(ledger.store, pagers, ledger.settings))
                for _ in range(2)
            )
        )
        ledger.forward(HOUR_S)
    ((_, key),) = first.seen[:1]
    assert sorted(first.seen[2:]) == sorted(
        [("resolve", key), ("resolve", f"outbox:{late}:ttl")]
    ), "each once"


def test_an_outage_that_comes_back_is_a_new_page_under_a_new_key(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for _ in range(3):
        asked = [ledger.escalate(ledger.intent()) for _ in range(5)]
        page_once(ledger.store, pagers, ledger.settings)
        for each in asked:
            ledger.close(each)
        page_once(ledger.store, pagers, ledger.settings)
    assert [action for action, _ in first.seen] == ["trigger", "resolve"] * 3
    keys = [key for _, key in first.seen]
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3, "under a resolved key a target may show the old page"


def test_a_question_that_opens_and_closes_between_two_ticks_is_told_to_nobody(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for _ in range(10):
        ledger.close(ledger.escalate(ledger.intent()))
    page_once(ledger.store, pagers, ledger.settings)
    assert first.seen == []


def test_a_group_that_is_told_again_counts_what_is_open_then(
    ledger: Ledger, tmp_path: Path
) -> None:
    pagers, seen = file_pager(tmp_path)
    asked = [ledger.escalate(ledger.intent()) for _ in range(8)]
    page_once(ledger.store, pagers, ledger.settings)
    for each in asked[:7]:
        ledger.close(each)
    ledger.forward(1800)
    page_once(ledger.store, pagers, ledger.settings)
    assert len(seen()) == 2
    told = [line for line in (tmp_path / "pages.jsonl").read_text().splitlines() if line]
    assert '"summary":"8 writes: ' in told[0]
    assert '"summary":"1 write: ' in told[1]
    assert f'"sample_escalations":"{asked[7]}"' in told[1]


def test_a_group_is_acknowledged_as_one_and_told_again_when_that_ends(
    ledger: Ledger, first: Target
) -> None:
    pagers = pagers_of(first)
    for _ in range(6):
        ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers, ledger.settings)
    (group,) = ledger.sql("SELECT * FROM outbox.escalations WHERE holder IS NOT NULL")
    holding.ack(ledger.store, ledger.directory, str(group["id"]), by="ann", reason="mine")
    for _ in range(4):
        page_once(ledger.store, pagers, ledger.settings)
        ledger.forward(1801)
    key = f"outbox:{group['id']}:ttl"
    assert first.seen == [("trigger", key), ("acknowledge", key), ("trigger", f"{key}:2")]


def test_a_few_questions_are_paged_one_by_one(ledger: Ledger, first: Target) -> None:
    for _ in range(4):
        ledger.escalate(ledger.intent())
    page_once(ledger.store, pagers_of(first), ledger.settings)
    assert len(first.seen) == 4


def test_another_threshold_is_a_setting(ledger: Ledger, first: Target) -> None:
    for _ in range(2):
        ledger.escalate(ledger.intent())
    settings = replace(ledger.settings, policy=replace(Policy(), page_group_from=2))
    page_once(ledger.store, pagers_of(first), settings)
    assert len(first.seen) == 1

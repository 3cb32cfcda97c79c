"""One odd number in one question keeps no other question from its page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outbox.policy import Policy
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import page_target, pagers_of
from tests.resolvers.questions import LEAST, ask, groups, page, triggers


@pytest.fixture
def ledger_policy() -> Policy:
    """Real periods and thresholds."""
    return Policy()


@pytest.mark.parametrize(
    "found",
    [[{"amount_minor": 10**30}], [{"amount_minor": "nine"}], [{"amount_minor": 9.5}],
     [{"amount_minor": 10**400}], {"amount_minor": 1}, None, "none"],
)  # fmt: skip
def test_an_odd_amount_in_one_question_ends_no_paging(ledger: Ledger, found: Any) -> None:
    (odd, *_) = ask(ledger, LEAST)
    ledger.sql(
        "UPDATE outbox.escalations SET detail = detail || jsonb_build_object('found', "
        "%(found)s::jsonb) WHERE id = %(id)s",
        {"id": odd, "found": json.dumps(found)},
    )
    with page_target() as target:
        page(ledger, pagers_of(target))
        assert len(groups(ledger)) == 1
        assert [count for _, count, _ in triggers(target)] == [LEAST]

"""Pages that nobody was shown, and results that say another word than the ledger, are found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox import Settlement
from tests.sim import shown
from tests.sim.results import last_words

_AT = datetime(2026, 11, 30, tzinfo=UTC)
_INTENT = UUID(int=1)
_TTL = "outbox:e1:ttl"


def _question(**changes: Any) -> dict[str, Any]:
    base = {"id": "e1", "reasons": ["ttl"], "closed_at": None, "held": False, "grouped": False}
    return {**base, **changes}


@pytest.mark.parametrize(
    ("question", "pages", "found"),
    [
        ({}, [("trigger", _TTL)], ""),
        ({}, [("trigger", f"{_TTL}:2")], ""),
        ({}, [], "a question is open (ttl), and nobody was paged"),
        ({}, [("trigger", "outbox:e2:ttl")], "a question is open (ttl), and nobody was paged"),
        ({}, [("resolve", _TTL)], "a question is open (ttl), and nobody was paged"),
        ({"reasons": ["ttl", "window"]}, [("trigger", _TTL)], "a question is open (window), and"),
        ({"held": True}, [], ""),
        ({"grouped": True}, [], ""),
        ({"closed_at": _AT}, [], ""),
        ({"closed_at": _AT}, [("trigger", _TTL), ("resolve", _TTL)], ""),
        ({"closed_at": _AT}, [("trigger", _TTL)], f"{_TTL} is shown still"),
    ],
)
def test_what_a_person_is_not_shown_or_shown_for_ever_is_found(
    tmp_path: Path, question: dict[str, Any], pages: list[tuple[str, str]], found: str
) -> None:
    path = tmp_path / "pages"
    lines = [json.dumps({"action": action, "dedup_key": key}) for action, key in pages]
    path.write_text("".join(f"{line}\n" for line in lines))
    said = list(shown.problems(path, [_question(**question)]))
    assert [one.startswith(found) for one in said] == ([True] if found else [])


def _settlement(**changes: Any) -> Settlement:
    base = dict.fromkeys(Settlement.__dataclass_fields__)
    told = {"told": "settled", "business_status": "paid", "receipt_id": "pi_1"}
    return Settlement(**{**base, "id": 1, "intent_id": _INTENT, "at": _AT, **told, **changes})


def _row(**changes: Any) -> dict[str, Any]:
    base = {"id": _INTENT, "status": "succeeded", "doubt": 0, "contradicted_at": None,
            "tool": "charge", "created_at": _AT, "settled_at": _AT, "business_status": "paid",
            "receipt_id": "pi_1", "failure_code": None}  # fmt: skip
    return {**base, **changes}


@pytest.mark.parametrize(
    ("row", "last", "found"),
    [
        ({}, {}, ""),
        ({"contradicted_at": _AT}, {}, "told as unknown, and the consumer was last handed settled"),
        ({"status": "failed_poison"}, {}, "told as failed, and the consumer was last handed"),
        ({"business_status": "reversed"}, {}, "the consumer was last handed paid of pi_1"),
        ({}, {"receipt_id": "pi_2"}, "the consumer was last handed paid of pi_2"),
        ({"contradicted_at": _AT}, {"told": "unknown"}, "the consumer was last handed paid"),
        ({}, None, "succeeded, and the consumer was handed nothing"),
        ({"status": "unknown", "settled_at": None}, None, ""),
    ],
)
def test_a_consumer_that_was_last_handed_another_word_than_the_ledgers_is_found(
    row: dict[str, Any], last: dict[str, Any] | None, found: str
) -> None:
    handed = None if last is None else _settlement(**last)
    said = [problem for _, problem in last_words(_row(**row), handed)]
    assert [one.startswith(found) for one in said] == ([True] if found else [])

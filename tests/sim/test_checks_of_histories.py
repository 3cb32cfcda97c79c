"""A history in which one thing is wrong is found wrong, and for that: a check that cannot fail
proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.sim.history import problems

History = dict[str, Any]


def _sound() -> History:
    """Two charges of one lane, settled one after the other, told and handed over."""

    def intent(number: int) -> dict[str, Any]:
        return {"id": f"i{number}", "key": f"k{number}", "lane": "cus_1", "seq": number,
                "status": "succeeded", "receipt_id": f"pi_{number}", "contradicted": False,
                "settled_at": 10.0 * number}  # fmt: skip

    numbers = (1, 2)
    return {
        "intents": [intent(n) for n in numbers],
        "events": [
            {"intent": f"i{n}", "kind": "receipt_found", "from_status": "in_flight",
             "to_status": "succeeded"} for n in numbers
        ],
        "answers": [{"key": f"k{n}", "status": 200, "at": 10.0 * n} for n in numbers],
        "results": [{"id": n, "intent": f"i{n}", "kind": "settled", "status": "succeeded",
                     "told": "settled"} for n in numbers],
        "asked": [],
        "ruled": [],
        "told": [[f"i{n}", word] for n in numbers for word in ("accepted", "settled")],
        "handed": [1, 2],
        "wire": [{"key": f"k{n}", "body_sha256": f"b{n}", "at": 10.0 * n - 5, "status": 200}
                 for n in numbers],
        "effects": [{"key": f"k{n}", "object_id": f"pi_{n}", "outcome": "applied",
                     "at": 10.0 * n - 5} for n in numbers],
        "faults": [],
    }  # fmt: skip


def _post(history: History, **changes: Any) -> None:
    history["wire"].append({**history["wire"][-1], "at": 30.0, **changes})


def _another_effect(history: History) -> None:
    history["effects"].append({**history["effects"][-1], "object_id": "pi_3"})


def _stored_500(history: History) -> None:
    history["answers"][-1]["status"] = 500
    _post(history)


def _cancelled_and_sent(history: History) -> None:
    history["intents"][1].update(status="cancelled", receipt_id=None)


def _nothing_took_effect(history: History) -> None:
    del history["effects"][-1]


def _failed_and_landed(history: History) -> None:
    history["intents"][1].update(status="failed_poison", receipt_id=None)


def _left_open(history: History) -> None:
    history["intents"][1].update(status="unknown", receipt_id=None, settled_at=None)
    del history["effects"][-1]


def _told_twice(history: History) -> None:
    history["told"].insert(1, ["i1", "failed"])


def _overtaken(history: History) -> None:
    history["wire"][1]["at"] = 9.0


def _left_its_end(history: History) -> None:
    history["events"].append(
        {"intent": "i1", "kind": "lost", "from_status": "succeeded", "to_status": "unknown"}
    )


def _without_a_result(history: History) -> None:
    del history["results"][-1]
    history["handed"] = [1]


_WRONG: tuple[tuple[str, Callable[[History], Any]], ...] = (
    ("i2: two bodies under one key", lambda h: _post(h, body_sha256="other")),
    ("i2: cancelled, and it was on the wire", _cancelled_and_sent),
    ("i2: sent again after a stored 500", _stored_500),
    ("keys on the wire that nobody recorded", lambda h: _post(h, key="k9")),
    ("i2: 2 effects", _another_effect),
    ("i2: succeeded, and nothing took effect", _nothing_took_effect),
    ("i2: its receipt is of another object", lambda h: h["intents"][1].update(receipt_id="pi_9")),
    ("i2: failed_poison, and it took effect and nobody was asked", _failed_and_landed),
    ("i2: unknown at the end, and nobody was asked", _left_open),
    ("i1: told failed and then settled", _told_twice),
    ("i2: told settled, and it is failed_poison", _failed_and_landed),
    ("i2: overtook i1 in their lane", _overtaken),
    ("i1: left succeeded for unknown by lost", _left_its_end),
    ("results [1, 2], handed over [1]", lambda h: h.update(handed=[1])),
    ("results [1, 2], handed over [1, 2, 2]", lambda h: h.update(handed=[1, 2, 2])),
    ("i2: settled without a result", _without_a_result),
)


def test_a_history_in_which_all_is_well_has_no_problem() -> None:
    assert list(problems(json.dumps(_sound()))) == []


@pytest.mark.parametrize(("said", "breaks"), _WRONG, ids=[said for said, _ in _WRONG])
def test_what_must_not_be_is_found_in_a_history(
    said: str, breaks: Callable[[History], Any]
) -> None:
    history = deepcopy(_sound())
    breaks(history)
    found = list(problems(json.dumps(history)))
    assert any(problem.startswith(said) for problem in found), found

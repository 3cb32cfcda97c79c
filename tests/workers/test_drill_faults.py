"""`outbox drill faults`: every kind of cell, and that a broken promise is a wrong row."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from click.testing import CliRunner

from outbox import Answer
from outbox.outcomes import Absent
from outbox.store import doubt
from resolvers import decide, paging
from tests.cli.desk import SCRIPT
from tests.vendors.recipe_calls import contracts_as_before
from vendors.sandbox.limbo_faults import MODES
from vendors.sandbox.limbo_paths import BY_NAME, PATHS, SAFE
from workers.cli import root
from workers.drills import faults
from workers.drills.faults_cells import TAIL_FROM_S, TAIL_TO_S, Cell, cells
from workers.drills.report import Progress, Row
from workers.drills.simulated import Simulated

BLIND = BY_NAME["social.x"]
ON_TIME = Cell("timeout_after", BY_NAME["tickets.create"], "native")


def drilled(chosen: Sequence[Cell]) -> list[Row]:
    with contracts_as_before():
        return faults.drilled(chosen, Progress())


# One of each kind: (fault, path, contract), then once, doubled, unknown, told, paged.
KINDS: dict[tuple[str, str, str], tuple[int, int, int, str, bool]] = {
    ("timeout_before", "social.linkedin", "native"): (1, 0, 0, "settled", False),
    ("timeout_before", "social.mastodon", "native"): (1, 0, 0, "settled", False),
    ("timeout_before", "social.x", "native"): (0, 0, 1, "unknown", True),
    ("timeout_before", "social.x", "keys"): (1, 0, 0, "settled", False),
    ("timeout_after", "social.x", "native"): (1, 0, 1, "unknown", True),
    ("timeout_late", "billing.refund", "native"): (1, 0, 0, "settled", False),
    ("timeout_late", "social.weibo", "native"): (1, 0, 0, "settled", False),
    ("timeout_late_tail", "mail.send", "native"): (1, 0, 0, "settled", False),
    ("timeout_late_tail", "mail.send", "keys"): (1, 0, 0, "settled", False),
    ("500_before", "tickets.comment", "native"): (1, 0, 0, "settled", False),
    ("500_after", "tickets.comment", "native"): (1, 0, 0, "settled", False),
    ("partial_batch", "data.insert_many", "native"): (4, 0, 0, "settled", False),
    ("partial_batch", "data.insert_many", "keys"): (4, 0, 0, "settled", False),
    ("duplicate_delivery", "deploy.trigger", "native"): (0, 1, 1, "unknown", True),
    ("duplicate_delivery", "deploy.trigger", "keys"): (1, 0, 0, "settled", False),
    ("duplicate_delivery", "social.x", "native"): (0, 1, 0, "settled", False),
    ("duplicate_delivery", "tickets.status", "native"): (1, 0, 0, "settled", False),
    ("503_transient", "social.x", "native"): (1, 0, 0, "settled", False),
    ("429", "tickets.create", "native"): (1, 0, 0, "settled", False),
    ("outage", "billing.charge", "native"): (0, 0, 1, "accepted", True),
    ("schema_drift", "billing.charge", "keys"): (1, 0, 0, "settled", False),
    ("schema_drift", "data.insert", "native"): (1, 0, 0, "settled", False),
}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str, str], Row]:
    chosen = [one for one in cells() if (one.fault, one.path.name, one.contract) in KINDS]
    assert len(chosen) == len(KINDS)
    return dict(
        zip([(c.fault, c.path.name, c.contract) for c in chosen], drilled(chosen), strict=True)
    )


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_one_effect_wherever_a_key_or_a_read_brings_it_about_else_an_honest_question(
    rows: dict[tuple[str, str, str], Row], kind: tuple[str, str, str]
) -> None:
    row = rows[kind]
    seen = [row.values[name] for name in ("once", "doubled", "unknown", "told", "paged")]
    assert (row.ok, tuple(seen)) == (True, KINDS[kind])


def test_the_cells_are_twelve_faults_on_eleven_paths_under_two_contracts() -> None:
    every = list(cells())
    of_eleven = [one for one in every if one.path in PATHS]
    assert Counter(one.contract for one in of_eleven) == {"native": 122, "keys": 122}
    assert {one.fault for one in of_eleven} == set(MODES)
    assert len(every) - len(of_eleven) == (len(MODES) - 1) * len(SAFE)
    tail = [one.late_s for one in of_eleven if one.fault == "timeout_late_tail"][: len(PATHS)]
    assert tail == sorted(tail)
    assert TAIL_FROM_S < tail[0] < 60
    assert 500 < tail[5] < 600  # the published median is about nine minutes
    assert 5400 < tail[-1] < TAIL_TO_S


# -- a broken promise is a wrong row -------------------------------------------------------------


def test_absence_after_one_early_look_doubles_a_late_write_and_the_drill_ends_with_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "_is_quiet_absence", lambda row, e, *_: isinstance(e.look, Absent))
    monkeypatch.setattr(decide, "_is_confirmed", lambda *_: True)
    late = Cell("timeout_late", BY_NAME["social.linkedin"], "native", 90.0)
    monkeypatch.setattr(faults, "cells", lambda: [late, ON_TIME])
    with contracts_as_before():
        ran = CliRunner().invoke(root, ["drill", "faults", "--json"])
    assert ran.exit_code == 3, ran.output
    shown = json.loads(ran.stdout)
    assert shown["ok"] is False
    assert [(row["ok"], row["doubled"]) for row in shown["rows"]] == [(False, 1), (True, 0)]


@pytest.mark.heavy
def test_a_doubt_of_which_nobody_is_paged_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "page_once", lambda *_: 0)
    (row,) = drilled([Cell("timeout_after", BLIND, "native")])
    assert (row.ok, row.values["unknown"], row.values["paged"]) == (False, 1, False)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fault", "word"), [("timeout_after", "failed"), ("timeout_before", "settled")]
)
def test_a_false_word_is_wrong(monkeypatch: pytest.MonkeyPatch, fault: str, word: str) -> None:
    """Of what was done "failed" is false, and of what was not done "settled" is."""
    told = Simulated.answers

    def falsely(self: Simulated, ids: Sequence[UUID]) -> dict[UUID, Answer]:
        return {i: replace(answer, told=word) for i, answer in told(self, ids).items()}

    monkeypatch.setattr(Simulated, "answers", falsely)
    (row,) = drilled([Cell(fault, BLIND, "native")])
    assert (row.ok, row.values["told"]) == (False, word)


@pytest.mark.heavy
def test_a_redelivery_that_nobody_noticed_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "schedule_verification", lambda *_: None)
    (row,) = drilled([Cell("duplicate_delivery", BY_NAME["deploy.trigger"], "native")])
    assert (row.ok, row.values["doubled"], row.values["told"]) == (False, 1, "settled")


@pytest.mark.heavy
def test_the_whole_drill_as_a_user_runs_it() -> None:
    done = subprocess.run(
        [SCRIPT, "drill", "faults", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["ok"], len(shown["rows"])) == (0, True, 277), done.stderr
    for row in shown["rows"]:
        blind_redelivery = (row["path"], row["fault"], row["contract"]) == (
            "social.x", "duplicate_delivery", "native",
        )  # fmt: skip
        if row["doubled"]:
            assert (row["fault"], row["key"]) == ("duplicate_delivery", False)
            assert row["paged"] is not blind_redelivery
        if row["key"] and row["fault"] != "outage":
            assert (row["told"], row["once"]) == ("settled", 4 if "many" in row["path"] else 1)

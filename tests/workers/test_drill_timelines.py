"""`outbox drill timelines`: the timelines themselves, the published figures, and wrong rows."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter

import pytest
from click.testing import CliRunner

from resolvers import decide, paging
from tests.cli.desk import SCRIPT
from tests.vendors.recipe_calls import contracts_as_before
from workers.cli import root
from workers.drills import timelines, timelines_enumerated
from workers.drills.report import Progress
from workers.drills.timelines_enumerated import REQUEST, WHOLE, enumerated

FEW = 200
POLICIES = ["no retry", "three tries", "three tries with a key", "the outbox"]


# -- the timelines -------------------------------------------------------------------------------


def test_four_thousand_timelines_are_all_different_and_the_same_every_time() -> None:
    found = enumerated(4000)
    assert len(found) == len(set(found)) == 4000
    written = "\n".join(f"{one.vendor} {' '.join(one.fates)}" for one in found)
    assert written == "\n".join(f"{one.vendor} {' '.join(one.fates)}" for one in enumerated(4000))
    # What is shown in the README was found over these very ones.
    assert hashlib.sha256(written.encode()).hexdigest()[:16] == "08d879260431de9f"


def test_each_request_is_lost_as_often_as_the_fractions_say() -> None:
    found = enumerated(4000)
    vendors = Counter(one.vendor for one in found)
    assert vendors == {"accepts": 3914, "refuses": 43, "is_out": 43}
    for position in range(3):
        fates = Counter(one.fates[position] for one in found if len(one.fates) > position)
        for fate, weight in REQUEST.items():
            expected = fates.total() * weight / WHOLE
            assert abs(fates[fate] - expected) < 0.03 * fates.total(), (position, fate)


@pytest.mark.parametrize("count", [1, 2, 3, 50, 997])
def test_any_number_can_be_enumerated(count: int) -> None:
    found = enumerated(count)
    assert len(found) == len(set(found)) == count


# -- the rows ------------------------------------------------------------------------------------


def test_the_outbox_applies_once_what_can_be_applied_and_says_so() -> None:
    chosen = enumerated(FEW)
    taken = sum(one.can_be_applied for one in chosen)
    out = sum(one.vendor == "is_out" for one in chosen)
    assert out > 0
    with contracts_as_before():
        found = timelines.drilled(chosen, Progress())
    rows = {str(row.values["policy"]): row for row in found}
    assert list(rows) == POLICIES
    ours = rows["the outbox"]
    share = round(100 * taken / FEW, 2)
    assert ours.ok
    assert (ours.values["reported_pct"], ours.values["once_pct"]) == (share, share)
    assert (ours.values["doubled"], ours.values["false_words"]) == (0, 0)
    assert ours.values["unknown"] == out
    assert ours.values["refused"] == FEW - taken - out
    # The others: silence doubles without a key, and each says of some call what is not so.
    assert rows["three tries"].values["doubled"] != 0
    assert rows["three tries with a key"].values["doubled"] == 0
    assert all(rows[name].values["false_words"] != 0 for name in POLICIES[:2])
    assert rows["no retry"].values["tries_per_call"] == 1.0


@pytest.mark.heavy
def test_other_fractions_than_the_published_ones_are_wrong_rows_and_exit_code_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = {"request_lost": 805, "reply_lost": 3000, "delivered": 6195}
    monkeypatch.setattr(timelines_enumerated, "REQUEST", often)
    assert shown_wrong(monkeypatch) == POLICIES[:2]


@pytest.mark.heavy
def test_an_outbox_that_never_sends_again_is_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_may_resend", lambda *_, **__: False)
    assert shown_wrong(monkeypatch) == ["the outbox"]


@pytest.mark.heavy
def test_an_outbox_that_pages_nobody_is_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "page_once", lambda *_: 0)
    assert shown_wrong(monkeypatch) == ["the outbox"]


def shown_wrong(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The policies whose row is wrong over fewer timelines; the command then ends with 3."""
    monkeypatch.setattr(timelines, "CALLS", FEW)
    with contracts_as_before():
        ran = CliRunner().invoke(root, ["drill", "timelines", "--json"])
    shown = json.loads(ran.stdout)
    assert (ran.exit_code, shown["ok"]) == (3, False), ran.output
    return [row["policy"] for row in shown["rows"] if not row["ok"]]


@pytest.mark.heavy
def test_the_whole_drill_meets_the_published_figures() -> None:
    done = subprocess.run(
        [SCRIPT, "drill", "timelines", "--json"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["ok"]) == (0, True), done.stderr
    none, three, keyed, ours = shown["rows"]
    assert abs(none["reported_pct"] - 81.92) <= 2
    assert abs(none["once_pct"] - 89.95) <= 2
    assert abs(three["reported_pct"] - 96.95) <= 2
    assert abs(three["once_pct"] - 89.42) <= 2
    assert abs(three["doubled"] - 334) <= 80
    assert abs(keyed["once_pct"] - 97.78) <= 2
    assert (none["doubled"], keyed["doubled"], ours["doubled"]) == (0, 0, 0)
    # 3,914 of 4,000 can be applied; of the rest 43 are refused, and of 43 a person is asked.
    assert (ours["once_pct"], ours["reported_pct"]) == (97.85, 97.85)
    assert (ours["refused"], ours["unknown"], ours["false_words"]) == (43, 43, 0)

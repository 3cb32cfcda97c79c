"""Drills that can fail: where the ledger, the wire or the log shows a broken promise, the row says
so and the exit code is 3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from outbox import Answer
from tests.vendors.recipe_calls import contracts_as_before
from vendors.sandbox.client import Sandbox
from workers.cli import root
from workers.drills import leases, staging, strategies
from workers.drills.leases_scenarios import SCENARIOS as OF_LEASES
from workers.drills.parts import Parts, open_parts
from workers.drills.report import Progress
from workers.drills.staging_scenarios import SCENARIOS as OF_STAGING
from workers.testing import OutboxBox
from workers.testing_effects import Effects

pytestmark = pytest.mark.heavy

RECYCLED = "lease recycled then late body"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    with contracts_as_before(), open_parts(Progress()) as started:
        yield started


def test_one_charge_too_many_in_the_ledger_is_a_wrong_row_and_exit_code_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = strategies.charges_of

    def one_more(sandbox: Sandbox, account: str, intent: Answer | None = None) -> int:
        return counted(sandbox, account, intent) + (intent is not None)

    monkeypatch.setattr(strategies, "INTENTS", 1)
    monkeypatch.setattr(strategies, "FAULTS", {"none": None})
    monkeypatch.setattr(strategies, "charges_of", one_more)
    ran = CliRunner().invoke(root, ["drill", "strategies", "--json"])
    assert ran.exit_code == 3, ran.output
    rows = json.loads(ran.stdout)["rows"]
    assert [row["strategy"] for row in rows if not row["ok"]] == ["outbox", "outbox"]
    assert {row["charges"] for row in rows if not row["ok"]} == {2}


@pytest.mark.parametrize("count", [0, 2])
def test_a_scenario_without_its_one_effect_is_a_wrong_row(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    seen = staging.effects_at

    def others(box: OutboxBox, answer: Answer) -> Effects:
        found = seen(box, answer)
        return Effects("", found.row, list(found.effects) * count, [], [])

    monkeypatch.setattr(staging, "effects_at", others)
    row = staging.row(parts, OF_STAGING[-1])
    assert (row.ok, row.values["effects"]) == (False, count)


def test_a_scenario_in_which_something_else_is_told_is_a_wrong_row(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ("accepted", "failed", "settled")
    row = staging.row(parts, replace(OF_STAGING[-2], told=told))
    assert (row.ok, row.values["problem"]) == (False, "told something else")


def leases_row(parts: Parts) -> Json:
    play, settings = OF_LEASES[RECYCLED]
    row = leases.row(parts, RECYCLED, play, settings)
    return {**row.values, "ok": row.ok}


def twice(read: Callable[..., list[Json]]) -> Callable[..., list[Json]]:
    return lambda *given: read(*given) * 2


def in_time(read: Callable[..., list[Json]]) -> Callable[..., list[Json]]:
    return lambda *given: [{**a, "late": False} for a in read(*given)]


def nothing(_: Callable[..., list[Json]]) -> Callable[..., list[Json]]:
    return lambda *given: []


@pytest.mark.parametrize(
    ("seam", "change", "broken"),
    [
        ("applied", twice, "one_effect_per_key_and_epoch"),
        ("attempts_of", in_time, "no_bind_on_a_lease_mismatch"),
        ("history_of", nothing, "a_timeout_alone_adds_no_effect"),
    ],
)
def test_each_property_of_leases_is_read_from_the_ledger_and_the_rows(
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    seam: str,
    change: Callable[[Any], Any],
    broken: str,
) -> None:
    monkeypatch.setattr(leases, seam, change(getattr(leases, seam)))
    row = leases_row(parts)
    assert (row["ok"], row[broken]) == (False, False)
    properties = [n for n, v in row.items() if isinstance(v, bool) and n != "ok" and not v]
    assert properties == [broken]


def test_a_call_that_stays_in_doubt_is_a_wrong_row(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutboxBox, "settle", lambda self, within_s=0.0: False)
    play, settings = OF_LEASES["lost admit acknowledgement"]
    row = leases.row(parts, "", play, settings)
    assert row.ok is False
    assert row.values["ends_in_commit_compensate_or_reject"] is False
    assert row.values["ended"] == "6 open"

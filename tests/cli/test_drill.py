"""`outbox drill`, run as a user runs it: its own rows say who kept the promise."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.desk import SCRIPT
from tests.cli.ran import Ran
from workers.cli import root
from workers.cli_output import Column
from workers.drills import leases, staging, strategies
from workers.drills.report import Progress, Row
from workers.drills.strategies import DOUBLED, FAULTS, INTENTS, OTHERS, OUTBOX

# What a user may have set must not matter: nothing of it is there, right, or a test's.
UNFIT = {
    "DATABASE_URL": "postgres://nobody@127.0.0.1:1/ledger",
    "REDIS_URL": "redis://127.0.0.1:1",
    "STRIPE_API_KEY": "sk_live_of_the_user",
    "OUTBOX_PROFILE": "neither",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "http_proxy": "http://127.0.0.1:1",
}
WORDS = ("completed", "failed", "unknown", "refused")


def run(name: str) -> Ran:
    done = subprocess.run(
        [SCRIPT, "drill", name, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=UNFIT,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def shown(name: str) -> list[dict[str, Any]]:
    """The rows of a drill that went well, and told how far it was."""
    ran = run(name)
    assert (ran.code, ran.json["ok"], ran.json["schema"]) == (0, True, 1), ran
    assert all(row["ok"] for row in ran.json["rows"])
    said = ran.err.splitlines()
    assert said[0].endswith("s  starting Postgres and the sandbox vendor")
    assert max(len(line) for line in said) < 100
    rows: list[dict[str, Any]] = ran.json["rows"]
    return rows


@pytest.mark.heavy
def test_the_same_charges_by_five_strategies() -> None:
    rows = shown("strategies")
    cells = {(row["strategy"], row["fault"]): row for row in rows}
    assert set(cells) == {
        *((strategy, fault) for strategy in (*OTHERS, OUTBOX) for fault in FAULTS),
        ("pinned key", strategies.ANOTHER_AMOUNT),
        (OUTBOX, strategies.ANOTHER_AMOUNT),
    }
    assert list(FAULTS) == ["none", "lost-ack", "late-commit", "redelivery"]
    for cell, row in cells.items():
        doubles = INTENTS if cell in DOUBLED else 0
        assert (row["intents"], row["charges"]) == (INTENTS, INTENTS + doubles), row
        assert (row["duplicates"], row["duplicates_reported_as_completed"]) == (doubles, doubles)
        refused = cell[1] == strategies.ANOTHER_AMOUNT
        assert [row[word] for word in WORDS] == [0 if refused else INTENTS, 0, 0, refused * INTENTS]
    assert cells[OUTBOX, strategies.ANOTHER_AMOUNT]["refused_by"] == "IntentMismatch"
    assert cells["pinned key", strategies.ANOTHER_AMOUNT]["refused_by"] == "idempotency_error"
    assert {fault for strategy, fault in DOUBLED if strategy == "naive retry"} == {
        *("lost-ack", "late-commit", "redelivery")
    }


@pytest.mark.heavy
def test_six_scenarios_have_one_effect_each_and_nobody_is_told_failed() -> None:
    rows = {row["scenario"]: row for row in shown("staging")}
    assert list(rows) == [
        "slow success with client timeout",
        "double harness resume",
        "the model invents new arguments for the same intent",
        "upstream duplicate error",
        "500 and a later webhook",
        "same key with another amount",
    ]
    for row in rows.values():
        assert (row["effects"], row["status"], row["problem"]) == (1, "succeeded", ""), row
        assert row["told"].startswith("accepted, ")
        assert row["told"].endswith(", settled")
        assert "failed" not in row["told"]
    assert rows["same key with another amount"]["told"].count("conflict") == 2
    assert rows["500 and a later webhook"]["settled_by"] == "webhook"
    sent = {name: row["requests"] for name, row in rows.items()}
    assert sent.pop("upstream duplicate error") == 2
    assert set(sent.values()) == {1}


@pytest.mark.heavy
def test_three_scenarios_of_leases_keep_four_properties() -> None:
    rows = {row["scenario"]: row for row in shown("leases")}
    assert {name: row["ended"] for name, row in rows.items()} == {
        "timeout then late success": "4 commit, 2 compensate",
        "lease recycled then late body": "6 commit",
        "lost admit acknowledgement": "4 commit, 2 reject",
    }
    for row in rows.values():
        for name in (
            "one_effect_per_key_and_epoch",
            "no_bind_on_a_lease_mismatch",
            "a_timeout_alone_adds_no_effect",
            "ends_in_commit_compensate_or_reject",
        ):
            assert row[name] is True, row
    effects = {name: row["effects"] for name, row in rows.items()}
    assert list(effects.values()) == [8, 6, 4]  # six charges and two refunds; six; four


# -- a wrong row, cheaply ------------------------------------------------------------------------


def wrong(_: Progress) -> Iterable[Row]:
    yield Row({"scenario": "a", "effects": 1}, ok=True)
    yield Row({"scenario": "b", "effects": 2}, ok=False)


@pytest.mark.parametrize("drill", [strategies, staging, leases], ids=lambda d: d.__name__)
def test_one_wrong_row_is_exit_code_3_and_shown(
    monkeypatch: pytest.MonkeyPatch, drill: Any
) -> None:
    monkeypatch.setattr(drill, "run", wrong)
    monkeypatch.setattr(drill, "COLUMNS", (Column("scenario"), Column("effects")))
    name = drill.__name__.rpartition(".")[2]
    as_json = CliRunner().invoke(root, ["drill", name, "--json"])
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout) == {
        "schema": 1,
        "ok": False,
        "rows": [
            {"scenario": "a", "effects": 1, "ok": True},
            {"scenario": "b", "effects": 2, "ok": False},
        ],
    }
    piped = CliRunner().invoke(root, ["drill", name])
    assert piped.exit_code == 3
    assert piped.stdout.splitlines() == ["scenario\teffects\tok", "a\t1\tyes", "b\t2\tno"]
    assert piped.stderr.splitlines()[-1] == "1 of 2 rows are as they must be"


def test_a_drill_without_a_row_has_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "run", lambda _: [])
    ran = CliRunner().invoke(root, ["drill", "staging", "--json"])
    assert (ran.exit_code, json.loads(ran.stdout)["ok"]) == (3, False)

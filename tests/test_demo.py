"""The demo, run as a user runs it: its own rows say who kept the promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workers.demo_faults import faults

pytestmark = pytest.mark.heavy

Row = dict[str, Any]

# Faults after which a client that cannot tell sends again, and charges twice.
DOUBLED_BY_RETRY = {
    "lost_ack",
    "late_commit",
    "stored_500_webhook",
    "stored_500_silent",
    "bad_gateway_after",
    "in_use_409",
    "half_body",
    "worker_killed",
    "window_closed",
    "lost_for_ever",
}
# Looking before the retry helps only where the write can be seen by then.
DOUBLED_BY_VERIFY = {
    "late_commit",
    "stored_500_webhook",
    "stored_500_silent",
    "in_use_409",
    "window_closed",
    "lost_for_ever",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """What `outbox demo --json` printed, with its exit code."""
    script = Path(sys.executable).with_name("outbox")
    done = subprocess.run(
        [script, "demo", "--json"], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    return {**json.loads(done.stdout), "code": done.returncode, "said": done.stderr.splitlines()}


def test_every_line_of_progress_fits_a_terminal(shown: dict[str, Any]) -> None:
    assert any("settled; open: " in line for line in shown["said"])
    assert max(len(line) for line in shown["said"]) < 100


def rows(shown: dict[str, Any], strategy: str) -> dict[str, Row]:
    return {r["fault"]: r for r in shown["rows"] if r["strategy"] == strategy}


def test_each_of_our_rows_is_one_that_keeps_the_promise(shown: dict[str, Any]) -> None:
    ours = rows(shown, "outbox")
    assert set(ours) == {f.name for f in faults()}
    for fault in faults():
        row = ours[fault.name]
        seen = {name: row[name] for name in ("told", "status", "effects")}
        assert seen in [dict(a) for a in fault.allowed], row
        assert row["pages"] > 0 or not fault.paged, row
        assert row["ok"] is True, row
    assert (shown["schema"], shown["ok"], shown["code"]) == (1, True, 0)


def test_strategies_that_look_reasonable_double_where_a_reply_can_be_lost(
    shown: dict[str, Any],
) -> None:
    for strategy, doubled in (
        ("naive", DOUBLED_BY_RETRY),
        ("new_key_per_attempt", DOUBLED_BY_RETRY),
        ("verify_then_retry", DOUBLED_BY_VERIFY),
    ):
        found = {name for name, row in rows(shown, strategy).items() if row["effects"] > 1}
        assert found == doubled, strategy
        assert not any(rows(shown, strategy)[name]["ok"] for name in doubled)


def test_the_promise_allows_no_row_that_breaks_it() -> None:
    for fault in faults():
        for end in fault.allowed:
            assert end["effects"] <= 1
            assert (end["told"] == "settled") == (end["status"] == "succeeded")
            assert end["told"] != "failed" or end["effects"] == 0
            assert end["status"] != "unknown" or fault.paged

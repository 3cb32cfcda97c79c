"""The pytest plugin as its users have it: test files of theirs, in folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from outbox.testing import Databases

pytestmark = pytest.mark.heavy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WAIT_S = 300.0
# Imports what must not be there, and what the application calls its own.
STRANGER = """
import sys
import workers.mine

def test_nothing_of_the_outbox_is_loaded():
    ours = {"outbox", "vendors", "resolvers", "celery", "redis", "psycopg", "sqlalchemy"}
    assert ours.isdisjoint(sys.modules)
    assert workers.mine.NAME == "mine"

def test_a_fixture_says_which_package_is_in_the_way(outbox_sandbox):
    pass
"""


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder, as `python -m pytest` there."""
    # Hypothesis is loaded whole at the end of each session of an environment that has it.
    args = ("-W", "error", "-p", "no:hypothesispytest", *args)
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST", "OUTBOX_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *args],
        cwd=folder,
        env={**inherited, **env},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def failures(report: Path) -> dict[str, str]:
    """Each test that was run, and why it failed; empty where it did not."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name", ""): "".join(case.itertext()) for case in cases}


@pytest.fixture(scope="module")
def charged(tmp_path_factory: pytest.TempPathFactory, own_database: str) -> dict[str, str]:
    """What became of each test of a user's two files."""
    folder = tmp_path_factory.mktemp("charging")
    for name in ("charging", "own_database"):
        (folder / f"test_{name}.py").write_text((HERE / f"{name}.py").read_text())
    where = {"DATABASE_OF_MY_TESTS": own_database, "PYTHONPATH": str(ROOT)}
    ended = run(folder, "--junitxml=report.xml", "-o", "junit_logging=no", **where)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return failures(folder / "report.xml")


@pytest.fixture(scope="module")
def own_database(outbox_databases: Databases, outbox_template: str) -> Iterator[str]:
    """A database of the user's own, as far as the plugin can tell."""
    with outbox_databases.fresh(outbox_template) as url:
        yield url


def test_a_users_tests_see_one_effect_whatever_was_lost(charged: dict[str, str]) -> None:
    failed = {name for name, why in charged.items() if why}
    assert failed == {"test_a_client_of_its_own_charges_twice", "test_a_charge_that_was_never_sent"}
    assert len(charged) == 9


def test_a_second_effect_is_shown_with_the_requests_and_the_history(
    charged: dict[str, str],
) -> None:
    why = charged["test_a_client_of_its_own_charges_twice"]
    assert "expected one effect at the vendor, found 2: charge_invoice, intent " in why
    assert why.count("applied payment_intent.create pi_") >= 2
    assert "POST /v1/payment_intents key another-key (attempt 1): answered 200" in why
    assert "status succeeded, doubt 0, attempts 1, receipt_id pi_" in why
    assert "sender  attempt receipt  lease 1" in why


def test_an_effect_that_is_missing_is_told_as_none(charged: dict[str, str]) -> None:
    why = charged["test_a_charge_that_was_never_sent"]
    assert "expected one effect at the vendor, found none: charge_invoice, intent " in why
    assert "status pending, doubt 0, attempts 0" in why


def test_a_session_that_uses_no_fixture_loads_nothing_and_takes_no_name(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    (tmp_path / "workers" / "mine.py").write_text('NAME = "mine"')
    (tmp_path / "test_stranger.py").write_text(STRANGER)
    ended = run(tmp_path, "--junitxml=report.xml")
    found = failures(tmp_path / "report.xml")
    assert found["test_nothing_of_the_outbox_is_loaded"] == "", ended.stdout
    assert str(tmp_path / "workers") in found["test_a_fixture_says_which_package_is_in_the_way"]


def test_the_fixtures_say_what_they_are(tmp_path: Path) -> None:
    told = run(tmp_path, "--fixtures").stdout
    for name in ("box", "database_url", "env", "sandbox", "servers", "template"):
        _, _, after = told.partition(f"\noutbox_{name}")
        assert "\n    " in after.partition("\n\n")[0], name
    assert "no docstring available" not in told.partition("outbox_pytest")[2].partition("---")[0]

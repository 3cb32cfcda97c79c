"""The list of reports in tests/README.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = re.findall(
    r"^\| (B\d\d) \| \w+ \| [^|]+ \| (.+) \|$", (TESTS / "README.md").read_text(), re.M
)


def test_the_list_is_long_and_names_each_report_once() -> None:
    ids = [row[0] for row in ROWS]
    assert len(ids) > 40
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("case", "named"), ROWS, ids=[row[0] for row in ROWS])
def test_each_report_has_the_tests_that_the_list_names(case: str, named: str) -> None:
    files = re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", named)
    assert files, case
    for file, tests in files:
        tree = ast.parse((TESTS / file).read_text())
        there = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert set(re.findall(r"`(\w+)`", tests)) <= there, file

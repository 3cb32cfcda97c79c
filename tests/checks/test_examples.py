"""What README shows of the example applications is what stands in their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def _words(line: str) -> str:
    return line.partition("  #")[0].replace(" ", "")


@pytest.mark.parametrize(
    ("marks", "file"),
    [
        ("build_app(receiver)", "fastapi_app.py"),
        ("transaction.on_commit(outbox.ring)", "django_app.py"),
    ],
)
def test_an_application_is_shown_as_it_stands(marks: str, file: str) -> None:
    (shown,) = [block for block in BLOCKS if marks in block]
    stands = [_words(line) for line in (ROOT / "tests/examples" / file).read_text().splitlines()]
    missing = [line for line in shown.splitlines() if _words(line) not in stands]
    assert missing == []

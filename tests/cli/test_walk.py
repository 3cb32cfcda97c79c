"""From a page to a verdict, as the README tells it, against all of `outbox up`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks import readme
from tests.cli.desk import SCRIPT
from tests.cli.ran import WAIT_S
from workers.folders import until

CHECKOUT = Path(__file__).parents[2]
SECTION = "## When a person is paged"


@pytest.fixture
def up() -> Iterator[Path]:
    """A folder in which everything runs, with the demo's small times."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o711)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "up"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PORT": "0", "OUTBOX_PROFILE": "demo"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = folder / ".outbox" / "env"
        assert until(lambda: ready.exists() or process.poll() is not None, 3 * WAIT_S)
        assert process.poll() is None
        (folder / "tests").symlink_to(CHECKOUT / "tests")
        (folder / ".venv").symlink_to(Path(sys.prefix))
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
        shutil.rmtree(folder)


@pytest.mark.heavy
def test_a_lost_reply_becomes_a_page_a_question_and_a_verdict(up: Path) -> None:
    text = (CHECKOUT / "README.md").read_text().split(SECTION)[1].split("\n## ")[0]
    commands = [command for block in readme.blocks(text) for command in block.commands]
    told = (
        "escalation show $question",
        "escalation landed $question",
        "lost_reply.py charge",
        "lost_reply.py mend",
    )
    assert all(any(words in command for command in commands) for words in told)
    ran = subprocess.run(
        ["bash", "-c", "\n".join(["set -eo pipefail", *commands])],
        cwd=up,
        env={"PATH": os.environ["PATH"], "OUTBOX_PROFILE": "demo", "OUTBOX_ACTOR": "alice"},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * WAIT_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = ran.stdout
    for words in (
        "'state': 'unknown'",
        "vendor_now\tcannot be read",
        "landed\tneeds receipt",
        "\tacknowledged until",
        "\truled: landed as pi_",
    ):
        assert words in said, said
        said = said.split(words, 1)[1]
    assert "succeeded\tcharge_invoice\tacme" in said

"""Pages in a file: whole lines, whoever writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from resolvers.page import Failed, Page, Sent
from resolvers.pager_file import PageFile

PAGE = Page("trigger", "outbox:7:ttl", "error", "not settled", "outbox/test", 1_780_000_000)


def test_a_file_gets_one_readable_line_a_page_when_many_processes_write(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    program = (
        "import sys; from pathlib import Path\n"
        "from resolvers.page import Page; from resolvers.pager_file import PageFile\n"
        "pager = PageFile(Path(sys.argv[1]))\n"
        "for n in range(100):\n"
        "    pager.send(Page('trigger', f'{sys.argv[2]}-{n}', 'error', 's' * 900, 'o', 1))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    keys = [json.loads(line)["dedup_key"] for line in path.read_text().splitlines()]
    assert sorted(keys) == sorted(f"{name}-{n}" for name in ("a", "b") for n in range(100))
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_written_is_a_failure_and_not_a_crash(tmp_path: Path) -> None:
    answer = PageFile(tmp_path / "gone" / "pages.jsonl").send(PAGE)
    assert isinstance(answer, Failed)
    assert not answer.final
    full = PageFile(Path("/dev/full")).send(PAGE)
    assert isinstance(full, Failed)


def test_a_pipe_can_be_a_page_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert isinstance(PageFile(path).send(PAGE), Sent)
        assert json.loads(os.read(reader, 65536))["dedup_key"] == "outbox:7:ttl"
    finally:
        os.close(reader)

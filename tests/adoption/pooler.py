"""PgBouncer in transaction mode with its own defaults, in front of the tests' Postgres."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.workers.floor import wait_until
from workers.server_process import postgres_answers
from workers.servers import Servers

# Fewer than any test's clients, so that server sessions pass from one client to another.
SESSIONS = 3
_PORT = 6432
# No setting that a user would have to make for us: no ignored start-up parameters, no prepared
# statements.
_INI = """\
[databases]
* = host={postgres} port=5432 user=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = {sessions}
server_round_robin = 1
unix_socket_dir = {folder}
unix_socket_mode = 0777
listen_port = {port}
auth_type = any
admin_users = postgres
"""


@dataclass(frozen=True)
class Pooler:
    """A running pooler."""

    folder: Path

    def url(self, database: str) -> str:
        """The same database, through the pooler."""
        server, _, _ = database.partition("?")
        return f"{server}?host={self.folder}&port={_PORT}"


def program() -> str | None:
    """Where PgBouncer is, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def running_pooler(servers: Servers) -> Iterator[Pooler]:
    """Runs it until the block ends; as nobody where we are root, for it refuses to be root."""
    found = program()
    assert found is not None
    user = "nobody" if os.geteuid() == 0 else None
    # A short path: the socket's name lies in it.
    with tempfile.TemporaryDirectory(prefix="obb", dir="/tmp") as name:
        folder = Path(name)
        ini = folder / "pgbouncer.ini"
        ini.write_text(
            _INI.format(postgres=servers.run_dir, folder=folder, port=_PORT, sessions=SESSIONS)
        )
        folder.chmod(0o755)
        ini.chmod(0o644)
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        process = subprocess.Popen(
            [found, "--quiet", str(ini)],
            user=user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            wait_until(
                lambda: process.poll() is not None or postgres_answers(folder / f".s.PGSQL.{_PORT}")
            )
            assert process.poll() is None, process.stderr.read()
            yield Pooler(folder)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            process.stderr.close()

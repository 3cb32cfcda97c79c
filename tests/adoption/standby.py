"""A primary and a real streaming standby of it, made with pg_basebackup."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from outbox.schema import upgrade
from tests.workers.floor import wait_until
from workers.server_process import postgres_answers
from workers.server_programs import Account, ServersError, postgres_folder
from workers.servers import Servers


@dataclass(frozen=True)
class Pair:
    """Two servers with one history."""

    primary: str
    standby: str
    programs: Path
    home: Path
    account: Account

    def caught_up(self) -> bool:
        """Whether the standby has all that the primary has committed."""
        with psycopg.connect(self.primary.replace("+psycopg", "")) as primary:
            (written,) = primary.execute("SELECT pg_current_wal_lsn()").fetchone() or (None,)
        with psycopg.connect(self.standby.replace("+psycopg", "")) as standby:
            row = standby.execute(
                "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)
            ).fetchone()
        return bool(row and row[0])

    def promote(self) -> None:
        """Makes the standby a primary and returns once it is one."""
        with psycopg.connect(self.standby.replace("+psycopg", ""), autocommit=True) as standby:
            standby.execute("SELECT pg_promote(true)")


def programs() -> Path | None:
    """Where pg_basebackup is beside the server that the tests use."""
    try:
        folder = postgres_folder(Account.for_postgres())
    except ServersError:
        return None
    return folder if (folder / "pg_basebackup").is_file() else None


@contextmanager
def running_pair() -> Iterator[Pair]:
    """A migrated primary and its standby, until the block ends."""
    account = Account.for_postgres()
    folder = postgres_folder(account)
    with (
        Servers.start(valkey=False, postgres_settings={"fsync": "off"}) as servers,
        tempfile.TemporaryDirectory(prefix="obs", dir=servers.run_dir.parent) as name,
    ):
        upgrade(servers.database_url)
        place = Path(name)
        account.give(place)
        home = place / "data"
        who: dict[str, Any] = {
            "user": account.uid,
            "group": account.gid,
            "extra_groups": account.extra_groups,
        }
        subprocess.run(
            [
                *(
                    str(folder / "pg_basebackup"),
                    "-D",
                    str(home),
                    "-R",
                    "--checkpoint=fast",
                    "--no-sync",
                ),
                *("-h", str(servers.run_dir), "-U", "postgres"),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            cwd=place,
            **who,
        )
        process = subprocess.Popen(
            [
                *(str(folder / "postgres"), "-D", str(home), "-k", str(place)),
                *("-c", "listen_addresses=", "-c", "fsync=off"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=place,
            **who,
        )
        try:
            wait_until(
                lambda: process.poll() is not None or postgres_answers(place / ".s.PGSQL.5432")
            )
            assert process.poll() is None, "the standby ended at its start"
            standby = servers.database_url.replace(str(servers.run_dir), str(place))
            yield Pair(servers.database_url, standby, folder, home, account)
        finally:
            process.terminate()
            process.wait(30)

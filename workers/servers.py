"""Postgres and Valkey as child processes, for a machine that has neither running.

    with Servers.start(data_dir) as servers:
        servers.database_url, servers.redis_url, servers.broker_url

They listen on sockets in a private folder and on no port, so any number of runs fit on one
machine. They end with the process that started them, however that ends.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from workers.broker import broker_url_of
from workers.folders import LockedFolder, create_run_dir, open_data_dir
from workers.orphans import Kind, OrphanWatcher
from workers.server_process import Server, postgres_answers, prepare_postgres, valkey_answers
from workers.server_programs import Account, ServersError, postgres_folder, valkey_program


class Servers:
    """The running pair. Built by `start`, ended by `stop` or at the end of a `with` block."""

    def __init__(self, run: LockedFolder, data: LockedFolder, account: Account) -> None:
        self.run_dir = run.path
        self.data_dir = data.path
        self._folders = (run, data)
        self._account = account
        self._watcher = OrphanWatcher(run.path)
        self._started: dict[Kind, Server] = {}
        self._database_url: str | None = None
        self._redis_url: str | None = None
        self._stopped = False

    @classmethod
    def start(
        cls,
        data_dir: Path | None = None,
        *,
        postgres: bool = True,
        valkey: bool = True,
        database_url: str | None = None,
        redis_url: str | None = None,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Starts what is asked for and has no URL yet; returns when it answers.

        `data_dir` None is a fresh folder, removed at the end. Raises ServersError with the
        reason: nothing installed, folder in use or unreachable, another major version's data,
        or the last lines of the server that did not come up.
        """
        account = Account.for_postgres() if postgres and not database_url else Account()
        run = create_run_dir(account)
        try:
            data = open_data_dir(data_dir or run.path / "data", account)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            run.release()
            raise
        servers = cls(run, data, account)
        servers._database_url, servers._redis_url = database_url, redis_url
        try:
            if valkey and not redis_url:
                servers._begin_valkey()
            if postgres and not database_url:
                servers._begin_postgres(postgres_settings or {})
            for server in servers._started.values():
                server.wait_until_ready()
        except BaseException:
            servers.stop()
            raise
        return servers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def database_url(self) -> str:
        """For SQLAlchemy: `postgresql+psycopg://postgres@/postgres?host=...`."""
        if self._database_url is None:
            raise ServersError("these servers were started without Postgres")
        return self._database_url

    @property
    def redis_url(self) -> str:
        """For redis-py: `unix:///.../r.sock`. Celery needs `broker_url`."""
        if self._redis_url is None:
            raise ServersError("these servers were started without Valkey")
        return self._redis_url

    @property
    def broker_url(self) -> str:
        """For Celery: `redis+socket:///.../r.sock`."""
        return broker_url_of(self.redis_url)

    @property
    def pids(self) -> dict[str, int]:
        """`postgres` and `valkey`, as far as they run as our children."""
        return {kind: server.pid for kind, server in self._started.items() if server.running}

    def watch(self, pid: int) -> None:
        """Stops this child of the caller too, before the servers, should the caller be killed."""
        self._watcher.watch(pid)

    def forget(self, pid: int) -> None:
        """Takes back `watch` for a child that the caller has seen end."""
        self._watcher.forget(pid)

    def stop(self) -> None:
        """Ends the servers, Valkey first; the caller's own processes must have ended before.

        A second call does nothing. The watcher goes last: whatever kills us meanwhile, it acts.
        """
        if self._stopped:
            return
        self._stopped = True
        for server in self._started.values():  # begun in this order: Valkey, Postgres
            server.stop()
        self._watcher.end()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        for folder in self._folders:
            folder.release()

    def kill_postgres(self) -> None:
        """kill -9, and returns when no process of it is left; the data stay for a restart."""
        self._started["postgres"].kill()

    def start_postgres(self) -> None:
        """Starts it again over the same data, at the same URL, and waits until it answers."""
        self._started["postgres"].begin()
        self._started["postgres"].wait_until_ready()

    def kill_valkey(self) -> None:
        """kill -9, as `kill_postgres`."""
        self._started["valkey"].kill()

    def start_valkey(self) -> None:
        """As `start_postgres`."""
        self._started["valkey"].begin()
        self._started["valkey"].wait_until_ready()

    def _begin_postgres(self, settings: Mapping[str, str]) -> None:
        programs = postgres_folder(self._account)
        home = self.data_dir / "postgres"
        lock_fds = [folder.lock_fd for folder in self._folders]
        prepare_postgres(home, programs, self._account, lock_fds)
        options = {"listen_addresses": "", **settings}
        self._begin(
            Server(
                kind="postgres",
                command=[
                    *(str(programs / "postgres"), "-D", str(home), "-k", str(self.run_dir)),
                    *(part for key, value in options.items() for part in ("-c", f"{key}={value}")),
                ],
                home=home,
                stop_signal=signal.SIGINT,  # TERM waits for clients for ever
                answers=lambda: postgres_answers(self.run_dir / ".s.PGSQL.5432"),
                watcher=self._watcher,
                account=self._account,
                lock_fds=lock_fds,
            )
        )
        self._database_url = f"postgresql+psycopg://postgres@/postgres?host={self.run_dir}"

    def _begin_valkey(self) -> None:
        home = self.data_dir / "valkey"
        home.mkdir(mode=0o700, exist_ok=True)
        path = self.run_dir / "r.sock"
        self._begin(
            Server(
                kind="valkey",
                command=[
                    *(str(valkey_program()), "--port", "0", "--dir", str(home)),
                    *("--unixsocket", str(path), "--unixsocketperm", "700"),
                    *("--appendonly", "yes", "--save", ""),
                ],
                home=home,
                stop_signal=signal.SIGTERM,
                answers=lambda: valkey_answers(path),
                watcher=self._watcher,
                account=Account(),
                lock_fds=[folder.lock_fd for folder in self._folders],
            )
        )
        self._redis_url = f"unix://{path}"

    def _begin(self, server: Server) -> None:
        self._started[server.kind] = server
        server.begin()

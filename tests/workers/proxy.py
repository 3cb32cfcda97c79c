"""A proxy between our pool and Postgres that can lose what the network loses."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self

from tests.prepared import Prepared

_COMMIT = b"COMMIT"
CLAIM = b"lease_token = gen_random_uuid()"
RECORD = b"WITH ended AS"


class PostgresProxy:
    """Listens on a socket of its own. ``lose_commit_reply`` applies the next COMMITs and drops
    the connection instead of answering; ``lose_commit`` drops it before the COMMIT arrives. Both
    mean transactions in which ``what`` was said. ``fall_silent`` is a host that vanished: over the
    connections of that moment nothing passes any more, and no word comes of it; while ``hangs``,
    over new ones neither."""

    def __init__(self, folder: Path, behind: Path) -> None:
        self.folder = folder
        self.lose_commit_reply = 0
        self.lose_commit = 0
        self.lost = 0
        self.what = b""
        self.hangs = False
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._behind = behind
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(50)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, database_url: str) -> str:
        """The database's address by way of this proxy."""
        return f"{database_url.partition('?host=')[0]}?host={self.folder}"

    def fall_silent(self) -> None:
        """What is connected now hears nothing more and is not told; new connections work."""
        self._silent |= self._open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._behind))
            self._open.add(client)
            if self.hangs:
                self._silent.add(client)
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """From our pool to Postgres."""
        said, prepared = b"", Prepared()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if client in self._silent:
                    continue
                said += prepared.heard(data)
                commits = _COMMIT in data and self.what in said
                if _COMMIT in data:
                    said = b""
                if commits and self.lose_commit:
                    self.lose_commit -= 1
                    self.lost += 1
                    break
                if commits and self.lose_commit_reply:
                    self.lose_commit_reply -= 1
                    self.lost += 1
                    # Nobody reads the answer any more, and Postgres has it all: it commits.
                    with contextlib.suppress(OSError):
                        client.shutdown(socket.SHUT_RDWR)
                    server.sendall(data)
                    return
                server.sendall(data)
        for sock in (client, server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if client in self._silent:
                    continue
                with contextlib.suppress(OSError):
                    client.sendall(data)
        for sock in (client, server):
            with contextlib.suppress(OSError):
                sock.close()

"""A way to Postgres on which the answer to a COMMIT can be lost: the transaction stands, and who
committed it does not know."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

# A whole statement, as drivers send it: to begin a transaction says READ COMMITTED.
_COMMIT = b"COMMIT\x00"
_POOL = logging.getLogger("psycopg.pool")
_CHUNK = 65536


class LostCommits:
    """Forwards connections to the embedded server of ``database_url``, by its socket. ``lose``
    makes it hand on the next COMMIT of a transaction in which that was said, and hang up in place
    of the answer."""

    def __init__(self, database_url: str) -> None:
        self._address = urlsplit(database_url)
        folder = parse_qs(self._address.query)["host"][0]
        self._behind = str(Path(folder) / ".s.PGSQL.5432")
        self.lose = b""
        self._losing: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self._level = _POOL.level

    @property
    def url(self) -> str:
        """The same database by this way."""
        user = self._address.username or ""
        place = f"{user}@127.0.0.1:{self._listener.getsockname()[1]}"
        return self._address._replace(netloc=place, query="").geturl()

    def __enter__(self) -> Self:
        # That connections are lost here is no news.
        _POOL.setLevel(logging.CRITICAL)
        return self

    def __exit__(self, *_: object) -> None:
        _POOL.setLevel(self._level)
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
            server.connect(self._behind)
            for forward in (self._there, self._back):
                threading.Thread(target=forward, args=(client, server), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket) -> None:
        said = b""
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                said += data
                if _COMMIT in data:
                    if self.lose and self.lose in said:
                        self.lose = b""
                        self._losing.add(client)
                    said = b""
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            # The answer has come, so the transaction stands before the client hears of anything.
            while (data := server.recv(_CHUNK)) and client not in self._losing:
                client.sendall(data)
        self._losing.discard(client)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

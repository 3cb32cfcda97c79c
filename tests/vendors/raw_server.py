"""A TCP server on a thread whose answers are plain functions: for what no HTTP server can do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

Reply = Callable[[socket.socket, bytes], None]


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """A complete HTTP answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def replying(raw: bytes) -> Reply:
    """Answers every request with the same bytes."""
    return lambda connection, _: connection.sendall(raw)


class RawServer:
    """Reads whole requests and hands each to ``reply``; keeps the connection until that closes it.

    ``requests`` holds the raw bytes of each, ``arrived`` is set at the first; ``connections``
    counts all that were made.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self.requests: list[bytes] = []
        self.connections = 0
        self.open_connections = 0
        self.arrived = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._counting:
                self.connections += 1
                self.open_connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := _read_request(connection):
                self.requests.append(request)
                self.arrived.set()
                self._reply(connection, request)
        with self._counting:
            self.open_connections -= 1


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


class Pages:
    """A vendor whose lists say what a test wants; ``/v1/account`` answers well."""

    def __init__(self, listed: Callable[[str, Mapping[str, str]], tuple[str, Any]]) -> None:
        self._listed = listed
        self.queries: list[tuple[str, dict[str, str]]] = []

    def __call__(self, connection: socket.socket, request: bytes) -> None:
        target = urlsplit(request.split(b" ", 2)[1].decode())
        query = dict(parse_qsl(target.query))
        self.queries.append((target.path, query))
        status, document = self._listed(target.path, query)
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        connection.sendall(answer(status, body))


def page(*items: Any, more: bool = False) -> tuple[str, Any]:
    return "200 OK", {"object": "list", "data": list(items), "has_more": more}

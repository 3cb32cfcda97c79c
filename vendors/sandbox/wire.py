"""HTTP/1.1 on an asyncio transport, by h11, with the socket within reach.

An ASGI server cannot reset a connection, cut a body or drip it, and those faults matter here.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

BODY_LIMIT_BYTES = 1 << 20
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Request:
    """One request as it came; header names in lower case, `path` without the query."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Connection(asyncio.Protocol):
    """One client connection. `on_head` may refuse (True: reset before the body is read)."""

    def __init__(
        self,
        on_request: Callable[[Connection, Request], None],
        on_head: Callable[[Request], bool],
        open_connections: set[Connection],
    ) -> None:
        self._on_request = on_request
        self._on_head = on_head
        self._open = open_connections
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)
        self._request: Request | None = None
        self._body = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self._open.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError:
            self._bad_request()

    def eof_received(self) -> bool:
        # No HTTP client half-closes while it waits: the end of its side means that it gave up.
        return False

    def _advance(self) -> None:
        while self.transport is not None:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self.transport.write(self._http.send(go_on))
                self._request = _head(event)
                self._body.clear()
                if self._on_head(self._request):
                    self.reset()
                    return
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_LIMIT_BYTES:
                    self._bad_request()
                    return
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                self._request.body = bytes(self._body)
                self._on_request(self, self._request)
            elif isinstance(event, h11.ConnectionClosed):
                self.close()
                return
            else:  # NEED_DATA, or PAUSED until this request is answered
                return

    def _bad_request(self) -> None:
        if self.transport is not None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def send(self, answer: Answer) -> bool:
        """Writes the whole answer; False when the client has gone."""
        if self.transport is None:
            return False
        self.transport.write(self._render(answer))
        if self._http.our_state is h11.MUST_CLOSE:
            self.transport.close()
        else:
            self._http.start_next_cycle()
            try:
                self._advance()
            except h11.RemoteProtocolError:
                self._bad_request()
        return True

    def send_half(self, answer: Answer) -> None:
        """Announces the whole body, sends half of it and closes."""
        if self.transport is not None:
            raw = self._render(answer)
            self.transport.write(raw[: len(raw) - (len(answer.body) + 1) // 2])
            self.transport.close()

    async def drip(self, answer: Answer, over_s: float) -> bool:
        """Sends the answer in 20 pieces over `over_s` seconds, then closes; False: client gone."""
        raw = self._render(answer)
        size = max(1, -(-len(raw) // 20))
        for start in range(0, len(raw), size):
            if self.transport is None:
                return False
            self.transport.write(raw[start : start + size])
            await asyncio.sleep(over_s / 20)
        self.close()
        return True

    def reset(self) -> None:
        """Sends RST: the client sees `connection reset`, not an orderly end."""
        if self.transport is not None:
            peer: socket.socket = self.transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def _render(self, answer: Answer) -> bytes:
        if self._request is not None and self._request.method == "HEAD":
            answer = Answer(answer.status, b"", answer.headers)
        headers = [
            (name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()
        ]
        headers.append((b"Content-Length", b"%d" % len(answer.body)))
        response = h11.Response(
            status_code=answer.status, headers=headers, reason=_REASONS.get(answer.status, b"")
        )
        parts = [self._http.send(response), self._http.send(h11.Data(data=answer.body))]
        parts.append(self._http.send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)


def _head(event: h11.Request) -> Request:
    path, _, query = event.target.decode("latin-1").partition("?")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    return Request(event.method.decode("latin-1"), path, query, headers)

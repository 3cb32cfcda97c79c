"""A network that fails on purpose: a small TCP proxy before Postgres, Valkey or the vendor.

It passes bytes on until it is told to cut, to slow down, to half-close or to go silent, and it can
hold one question, or the answer to it, for as long as a test wants to look at that very moment.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from tests.prepared import Prepared

_PIECE = 65536
# What was said of a transaction is kept no longer than its statements can be.
_MOST_SAID = 4 * 1024 * 1024
_COMMIT = b"COMMIT"
_RESET = struct.pack("ii", 1, 0)

Direction = Literal["questions", "answers"]
Address = tuple[str, int] | Path


@dataclass
class Gate:
    """The one moment that is held: the first ``at`` of a connection that has said ``said`` since
    its last COMMIT. Held is the question, before it arrives, or the answer, once it was given."""

    said: bytes
    at: bytes
    held: Direction
    reached: threading.Event = field(default_factory=threading.Event)
    _decided: threading.Event = field(default_factory=threading.Event)
    _passes: bool = True

    def let_go(self) -> None:
        """What is held goes on, whoever still waits for it."""
        self._decided.set()

    def lose(self) -> None:
        """What is held never arrives, and its connection ends."""
        self._passes = False
        self._decided.set()

    def passes(self) -> bool:
        """In the proxy: waits for the test's word; False where it is to be lost."""
        self.reached.set()
        self._decided.wait()
        return self._passes


class _Line:
    """One connection, there and back."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.answer_gate: Gate | None = None

    def reset(self) -> None:
        """Ends both ways at once, as a cut cable or a crashed host looks in the end."""
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RDWR)

    def half_close(self, direction: Direction) -> None:
        """The end of one way; the other stays open."""
        with contextlib.suppress(OSError):
            (self.server if direction == "questions" else self.client).shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.close()


class Proxy:
    """Listens on a port of this machine for as long as the ``with`` block lasts; what it does to
    its connections holds for those that are open and for those to come, until ``mend``.

    ``lose_answer`` is asked about each piece of an answer; True loses it and its connection."""

    def __init__(self, behind: Address, *, lose_answer: Callable[[], bool] = lambda: False) -> None:
        self._behind = behind
        self._lose_answer = lose_answer
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._gates: list[Gate] = []
        self._pause_s = 0.0
        self._piece = _PIECE
        self._halved: Direction | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._waiting = threading.Event()
        self._full: socket.socket | None = None
        self.lost = 0
        self._listener = self._listen(0, 128)
        self.port: int = self._listener.getsockname()[1]

    # -- what the network does -------------------------------------------------------------------

    def cut(self) -> None:
        """Ends every connection and refuses new ones."""
        self._shut()
        for line in self._all():
            line.reset()

    def slow(self, pause_s: float, piece: int) -> None:
        """Each piece of so many bytes takes so long, in both directions."""
        self._pause_s, self._piece = pause_s, piece

    def half_close(self, direction: Direction) -> None:
        """Ends one direction of every connection, and of each new one at once."""
        self._halved = direction
        for line in self._all():
            line.half_close(direction)

    def fall_silent(self) -> None:
        """Nothing passes any more, and no word comes of it."""
        self._flows.clear()

    def hang_connects(self) -> None:
        """Ends every connection; new ones are neither accepted nor refused."""
        self.cut()
        # A full queue of connections: the kernel drops each further request for one.
        self._listener = self._listen(self.port, 0, accepts=False)
        self._full = socket.create_connection(("127.0.0.1", self.port))

    def mend(self) -> None:
        """All is well again; connections that were ended stay so."""
        self._pause_s, self._piece, self._halved = 0.0, _PIECE, None
        self._flows.set()
        if self._full is not None:
            # Those that still ask are heard at their next try.
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
            self._full.close()
            self._full = None
        elif self._listener.fileno() == -1:
            self._listener = self._listen(self.port, 128)

    def lead_to(self, behind: Address) -> None:
        """Cuts, and from ``mend`` on leads to another server: what a failover does to a name."""
        self.cut()
        self._behind = behind

    def hold(self, said: bytes, *, at: bytes, held: Direction) -> Gate:
        """Holds the next such moment, once."""
        gate = Gate(said, at, held)
        with self._lock:
            self._gates.append(gate)
        return gate

    def has_connections(self) -> bool:
        """Whether anybody talks through it: without, a fault shows nothing."""
        return bool(self._all())

    def is_asked_to_connect(self) -> bool:
        """Whether somebody waits for a connection that hangs."""
        port = f"{self.port:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(row[2].endswith(f":{port}") and row[3] == "02" for row in rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flows.set()
        for gate in self._gates:
            gate.lose()
        if self._full is not None:
            self._full.close()
        self.cut()

    # -- how ---------------------------------------------------------------------------------------

    def _listen(self, port: int, queue: int, *, accepts: bool = True) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(queue)
        if accepts:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _all(self) -> list[_Line]:
        with self._lock:
            return list(self._lines)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        line = _Line(client, server)
        with self._lock:
            self._lines.add(line)
        if self._halved is not None:
            line.half_close(self._halved)
        back = threading.Thread(target=self._back, args=(line,), daemon=True)
        back.start()
        self._forth(line)
        back.join()
        with self._lock:
            self._lines.discard(line)
        line.close()

    def _connect(self) -> socket.socket:
        if isinstance(self._behind, tuple):
            return socket.create_connection(self._behind)
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._behind))
        return server

    def _forth(self, line: _Line) -> None:
        said, prepared = b"", Prepared()
        with contextlib.suppress(OSError):
            while data := line.client.recv(self._piece):
                said = (said + prepared.heard(data))[-_MOST_SAID:]
                gate = self._gate(said, data)
                if gate is not None and gate.held == "answers":
                    line.answer_gate = gate
                elif gate is not None and not gate.passes():
                    line.reset()
                    return
                if _COMMIT in data:
                    said = b""
                self._delay()
                line.server.sendall(data)
        line.half_close("questions")

    def _back(self, line: _Line) -> None:
        with contextlib.suppress(OSError):
            while data := line.server.recv(self._piece):
                gate, line.answer_gate = line.answer_gate, None
                if (gate is not None and not gate.passes()) or self._loses():
                    line.reset()
                    return
                self._delay()
                with contextlib.suppress(OSError):
                    line.client.sendall(data)
        line.half_close("answers")

    def _gate(self, said: bytes, data: bytes) -> Gate | None:
        with self._lock:
            for gate in self._gates:
                if gate.said in said and gate.at in data:
                    self._gates.remove(gate)
                    return gate
        return None

    def _loses(self) -> bool:
        with self._lock:
            lost = self._lose_answer()
            self.lost += lost
        return lost

    def _delay(self) -> None:
        self._flows.wait()
        if self._pause_s:
            self._waiting.wait(self._pause_s)

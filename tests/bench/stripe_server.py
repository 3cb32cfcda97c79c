"""A server that speaks Stripe's payment intents over HTTP/1.1 with connections kept, as fast as
one process can: it answers at once, writes each call down, and lists what has arrived.

`python -m tests.bench.stripe_server` says "ready PORT" and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from urllib.parse import parse_qsl

from tests.bench import vendor
from tests.bench.effects import Ledger
from tests.bench.stripe_lists import Lists, charged

_ACCOUNT = json.dumps({"id": vendor.OWNER, "object": "account"}).encode()


class _Connection(asyncio.Protocol):
    """One kept connection; requests come one after the other."""

    def __init__(self, ledger: Ledger, lists: Lists) -> None:
        self._ledger = ledger
        self._lists = lists
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            lines = self._read[:end].decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:])
            whole = end + 4 + int(headers.get("content-length", "0"))
            if len(self._read) < whole:
                return
            body, self._read = self._read[end + 4 : whole], self._read[whole:]
            key = headers.get("idempotency-key", "")
            if lines[0].startswith("POST"):
                answer = self._created(key, body)
            else:
                answer = self._lists.page(lines[0].split()[1]) or _ACCOUNT
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRequest-Id: req_bench\r\n"
                + (f"Idempotency-Key: {key}\r\n" if key else "").encode()
                + f"Content-Length: {len(answer)}\r\n\r\n".encode()
                + answer
            )

    def _created(self, key: str, body: bytes) -> bytes:
        fields = dict(parse_qsl(body.decode()))
        metadata = {n[9:-1]: value for n, value in fields.items() if n.startswith("metadata[")}
        owner = uuid.UUID(metadata["outbox_id"])
        self._ledger.add(bytes.fromhex(key), owner.bytes, body)
        amount, currency = int(fields["amount"]), fields["currency"]
        return json.dumps(charged(owner, metadata, amount, currency)).encode()


async def _serve() -> None:
    ledger = Ledger(os.environ[vendor.LEDGER])
    lists = Lists(ledger, os.environ[vendor.LEDGER])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(ledger, lists), "127.0.0.1", 0, backlog=512
    )
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_serve()))

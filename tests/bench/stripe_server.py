"""A server that speaks Stripe's payment intents over HTTP/1.1 with connections kept, as fast as
one process can: it answers at once and writes each call down.

`python -m tests.bench.stripe_server` says "ready PORT" and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from urllib.parse import parse_qsl

from tests.bench import vendor
from tests.bench.effects import Ledger

_ACCOUNT = json.dumps({"id": vendor.OWNER, "object": "account"}).encode()


class _Connection(asyncio.Protocol):
    """One kept connection; requests come one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
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
            answer = self._created(key, body) if lines[0].startswith("POST") else _ACCOUNT
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
        return json.dumps({
            "id": f"pi_{owner.hex}", "object": "payment_intent", "livemode": False,
            "amount": int(fields["amount"]), "currency": fields["currency"],
            "status": "succeeded", "created": int(time.time()), "metadata": metadata,
        }).encode()  # fmt: skip


async def _serve() -> None:
    ledger = Ledger(os.environ[vendor.LEDGER])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(ledger), "127.0.0.1", 0, backlog=512
    )
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_serve()))

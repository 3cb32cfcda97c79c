"""`python -m vendors.sandbox --db PATH`: prints one JSON line when ready, runs until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import sys
from typing import TYPE_CHECKING

from vendors.sandbox.admin import Admin
from vendors.sandbox.faults import Faults
from vendors.sandbox.ledger import Ledger
from vendors.sandbox.server import Server

if TYPE_CHECKING:
    from vendors.sandbox.mail_face import MailFace

HOST = "127.0.0.1"


class Face:
    """The vendor's listening socket, which can be closed (connection refused) and opened again."""

    def __init__(self, server: Server, port: int) -> None:
        self._server = server
        self.port = port
        self._listener: asyncio.Server | None = None

    async def listen(self, accept: bool) -> None:
        if accept and self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(
                self._server.connection, HOST, self.port, backlog=512
            )
            self.port = self._listener.sockets[0].getsockname()[1]
        elif not accept and self._listener is not None:
            self._listener.close()
            for connection in list(self._server.connections):
                connection.close()
            self._listener = None


async def run(args: argparse.Namespace) -> None:
    ledger = Ledger(args.db, args.seed)
    faults = Faults(ledger)
    faults.load()
    server = Server(ledger, faults)
    face = Face(server, args.port)
    await face.listen(True)
    mail = _mail_face(server)
    loop = asyncio.get_running_loop()
    side_door = Admin(server, face.listen)
    admin = await loop.create_server(side_door.connection, HOST, args.admin_port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if args.die_with_parent:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stopped.set())
    work = [loop.create_task(server.run_held()), loop.create_task(server.sender.run())]
    ready = {
        "url": f"http://{HOST}:{face.port}",
        "admin": f"http://{HOST}:{admin.sockets[0].getsockname()[1]}",
        "smtp": await mail.listen(args.smtp_port) if mail is not None else "",
        "pid": os.getpid(),
    }
    print(json.dumps(ready), flush=True)
    work.append(loop.create_task(stopped.wait()))  # type: ignore[arg-type]
    ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    await face.listen(False)
    if mail is not None:
        mail.close()
    admin.close()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await server.stop()
    for task in ended:
        task.result()


def _mail_face(server: Server) -> MailFace | None:
    """None where aiosmtpd, of the extra ``embedded``, is not installed."""
    try:
        from vendors.sandbox.mail_face import MailFace
    except ImportError:
        return None
    return MailFace(server)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m vendors.sandbox", description=__doc__)
    parser.add_argument("--db", required=True, help="the SQLite file that is the vendor's memory")
    parser.add_argument("--port", type=int, default=0, help="Stripe face; 0: any free port")
    parser.add_argument("--smtp-port", type=int, default=0, help="the mail server's face")
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="object ids follow from it")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="stop at the end of stdin (a dead parent)"
    )
    try:
        asyncio.run(run(parser.parse_args()))
    except sqlite3.OperationalError as failed:
        print(f"sandbox: --db: {failed}; one sandbox at a time may use a file", file=sys.stderr)
        return 1
    except (OSError, RuntimeError) as failed:
        print(f"sandbox: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

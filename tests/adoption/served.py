"""An example application as a process of its own, asked over HTTP as its users ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workers.floor import CARD, SECRET, WAIT_S, Floor, wait_until

ROOT = Path(__file__).parents[2]
UVICORN = (
    *("-m", "uvicorn", "tests.examples.fastapi_app:app"),
    *("--port", "0", "--no-access-log", "--timeout-graceful-shutdown", "5"),
)
# Threads, as a server of an application has them: a view that waits holds up no webhook.
WSGI = (
    "-c",
    "import socketserver, sys\n"
    "from wsgiref.simple_server import WSGIRequestHandler, WSGIServer\n"
    "from tests.examples.django_app import application\n"
    "class Server(socketserver.ThreadingMixIn, WSGIServer):\n"
    "    daemon_threads = True\n"
    "server = Server(('127.0.0.1', 0), WSGIRequestHandler)\n"
    "server.set_app(application)\n"
    "print(f'running on http://127.0.0.1:{server.server_port}', file=sys.stderr, flush=True)\n"
    "server.serve_forever()\n",
)


@dataclass
class App:
    """A running application."""

    url: str
    env: Mapping[str, str]
    said: list[str] = field(default_factory=list)

    def post(self, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object that it answers with."""
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, {"text": error.read().decode()}

    def charge(self, floor: Floor, invoice_id: str, **changes: Any) -> dict[str, Any]:
        """What the application answers to a charge while one worker drains."""
        answers: list[tuple[int, dict[str, Any]]] = []
        path = f"/invoices/{invoice_id}/charge"
        asking = threading.Thread(
            target=lambda: answers.append(self.post(path, {**CARD, **changes}))
        )
        asking.start()

        def answered() -> bool:
            floor.drain()
            return not asking.is_alive()

        wait_until(answered)
        ((status, body),) = answers
        assert status == 200, (body, self.said)
        return body


def env_of(floor: Floor, **more: str) -> dict[str, str]:
    """What an application that also takes webhooks reads."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OUTBOX", "STRIPE"))}
    return {
        **plain,
        "DATABASE_URL": floor.settings.database_url,
        "STRIPE_API_KEY": floor.sandbox.api_key(floor.account),
        "STRIPE_API_BASE": floor.sandbox.url,
        "STRIPE_WEBHOOK_SECRET": SECRET,
        "OUTBOX_PROFILE": "demo",
        "OUTBOX_WAIT_S": "2",
        **more,
    }


@contextmanager
def serving(command: tuple[str, ...], env: Mapping[str, str]) -> Iterator[App]:
    """Runs an application until the block ends."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    app = App("", env)
    assert process.stderr is not None

    def read() -> None:
        for line in process.stderr or ():
            app.said.append(line)
            found = re.search(r"running on (\S+)", line)
            if found and not app.url:
                app.url = found.group(1)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        wait_until(lambda: app.url or process.poll() is not None)
        assert app.url, "".join(app.said)
        yield app
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
        reading.join(WAIT_S)
        process.stderr.close()

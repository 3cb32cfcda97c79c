"""A page's target over real HTTP: keeps what came, answers as it is told."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbox.settings import Settings
from resolvers.page import Page, Pager, Sent
from resolvers.pagers import parse

KEYS = ("R0123456789abcdefghijklmnopqrstu", "S0123456789abcdefghijklmnopqrstu")


@dataclass
class Answer:
    """One answer. ``drip_s``: a byte of the head each, for ever; ``drop``: no answer at all;
    ``hang``: none until the target ends."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    drop: bool = False
    hang: bool = False


@dataclass
class Target:
    """``answers`` are used up one by one, then ``last`` for ever."""

    url: str
    last: Answer = field(default_factory=lambda: Answer(202))
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    before: Any = None
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.requests]

    @property
    def seen(self) -> list[tuple[str, str]]:
        """(action, dedup key) of each request."""
        return [(b.get("event_action") or b["action"], b["dedup_key"]) for b in self.bodies]


@contextmanager
def page_target() -> Iterator[Target]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append((self.path, headers, body))
            if found.before is not None:
                found.before()
            answer = found.answers.pop(0) if found.answers else found.last
            if answer.drop:
                self.close_connection = True
                return
            if answer.hang:
                found.stopping.wait()
                self.close_connection = True
                return
            while answer.drip_s and not found.stopping.wait(answer.drip_s):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.wfile.flush()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Target(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        found.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


def pagers_of(*targets: Target) -> tuple[Pager, ...]:
    specs = (f"pagerduty:{key}@{target.url}" for key, target in zip(KEYS, targets, strict=False))
    return parse(Settings(pagers=tuple(specs)))


def file_pager(tmp_path: Path) -> tuple[tuple[Pager, ...], Callable[[], list[tuple[str, str]]]]:
    """A pager without a policy of its own, and what it was told."""
    path = tmp_path / "pages.jsonl"

    def seen() -> list[tuple[str, str]]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [(page["action"], page["dedup_key"]) for page in map(json.loads, lines)]

    return parse(Settings(pagers=(f"file:{path}",))), seen


class Died(BaseException):
    """The process ended here."""


class DiesAfterSending:
    """The target was told and its sender died before it could write that down."""

    repages = True
    lasts_s = None

    def __init__(self, pager: Pager) -> None:
        self.name = pager.name
        self._pager = pager

    def send(self, page: Page) -> Sent:
        self._pager.send(page)
        raise Died

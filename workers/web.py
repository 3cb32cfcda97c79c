"""The web process: webhooks in, health out. Starlette under uvicorn, or mounted in your own app."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers.health import health, readiness
from resolvers.receiving import TOO_LARGE, Receiver

# A sender that drips its body keeps a connection for no longer than this.
_BODY_S = 10.0
_GRACE_S = 10
_BACKLOG = 2048
_LAST_PORT = 65535
_log = logging.getLogger(__name__)


def webhook_routes(receiver: Receiver) -> list[Route]:
    """``POST /webhooks/{vendor}/{account}``, to put among the routes of a Starlette app."""

    async def webhook(request: Request) -> Response:
        try:
            body = await asyncio.wait_for(
                _read(request, receiver.settings.webhook_max_bytes), _BODY_S
            )
        except TimeoutError:
            return _unread(408, "the body did not come in time")
        except ClientDisconnect:
            return PlainTextResponse("the body was cut off", 400)
        if body is None:
            return _unread(TOO_LARGE, "the body is too large")
        path = request.path_params
        try:
            status, text = await run_in_threadpool(
                receiver.receive, path["vendor"], path["account"], request.headers, body
            )
        except Exception as error:
            # A traceback could quote the body; the vendor delivers again after a 500.
            _log.error("a webhook was not stored: %s", type(error).__name__)
            return PlainTextResponse("the event was not stored", 500)
        return PlainTextResponse(text, status)

    return [Route("/webhooks/{vendor}/{account}", webhook, methods=["POST"])]


def _unread(status: int, text: str) -> Response:
    """The rest of the body is not read: the connection ends with this answer."""
    return PlainTextResponse(text, status, headers={"Connection": "close"})


async def _read(request: Request, most_bytes: int) -> bytes | None:
    """The raw body; None as soon as it is larger than ``most_bytes``, whatever its header says."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most_bytes:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            return None
    return bytes(body)


def health_routes(receiver: Receiver) -> list[Route]:
    """``GET /livez`` (this process), ``/readyz`` (store and schema), ``/healthz`` (everything)."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"ok": True})

    async def readyz(_: Request) -> Response:
        return _told(await run_in_threadpool(lambda: readiness(receiver.parts()[0])))

    async def healthz(_: Request) -> Response:
        return _told(await run_in_threadpool(lambda: health(*receiver.parts())))

    return [
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/healthz", healthz, methods=["GET"]),
    ]


def _told(found: dict[str, object]) -> Response:
    headers = {"Cache-Control": "no-store"}
    return JSONResponse({"schema": 1, **found}, 200 if found["ok"] else 503, headers=headers)


def build_app(receiver: Receiver) -> Starlette:
    """All routes as one ASGI application, to serve or to mount under a path."""
    app = Starlette(routes=[*webhook_routes(receiver), *health_routes(receiver)])
    # A redirect would name the Host that the sender made up, and lead a webhook nowhere.
    app.router.redirect_slashes = False
    return app


def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> int:
    """Serves until SIGTERM or SIGINT and returns 0. ``PORT`` 0 takes any free port; ``ready`` is
    called with the address once it answers.

    Raises ``SettingsError`` for what forbids a start, an address that cannot be bound too.
    """
    settings.require_database()
    problems = list(settings.start_problems())
    if problems:
        raise SettingsError(problems)
    receiver = Receiver(settings)
    listener = _listen(settings.host, settings.port)
    address = _address(listener)

    def announce() -> None:
        print(f"web: listening on {address}", file=sys.stderr, flush=True)
        if ready is not None:
            ready(address)

    config = uvicorn.Config(
        build_app(receiver),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config, announce)
    try:
        with listener, _ended_by_signals(server):
            server.run(sockets=[listener])
    finally:
        receiver.close()
    return 0


class _Server(uvicorn.Server):
    """uvicorn, telling when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Around uvicorn's own handlers: a signal that comes before they are set ends the server too,
    and the one that uvicorn raises once more at its end does not end us, whose exit code is 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, __: FrameType | None) -> None:
        server.should_exit = True

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def check_address(settings: Settings) -> None:
    """Raises ``SettingsError`` for an address that cannot be bound now."""
    _listen(settings.host, settings.port).close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= _LAST_PORT:
        raise SettingsError([("PORT", f"must be 0 (any free port) to {_LAST_PORT}")])
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            [("OUTBOX_HOST, PORT", f"cannot listen on {host} port {port}: {error}")]
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

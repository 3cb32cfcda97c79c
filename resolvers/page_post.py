"""One page as one HTTP request: its address, one total deadline, and what its answer means."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from resolvers import apart
from resolvers.page import Failed, Sent, Unusable

SEND_TIMEOUT_S = 10.0
RETRY_AFTER_MAX_S = 900.0
# The target did not take it in, and says that it may later.
_LATER = frozenset({408, 425, 429})
_posting: ContextVar[bool] = ContextVar("outbox_posting", default=False)


def post(
    url: str, document: Any, *, accepts: range, headers: Mapping[str, str] | None = None
) -> Sent | Failed:
    """One POST of a JSON document. 4xx is final but for those that say later; 5xx and the network
    are not. Redirects are not followed: the credential would follow."""
    return post_bytes(url, encoded(document), accepts=accepts, headers=headers)


def post_bytes(
    url: str, body: bytes, *, accepts: range, headers: Mapping[str, str] | None = None
) -> Sent | Failed:
    """The same for a body that was encoded, and perhaps signed, before."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "outbox-resolve",
        **(headers or {}),
    }
    left: list[str] = []
    try:
        # httpx bounds each socket operation; the wait bounds the whole, a dripping answer too.
        with asyncio.Runner(loop_factory=_Loop) as runner:
            status, answered = runner.run(
                asyncio.wait_for(_exchange(url, body, headers, left), SEND_TIMEOUT_S)
            )
    except (httpx.HTTPError, TimeoutError) as error:
        timely = isinstance(error, httpx.HTTPError)
        why = f": {type(error).__name__}" if timely else f" within {SEND_TIMEOUT_S:g} s"
        # Of what never left nothing can have been shown.
        return Failed(f"{'no answer' if left else 'not connected'}{why}", maybe=bool(left))
    if status in accepts:
        return Sent(f"http {status}")
    # Elsewhere or no: not taken in. A 5xx, or a success in another word, proves nothing.
    refused = 300 <= status < 500
    later = not refused or status in _LATER
    return Failed(
        f"http {status}", _retry_after_s(answered) if later else None, not later, not refused
    )


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up in a thread that nobody waits for: asyncio's own must end before a loop and a
    process do, and a resolver takes its own time."""

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """What the host's resolver says."""
        ask = partial(socket.getaddrinfo, host, port, family, type, proto, flags)
        return await asyncio.wrap_future(apart.begin(f"name:{host}", ask, SEND_TIMEOUT_S))


async def _exchange(
    url: str, body: bytes, headers: Mapping[str, str], left: list[str]
) -> tuple[int, httpx.Headers]:
    """``left`` says afterwards whether a first byte of the page has left."""

    async def note(event: str, about: Mapping[str, Any]) -> None:
        # A proxy is first asked for a tunnel, which shows nothing to anybody.
        if event.endswith("send_request_headers.started") and about["request"].method == b"POST":
            left.append(event)

    local = is_local(urlsplit(url).hostname or "")
    # For this task's context only: the application's own requests are logged as ever.
    _posting.set(True)
    logging.getLogger("httpx").addFilter(_outside_posts)
    async with (
        httpx.AsyncClient(
            timeout=SEND_TIMEOUT_S,
            follow_redirects=False,
            trust_env=not local,
            verify=_trusted(trust_env=not local),
        ) as client,
        client.stream(
            "POST", url, content=body, headers=headers, extensions={"trace": note}
        ) as answer,
    ):
        # The body is not read: the status says it all, and an endless body would not end.
        return answer.status_code, answer.headers


@functools.cache
def _trusted(*, trust_env: bool) -> ssl.SSLContext:
    # Reading the authorities takes longer than all the rest of a page.
    return httpx.create_ssl_context(trust_env=trust_env)


def _outside_posts(_: logging.LogRecord) -> bool:
    """The client logs each address, and an address may hold a token."""
    return not _posting.get()


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """``Retry-After`` in seconds, or as a date that counts from the answer's own ``Date``."""
    written = headers.get("Retry-After", "").strip()
    if written.isascii() and written.isdecimal():
        return min(float(written), RETRY_AFTER_MAX_S)
    try:
        until, now = (parsedate_to_datetime(text) for text in (written, headers.get("Date", "")))
        left_s = (until - now).total_seconds()
    except (TypeError, ValueError):  # TypeError: one of them names no time zone
        return None
    return min(max(left_s, 0.0), RETRY_AFTER_MAX_S)


def address(url: str) -> SplitResult:
    """The parts of an address. Raises ``Unusable``."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(httpx.URL(url).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        good = False
    if not good:
        raise Unusable("its address must be http:// or https:// with a host")
    return parts


def base_of(written: str, named: Mapping[str, str]) -> str:
    """The vendor's address behind a key's ``@``: a region of ``named`` (nothing written is the
    region without a name), or an address of its own, which must be https unless it is local."""
    if written in named:
        return named[written]
    regions = " or ".join(f"@{name}" for name in named if name)
    try:
        parts = address(written)
    except Unusable as error:
        raise Unusable(f"{error}{f', or {regions}' * bool(regions)}") from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise Unusable("its address must be a base address, without a query or a user")
    if parts.scheme != "https" and not is_local(parts.hostname or ""):
        raise Unusable("its address must be https: the key is a credential")
    return written.rstrip("/")


def encoded(document: Any) -> bytes:
    """Compact JSON. ASCII only: a lone surrogate in a name is escaped instead of failing every
    try."""
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def is_local(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""The transport under an SDK: one request, no redirect, no retry, a cut-off before the first byte.

An SDK reports a lost answer and a refused connection alike, and drops the headers of an answer it
cannot parse. Here every request belongs to an ``Exchange``, which notes when the first byte was
about to leave and keeps status, headers and body as they came.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import BadStatusLine, HTTPException, HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from typing import Any, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from outbox.contract import Cutoff, TooLate
from outbox.outcomes import NotSent

# A connection that idled longer may have been dropped by a middlebox that told nobody: a write
# into it would look maybe-sent. Opening a new one costs a round trip and no doubt.
_IDLE_LIMIT_S = 20.0
# A thread that calls for many accounts keeps the connections of those it called for last: one for
# each account and thread would pass what a process may open.
_SESSIONS_A_THREAD = 8
_PIECE_BYTES = 65536
_MOST_BYTES = 16 << 20  # a page of a hundred objects has well under one


@dataclass(slots=True)
class Answer:
    """What came back: ``body`` is None where it was not read to its end."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class Exchange:
    """One request of this thread. ``began`` is set just before its first byte may leave.

    ``header`` is a header (name, value) that the request must carry, or nothing is sent.
    """

    method: str
    path: str
    cutoff: Cutoff = field(repr=False)
    header: tuple[str, str] | None = field(default=None, repr=False)
    began: bool = False
    answer: Answer | None = None

    def start(self, sock: Any, method: str, url: str, headers: Mapping[str, str]) -> None:
        """The last gate. Raises ``TooLate``, or ``WrongRequest`` for what is not this request."""
        if self.began:
            raise WrongRequest("a second request in one exchange")
        if method.upper() != self.method.upper() or urlsplit(url).path != self.path:
            raise WrongRequest("not the recorded method and path")
        if self.header is not None:
            sent = {name.lower(): _text(value) for name, value in headers.items()}
            if sent.get(self.header[0].lower()) != self.header[1]:
                raise WrongRequest(f"no {self.header[0]}, or another than recorded")
        self.cutoff.attach(sock)
        self.began = True


class WrongRequest(Exception):
    """Our bug: the SDK was about to send something else than the recorded request."""


_current = threading.local()


@contextmanager
def exchange(
    method: str, path: str, cutoff: Cutoff, header: tuple[str, str] | None = None
) -> Iterator[Exchange]:
    """The requests of this thread belong to the exchange until the block ends."""
    assert not in_exchange(), "an exchange is open in this thread"
    _current.exchange = Exchange(method, path, cutoff, header)
    try:
        yield _current.exchange
    finally:
        _current.exchange = None


def in_exchange() -> bool:
    """Whether this thread is inside an exchange: what an SDK logs then may hold arguments."""
    return getattr(_current, "exchange", None) is not None


def current_exchange() -> Exchange:
    """The exchange that this thread is in; there must be one."""
    assert in_exchange(), "a request outside any exchange"
    return cast(Exchange, _current.exchange)


def cause_of(error: BaseException) -> str:
    """``too_late``, or the class name of the innermost cause; messages quote addresses and more."""
    name = ""
    for at in _causes(error):
        if isinstance(at, TooLate):
            return "too_late"
        name = type(at).__name__
    return name


def unsent(failure: Exception | None) -> NotSent:
    """The outcome of a request of which no byte left; ``local`` where no network was the cause."""
    if failure is None:
        return NotSent("nothing_sent", local=True)
    return NotSent(cause_of(failure), local=not any(map(_is_of_network, _causes(failure))))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, down to the innermost."""
    seen: set[int] = set()
    at: Any = error
    while isinstance(at, BaseException) and id(at) not in seen:
        seen.add(id(at))
        yield at
        first = at.args[0] if at.args else None
        at = getattr(at, "reason", None) or at.__cause__ or at.__context__ or first


def _is_of_network(error: BaseException) -> bool:
    # The library's refusals of a header, an address or a body are OSErrors too.
    if isinstance(error, requests.RequestException):
        return isinstance(error, requests.ConnectionError | requests.Timeout)
    return isinstance(error, OSError | HTTPError | HTTPException | TooLate)


class _Gate:
    """Mixed into both connection classes: connects, passes the gate, and only then sends."""

    _used_at_s: float | None = None

    def request(
        self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any
    ) -> None:
        connection = cast(HTTPConnection, self)
        used_at_s = self._used_at_s
        if used_at_s is not None and time.monotonic() - used_at_s > _IDLE_LIMIT_S:
            connection.close()
        if connection.sock is None:
            connection.connect()
        self._used_at_s = time.monotonic()
        current_exchange().start(connection.sock, method, url, headers or {})
        super().request(method, url, body=body, headers=headers, **options)  # type: ignore[misc]


class _FinalResponse(HTTPResponse):
    """The answer behind any number of interim ones. The library takes a 103 for the answer, and the
    true one would then be read as that of the next request."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            raise BadStatusLine("another protocol, which nobody asked for")
        return version, (HTTPStatus.CONTINUE if 100 <= status < 200 else status), reason


class _PlainConnection(_Gate, HTTPConnection):
    response_class = _FinalResponse


class _TlsConnection(_Gate, HTTPSConnection):
    response_class = _FinalResponse


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """Gated connections, directly or through a proxy; keeps the head of every answer."""

    def __init__(self) -> None:
        super().__init__(pool_connections=2, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        return manager

    def build_response(self, req: Any, resp: Any) -> requests.Response:
        response = super().build_response(req, resp)
        current_exchange().answer = Answer(response.status_code, response.headers)
        return response


class _Kept(threading.local):
    """The sessions of one thread, by whose they are, the last used at the end."""

    def __init__(self) -> None:
        self.sessions: dict[Sessions, requests.Session] = {}


_kept = _Kept()


class Sessions:
    """Looks like a ``requests.Session`` to an SDK and is one session per thread underneath; a
    thread keeps the connections of the eight it used last.

    ``direct``: ignore proxies from the environment (an address that was configured by hand).
    """

    def __init__(self, direct: bool = False) -> None:
        self._direct = direct
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[requests.Session] = weakref.WeakSet()

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """One request; the body is read to its end before this returns.

        A connection is kept only after a write that was accepted: what is answered twice, or late,
        would else be read as the answer to somebody else's request, and a refusal or an empty list
        names nobody. An accepted object is compared with its intent.
        """
        options |= {"allow_redirects": False, "stream": True}
        session, kept = self._session(), False
        response: requests.Response | None = None
        try:
            response = session.request(method, url, **options)
            body = _read(response)
            answer = current_exchange().answer
            assert answer is not None
            answer.body = body
            kept = method.upper() != "GET" and 200 <= response.status_code < 300
            return response
        finally:
            if not kept:
                # One that was not read to its end still has its connection, and no pool does.
                if response is not None:
                    response.close()
                session.close()

    def _session(self) -> requests.Session:
        kept = _kept.sessions
        session = kept.pop(self, None)
        if session is None:
            session = self._new_session()
        # Last used, last to go.
        kept[self] = session
        if len(kept) > _SESSIONS_A_THREAD:
            kept.pop(next(iter(kept))).close()
        return session

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        session.mount("http://", _Adapter())
        session.mount("https://", _Adapter())
        session.trust_env = not self._direct
        # Else a .netrc of this host would replace the vendor's Authorization header.
        session.auth = _leave_alone
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        with self._lock:
            self._all.add(session)
        return session

    def close(self) -> None:
        """Closes the pooled connections of all threads."""
        with self._lock:
            sessions = list(self._all)
        for session in sessions:
            session.close()


def _read(response: requests.Response) -> bytes:
    """The body, decoded. Raises ``TooLarge`` for more than anything we ask for can be."""
    parts, size = [], 0
    for part in response.iter_content(_PIECE_BYTES):
        size += len(part)
        if size > _MOST_BYTES:
            raise TooLarge
        parts.append(part)
    # An SDK reads it once more.
    response._content = body = b"".join(parts)
    return body


class TooLarge(Exception):
    """The answer is larger than any that could be meant: a few bytes may unpack to gigabytes."""


def _leave_alone(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    return prepared


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)

"""The doorbell: one coalesced ring after commit, which an idle worker process waits for. It may be
lost, late or doubled; each worker process also polls, so a dead broker delays and never stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from outbox.forks import PerProcess

if TYPE_CHECKING:
    from redis import Redis
    from sqlalchemy.orm import Session

T = TypeVar("T")
Else = TypeVar("Else")

# Whether it has been rung since it was taken down.
_WAKE = "outbox:wake"
_WAKE_MS = 1000
_RAISE = ("SET", _WAKE, "1", "NX", "PX", _WAKE_MS)
_TAKE_DOWN = ("DEL", _WAKE)
# Of those that listen, one takes the ring.
_RINGS = "outbox:rings"
# The longest wait for a ring at a time: a process that is told to end sees it then.
_LISTEN_S = 0.25
_INFO = "outbox_bell"
# After a failed ring, callers are not made to wait on a dead broker again at once.
_REST_S = 5.0


class _Line:
    """One kept connection for the two commands that come with each write and each empty claim,
    written once. By the client's own way a command costs three times that: it takes a connection
    from a pool, and counts it, for each."""

    def __init__(self, client: Redis) -> None:
        self.lock = threading.Lock()
        # Of the pool's kind (address, password, TLS), and none of its own.
        pool: Any = client.connection_pool
        self._connection = pool.make_connection()
        pack = self._connection.pack_command
        self._written = {words: pack(*words) for words in (_RAISE, _TAKE_DOWN)}

    def ask(self, words: tuple[Any, ...]) -> Any:
        """The broker's answer. Under the lock; raises what the connection does."""
        connection = self._connection
        try:
            connection.connect()  # nothing, where it is
            if self._is_stale():
                connection.disconnect()
            connection.send_packed_command(self._written[words])
            return connection.read_response()
        except BaseException:
            connection.disconnect()
            raise

    def _is_stale(self) -> bool:
        """Whether the broker closed it while it rested, or it is out of step."""
        try:
            return bool(self._connection.can_read())
        except Exception:
            return True


class Doorbell:
    """Rings the send queue. Everything it meets is swallowed: the row is the work."""

    def __init__(self, redis_url: str, *, timeout_s: float) -> None:
        self._url = redis_url
        self._timeout_s = timeout_s
        self._client = PerProcess(lambda: self._connect(timeout_s))
        self._line = PerProcess(lambda: _Line(self._client.get()))
        # Waiting for a ring takes longer than ringing may.
        self._ear = PerProcess(lambda: self._connect(timeout_s + _LISTEN_S))
        self._rest_until = 0.0

    def ring(self) -> bool:
        """Rings once a second at most; False when nothing was sent (coalesced or no broker)."""
        return bool(self._say(_RAISE)) and self.call()

    def call(self) -> bool:
        """Wakes one of those that listen, whether or not the bell is up: more is due than the
        caller can take by itself. False when nothing was sent."""

        def push() -> bool:
            told = self._client.get().pipeline(transaction=False)
            told.lpush(_RINGS, "1")
            # One waits at the most, however long nobody listens.
            told.ltrim(_RINGS, 0, 0)
            told.execute()
            return True

        return self._ask(push, otherwise=False)

    def ring_after(self, session: Session) -> None:
        """Rings once a session's real transaction has committed. The listeners stay with the
        session; what is due is a flag beside them."""
        due = session.info.setdefault(_INFO, {"due": False, "listens": False})
        due["due"] = True
        if due["listens"]:
            return
        due["listens"] = True
        # Imported late: a worker rings too, and has no sessions of SQLAlchemy's.
        from sqlalchemy import event

        def committed(done: Session) -> None:
            # A savepoint's release is no commit; the broker waits for the real one.
            if due["due"] and not done.in_nested_transaction():
                due["due"] = False
                self.ring()

        def rolled_back(done: Session) -> None:
            if not done.in_nested_transaction():
                due["due"] = False

        event.listen(session, "after_commit", committed)
        event.listen(session, "after_rollback", rolled_back)

    def answer(self) -> bool:
        """Takes the bell down before a claim, so that a row committed later rings it again. Whether
        it had been rung."""
        return bool(self._say(_TAKE_DOWN))

    def listen(self, limit_s: float) -> bool | None:
        """Waits for a ring, so many seconds or a quarter of one at the most; of those that listen
        one gets it. None at once where there is no broker to listen to."""
        # None at all would be for ever.
        wait_s = min(max(limit_s, 0.001), _LISTEN_S)
        return self._ask(
            lambda: self._ear.get().blpop([_RINGS], timeout=wait_s) is not None, otherwise=None
        )

    def is_there(self) -> bool:
        """Whether the broker answers now."""
        return self._ask(lambda: bool(self._client.get().ping()), otherwise=False)

    def _say(self, words: tuple[Any, ...]) -> Any:
        def by_line() -> Any:
            line = self._line.get()
            # Those that waited while the broker did not answer find that it rests.
            with line.lock:
                return self._ask(lambda: line.ask(words), otherwise=None)

        return self._ask(by_line, otherwise=None)

    def _ask(self, question: Callable[[], T], otherwise: Else) -> T | Else:
        """What the broker says to it; ``otherwise`` where there is none, or it rests."""
        if not self._url or time.monotonic() < self._rest_until:
            return otherwise
        try:
            return question()
        except Exception:
            self._rest_until = time.monotonic() + _REST_S
            return otherwise

    def _connect(self, timeout_s: float) -> Redis:
        # Imported late: an agent's process that never rings pays nothing for it.
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis.from_url(
            self._url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=self._timeout_s,
        )

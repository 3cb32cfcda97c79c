"""The doorbell: one coalesced message after commit. It may be lost, late or doubled; each worker
process also polls, so a dead broker delays and never stops."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from outbox.forks import PerProcess

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from sqlalchemy.orm import Session

DRAIN_TASK = "outbox.drain"
SEND_QUEUE = "outbox.send"
_WAKE = "outbox:wake"
_WAKE_MS = 1000
_INFO = "outbox_bell"
# After a failed ring, callers are not made to wait on a dead broker again at once.
_REST_S = 5.0


def broker_url_of(redis_url: str) -> str:
    """Celery's form of a redis-py URL (the Unix socket forms differ)."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    number = dict(p.split("=", 1) for p in query.split("&") if "=" in p).get("db", "0")
    return f"redis+socket://{path}?virtual_host={number}"


class Doorbell:
    """Rings the send queue. Everything it meets is swallowed: the row is the work."""

    def __init__(self, redis_url: str, *, timeout_s: float) -> None:
        self._url = redis_url
        self._timeout_s = timeout_s
        self._ends = PerProcess(self._connect)
        self._rest_until = 0.0

    def ring(self) -> bool:
        """Rings once a second at most; False when nothing was sent (coalesced or no broker)."""
        if not self._url or time.monotonic() < self._rest_until:
            return False
        try:
            client, app = self._ends.get()
            if not client.set(_WAKE, "1", nx=True, px=_WAKE_MS):
                return False
            app.send_task(DRAIN_TASK, queue=SEND_QUEUE, retry=False, ignore_result=True)
        except Exception:
            self._rest_until = time.monotonic() + _REST_S
            return False
        return True

    def ring_after(self, caller: Any) -> None:
        """Rings once a session's real transaction has committed; a bare connection has no such
        hook. The listeners stay with the session; what is due is a flag beside them."""
        # Imported late: a worker rings too, and has no sessions of SQLAlchemy's.
        from sqlalchemy import event
        from sqlalchemy.ext.asyncio import AsyncSession
        from sqlalchemy.orm import Session

        from outbox.store.callers import unscoped

        session = unscoped(caller)
        if isinstance(session, AsyncSession):
            session = session.sync_session
        if not isinstance(session, Session):
            return
        due = session.info.setdefault(_INFO, {"due": False, "listens": False})
        due["due"] = True
        if due["listens"]:
            return
        due["listens"] = True

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
        if not self._url or time.monotonic() < self._rest_until:
            return False
        try:
            client, _ = self._ends.get()
            return bool(client.delete(_WAKE))
        except Exception:
            self._rest_until = time.monotonic() + _REST_S
            return False

    def _connect(self) -> tuple[Redis, Celery]:
        # Imported late: an agent's process that never rings pays nothing for either.
        from celery import Celery
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        limits: dict[str, Any] = {
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": self._timeout_s,
        }
        client = Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), **limits)
        app = Celery("outbox-doorbell", broker=broker_url_of(self._url), set_as_current=False)
        app.conf.update(
            broker_transport_options={
                **limits,
                "retry_on_timeout": False,
                "max_retries": 0,
                # Kombu keeps its pools by these options: a child must not find its parent's.
                "process": os.getpid(),
            },
            broker_connection_retry=False,
            broker_connection_timeout=self._timeout_s,
            task_ignore_result=True,
        )
        return client, app

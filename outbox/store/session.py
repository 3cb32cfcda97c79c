"""One session of ours with the database: what holds in it, how it begins a transaction, how long it
waits for an answer, and whether it is ours alone."""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import suppress

import psycopg
from psycopg import generators
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus
from psycopg.rows import DictRow

from outbox.settings import Settings

# A host that vanishes sends no word of it. The kernel is told to notice, where the address in the
# settings does not say otherwise; ``Session`` also ends where the kernel sees nothing amiss.
_SILENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class Session(psycopg.Connection[DictRow]):
    """Waits for each answer until the server must have given the statement up, or the caller must
    have an answer of its own (``give_up_at``), and is closed then: its pool replaces it."""

    limit_s = 0.0
    give_up_at = math.inf
    used_at = 0.0
    is_ours_alone = False

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """What psycopg does between a question and its answer."""
        limit_s = min(self.limit_s, max(self.give_up_at - time.monotonic(), 0.0))
        try:
            return super().wait(gen, interval, limit_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()
            raise psycopg.errors.ConnectionTimeout(f"no answer within {limit_s:.1f} s") from None

    def cut(self) -> None:
        """Ends the wait of another thread for the server."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


# Whatever the database's default: what a statement waited for, the next one must see.
BEGINS = "BEGIN ISOLATION LEVEL READ COMMITTED"
MAY_WRITE = "SHOW transaction_read_only"
BEGIN = f"{BEGINS}; {MAY_WRITE}"
# A kept plan may have been made while the tables were empty, and must do when they are full.
BEGIN_PLANNED_ONCE = (
    f"{BEGINS}; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; "
    f"{MAY_WRITE}"
)


def settings_of_ours(settings: Settings) -> tuple[str, ...]:
    """What holds in each of our transactions, as ``SET`` takes it.

    For the session where it is ours alone, else for each transaction: a pooler hands each to any
    server session, refuses start-up options it does not know, and would lend our settings to
    others.
    """
    timeouts = {
        "statement_timeout": settings.statement_timeout_s,
        "lock_timeout": settings.lock_timeout_s,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout_s,
    }
    return (
        *(f"{name} = {int(value * 1000)}" for name, value in timeouts.items()),
        # In UTC, whatever the server's zone: Python compares and adds times of one zone by their
        # wall clock, and is an hour wrong on the night of a clock change.
        "timezone = 'UTC'",
        # The one style that psycopg reads.
        "datestyle = 'ISO'",
    )


def ask(connection: Session, statements: str) -> bytes | None:
    """Statements in one round trip; the first value of the last one. Without a cursor, which would
    cost more than the server does."""
    connection.pgconn.send_query(statements.encode())
    *_, last = connection.wait(generators.execute(connection.pgconn))
    if last.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(last)
    return last.get_value(0, 0) if last.status == ExecStatus.TUPLES_OK else None


def is_direct(connection: Session) -> bool:
    """Whether the server's session is this connection's own: a pooler answers for sessions that it
    lends out, under a process id that is none of them."""
    return ask(connection, "SELECT pg_backend_pid()") == str(connection.info.backend_pid).encode()


def connect_args(url: str) -> dict[str, int | None]:
    """How our own sessions connect: no statement is prepared before it is known whose the session
    is, and a host that vanished is noticed, but for what the address itself says of that."""
    said = conninfo_to_dict(url.replace("postgresql+psycopg", "postgresql", 1))
    # A transaction pooler hands the next statement to another server session.
    return {"prepare_threshold": None} | {n: v for n, v in _SILENCE.items() if n not in said}

"""For tests of code that uses the outbox: a database clock that can be moved.

    clock = settable_clock(database_url)
    clock.advance(24 * 3600)        # every lease, TTL and window is a day older

The database's clock decides everything that depends on time, so moving it is all that a test of
deadlines needs. Never for a database with live credentials: `outbox doctor` and start-up refuse it.
"""

from __future__ import annotations

import psycopg

_INSTALL = """
CREATE TABLE IF NOT EXISTS outbox.test_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    offset_s double precision NOT NULL DEFAULT 0
);
INSERT INTO outbox.test_clock DEFAULT VALUES ON CONFLICT DO NOTHING;
GRANT SELECT ON outbox.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp()
        + (SELECT offset_s FROM outbox.test_clock) * INTERVAL '1 second' $$
"""
_REMOVE = """
CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp() $$;
DROP TABLE IF EXISTS outbox.test_clock
"""


class Clock:
    """The clock of one database, for all its sessions at once. It goes on running; ``offset``
    (seconds) is how far it was moved."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url.replace("postgresql+psycopg", "postgresql", 1)

    @property
    def offset(self) -> float:
        """How many seconds it is ahead of the server's own clock."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute("SELECT offset_s FROM outbox.test_clock").fetchone()
        assert row is not None
        return float(row[0])

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._run("UPDATE outbox.test_clock SET offset_s = %s", seconds)

    def advance(self, seconds: float) -> None:
        """Moves it forward (or back, with a negative number)."""
        self._run("UPDATE outbox.test_clock SET offset_s = offset_s + %s", seconds)

    def remove(self) -> None:
        """Puts the real clock back."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(_REMOVE)

    def _run(self, sql: str, seconds: float) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(sql.encode(), (seconds,))


def settable_clock(database_url: str) -> Clock:
    """Installs a clock that can be moved in a migrated database, or finds the one that is there."""
    with psycopg.connect(
        database_url.replace("postgresql+psycopg", "postgresql", 1), autocommit=True
    ) as connection:
        connection.execute(_INSTALL)
    return Clock(database_url)

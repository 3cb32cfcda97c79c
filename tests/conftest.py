"""Real servers for the tests: one pair per pytest process, one fresh database per test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from workers.servers import Servers, broker_url_of

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30
_numbers = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Kept in memory where there is room: a new database then costs 10 ms instead of 300."""
    with pytest.MonkeyPatch.context() as patch:
        if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
            patch.setattr(tempfile, "tempdir", str(_MEMORY))
        started = Servers.start(postgres_settings={"fsync": "off", "max_connections": "200"})
    with started:
        yield started


@pytest.fixture(scope="session")
def _template(servers: Servers) -> str:
    """The name of a migrated database that nobody connects to."""
    # Imported here: tests that need no database shall not depend on the schema.
    from outbox.schema import upgrade

    with _administrator(servers) as connection:
        connection.execute("CREATE DATABASE template_outbox")
    upgrade(_url(servers, "template_outbox"))
    return "template_outbox"


@pytest.fixture
def database(servers: Servers, _template: str) -> Iterator[str]:
    """The SQLAlchemy URL of a migrated database of this test's own."""
    name = f"test_{next(_numbers)}"
    with _administrator(servers) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {_template} STRATEGY file_copy")
    yield _url(servers, name)
    with _administrator(servers) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """The redis-py URL of an empty database; the test before used another one."""
    url = f"{servers.redis_url}?db={next(_numbers) % 16}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def broker_url(redis_url: str) -> str:
    """Celery's URL of the database that `redis_url` names."""
    return broker_url_of(redis_url)


def _url(servers: Servers, name: str) -> str:
    return servers.database_url.replace("@/postgres?", f"@/{name}?")


def _administrator(servers: Servers) -> psycopg.Connection[tuple[object, ...]]:
    url = servers.database_url.replace("+psycopg", "")
    return psycopg.connect(url, autocommit=True)

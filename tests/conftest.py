"""Real servers for the tests: one pair per pytest process, one fresh database per test, one vendor.

They are the fixtures of the product's own pytest plugin (`outbox_pytest.py`), with Valkey beside.
"""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis

from vendors.sandbox.client import Sandbox
from workers.broker import broker_url_of
from workers.servers import Servers

_numbers = itertools.count()


def pytest_configure() -> None:
    """A run in the background of a shell ignores Ctrl-C, and so would each process it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Some thousand tests that stay until the end: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def outbox_servers() -> Iterator[Servers]:
    """As the plugin's, and Valkey."""
    # Imported here: tests that need no database shall not depend on all of the product.
    from workers.testing import open_servers

    with open_servers(valkey=True) as started:
        yield started


@pytest.fixture(scope="session")
def servers(outbox_servers: Servers) -> Servers:
    """The pair of this pytest process."""
    return outbox_servers


@pytest.fixture(scope="session")
def outbox_template(outbox_template: str) -> str:
    """As the plugin's, with a clock that can be moved in it: to put one into each test's database
    would cost more than most of what the test does there."""
    from outbox.testing import settable_clock

    settable_clock(outbox_template)
    return outbox_template


@pytest.fixture(scope="session")
def _template(outbox_template: str) -> str:
    """The name of a migrated database that nobody connects to."""
    return urlsplit(outbox_template).path[1:]


@pytest.fixture
def database(outbox_database_url: str) -> str:
    """The SQLAlchemy URL of a migrated database of this test's own."""
    return outbox_database_url


@pytest.fixture(scope="session")
def sandbox(outbox_sandbox: Sandbox) -> Sandbox:
    """The vendor of this pytest process; each test has an account of its own in it."""
    return outbox_sandbox


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

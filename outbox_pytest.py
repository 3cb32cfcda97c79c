"""The pytest plugin: fixtures for tests of code that uses the outbox.

A plugin is loaded in every test session of its environment, so this file imports nothing of the
product until a fixture is asked for, and lies outside the four packages: importing one of those
would take its generic name (`workers` ...) from an application that has a package of that name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outbox.testing import Databases
    from vendors.sandbox.client import Sandbox
    from workers.servers import Servers
    from workers.testing import OutboxBox


@pytest.fixture(scope="session")
def outbox_servers(_outbox_packages: None) -> Iterator[Servers]:
    """The embedded Postgres of this test process, in memory where there is room; it ends with the
    session, however that ends. Needs the extra `outbox-resolve[embedded]` or an installed
    Postgres. Not started where `outbox_database_url` is overridden."""
    from workers.server_programs import ServersError
    from workers.testing import open_servers

    with ExitStack() as closing:
        try:
            servers = closing.enter_context(open_servers())
        except ServersError as error:
            pytest.fail(f"{error}; or override the fixture outbox_database_url", pytrace=False)
        yield servers


@pytest.fixture(scope="session")
def outbox_databases(outbox_servers: Servers) -> Iterator[Databases]:
    """What makes databases on the embedded Postgres (`outbox.testing.Databases`)."""
    from outbox.testing import Databases

    databases = Databases(outbox_servers.database_url)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def outbox_template(outbox_databases: Databases) -> str:
    """SQLAlchemy's URL of the migrated database that each test's own is copied from. To have your
    tables in it too, override it with a fixture that takes it and returns it:

        @pytest.fixture(scope="session")
        def outbox_template(outbox_template):
            engine = create_engine(outbox_template)
            Base.metadata.create_all(engine)
            engine.dispose()
            return outbox_template
    """
    return outbox_databases.template()


@pytest.fixture
def outbox_database_url(outbox_databases: Databases, outbox_template: str) -> Iterator[str]:
    """SQLAlchemy's URL of a fresh, migrated database of this test's own. Override it to use your
    own Postgres: return the URL of a test database with schema `outbox` (`outbox schema upgrade`)
    that no other test process uses. `outbox_box` empties that schema before each test, and
    refuses a database that holds intents but was never a test's."""
    with outbox_databases.fresh(outbox_template) as url:
        yield url


@pytest.fixture(scope="session")
def outbox_sandbox(
    _outbox_packages: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """The fake vendor of this test process, with faults, webhooks and a ledger that is never
    wrong; see `vendors.sandbox.client`. Each test uses an account of its own in it."""
    from vendors.sandbox.client import Sandbox

    with Sandbox.start(tmp_path_factory.mktemp("outbox") / "vendor.sqlite") as started:
        yield started


@pytest.fixture
def outbox_env() -> Mapping[str, str]:
    """Settings of `outbox_box` by name, as `outbox config show` lists them, over the defaults.
    Override it, for a module or a class, to test under others:
    `{"OUTBOX_CALL_DEADLINE_S": "1"}`."""
    return {}


@pytest.fixture
def outbox_box(
    _outbox_packages: None,
    outbox_database_url: str,
    outbox_sandbox: Sandbox,
    outbox_env: Mapping[str, str],
    tmp_path: Path,
) -> Iterator[OutboxBox]:
    """An outbox of this test's own (`workers.testing.OutboxBox`): `outbox` for the code under test
    on `database_url`, the sandbox as its vendor, and the consuming side in this very process.

    `fault(kind)` lets the vendor fail, `drain()` sends, `travel(seconds)` lets time pass,
    `deliver_webhooks()` and `resolve()` settle, `settle()` does all of it until nothing is open;
    `assert_one_effect(intent)`, `assert_no_effect(intent)`, `escalations()` and `pages()` say
    what came of it. Intents must have been committed.

        def test_a_lost_answer_charges_once(outbox_box):
            outbox_box.fault("lost_ack", attempts=[1])
            intent = collect(outbox_box.outbox, "in_1")
            outbox_box.drain()
            outbox_box.travel(5)
            outbox_box.resolve()
            outbox_box.assert_one_effect(intent)
    """
    from workers.testing import open_box

    pages = {"OUTBOX_PAGERS": f"file:{tmp_path / 'outbox-pages.jsonl'}"}
    with open_box(outbox_database_url, outbox_sandbox, {**pages, **outbox_env}) as box:
        yield box


@pytest.fixture(scope="session")
def _outbox_packages() -> None:
    import outbox

    home = Path(outbox.__file__).parents[1]
    for name in ("vendors", "resolvers", "workers"):
        found = importlib.import_module(name)
        if Path(found.__file__ or "").parents[1] != home:
            pytest.fail(
                f"the package {name} found first is {found.__file__}, not outbox-resolve's: tests "
                "that use its fixtures must run where no other package has that name",
                pytrace=False,
            )

"""The application's own Alembic beside ours in one database, and the SQL for a DBA."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox import schema
from tests.adoption.standby import programs
from tests.checks.test_migrations import OURS
from tests.cli.desk import SCRIPT
from tests.workers.floor import query
from workers.servers import Servers

pytestmark = pytest.mark.heavy

_numbers = itertools.count()
ENV = """
import os
from alembic import context
from sqlalchemy import Column, MetaData, Table, Text, create_engine

metadata = MetaData()
Table("invoices", metadata, Column("id", Text, primary_key=True), Column("status", Text))
{filter}
with create_engine(os.environ["DATABASE_URL"]).connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, {options})
    with context.begin_transaction():
        context.run_migrations()
"""
# What README tells to put into env.py where it includes schemas.
FILTER = """
def include_name(name, type_, parent_names):
    return type_ != "schema" or name != "outbox"
"""
MAKO = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
from alembic import op
import sqlalchemy as sa
def upgrade():
    ${upgrades if upgrades else "pass"}
def downgrade():
    ${downgrades if downgrades else "pass"}
"""
RIGHTS = """
    SELECT relname, relkind::text, pg_get_userbyid(relowner), relacl::text, reloptions::text,
           obj_description(oid, 'pg_class')
    FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT proname, 'f', pg_get_userbyid(proowner), proacl::text, NULL, NULL
    FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT nspname, 'n', pg_get_userbyid(nspowner), nspacl::text, NULL, NULL
    FROM pg_namespace WHERE nspname = 'outbox'
    UNION ALL
    SELECT a.attrelid::regclass::text || '.' || a.attname, a.attidentity::text,
           pg_get_expr(d.adbin, d.adrelid), NULL, NULL, a.attcollation::regcollation::text
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0
    ORDER BY 1, 2, 3
"""


def _made(servers: Servers) -> Iterator[str]:
    name = f"adopting_{next(_numbers)}"
    query(servers.database_url, f"CREATE DATABASE {name}")
    yield servers.database_url.replace("@/postgres?", f"@/{name}?")
    query(servers.database_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty(servers: Servers) -> Iterator[str]:
    """The URL of a database without any table."""
    yield from _made(servers)


@pytest.fixture
def upgraded(servers: Servers) -> Iterator[str]:
    """The URL of a database as the migrations leave it, without the tests' own clock."""
    for url in _made(servers):
        schema.upgrade(url)
        yield url


class Migrations:
    """The application's own Alembic environment."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        scripts = folder / "migrations"
        (scripts / "versions").mkdir(parents=True)
        (scripts / "script.py.mako").write_text(MAKO)
        (folder / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
        self.include()

    def include(self, options: str = "", filter_: str = "") -> None:
        """Writes env.py; ``options`` are arguments of ``context.configure``."""
        text = ENV.format(options=options, filter=filter_)
        (self.folder / "migrations" / "env.py").write_text(text)

    def run(self, *words: str) -> None:
        env = {"PATH": os.environ["PATH"], "DATABASE_URL": self.url}
        subprocess.run(
            [sys.executable, "-m", "alembic", *words],
            cwd=self.folder,
            env=env,
            check=True,
            capture_output=True,
        )

    def proposed(self) -> str:
        """What autogenerate would write; nothing is kept."""
        self.run("revision", "--autogenerate", "--rev-id", "proposed")
        (script,) = (self.folder / "migrations" / "versions").glob("proposed_*.py")
        text = script.read_text()
        script.unlink()
        return text


@pytest.fixture
def theirs(tmp_path: Path, empty: str) -> Migrations:
    """The application's tables first, then ours, in one database."""
    app = Migrations(tmp_path, empty)
    app.run("revision", "--autogenerate", "--rev-id", "0001")
    app.run("upgrade", "head")
    schema.upgrade(empty)
    return app


def test_the_applications_autogenerate_proposes_nothing_of_ours(theirs: Migrations) -> None:
    assert "outbox" not in theirs.proposed()


def test_one_that_includes_schemas_leaves_ours_alone_by_the_filter_that_readme_gives(
    theirs: Migrations,
) -> None:
    theirs.include("include_schemas=True")
    assert "op.drop_table('intents', schema='outbox')" in theirs.proposed()
    theirs.include("include_schemas=True, include_name=include_name", FILTER)
    proposed = theirs.proposed()
    assert "drop_" not in proposed
    assert "outbox" not in proposed
    theirs.run("check")


def test_each_has_its_own_version_table_and_neither_moves_the_others(theirs: Migrations) -> None:
    versions = {
        name: query(theirs.url, f"SELECT version_num FROM {name}")[0]["version_num"]
        for name in ("public.alembic_version", "outbox.alembic_version")
    }
    assert versions == {
        "public.alembic_version": "0001",
        "outbox.alembic_version": schema.head(),
    }
    before = _tuples(theirs.url, OURS)
    theirs.run("downgrade", "base")
    assert _tuples(theirs.url, OURS) == before
    theirs.run("upgrade", "head")
    schema.downgrade(theirs.url)
    assert query(theirs.url, "SELECT version_num FROM public.alembic_version")
    assert query(theirs.url, "SELECT count(*) AS n FROM public.invoices") == [{"n": 0}]
    schema.upgrade(theirs.url)
    theirs.run("check")


def _tuples(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def _outbox(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={"PATH": os.environ["PATH"], "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )


def _by_psql(url: str, text: str) -> None:
    folder = programs()
    if folder is None or not (folder / "psql").is_file():
        pytest.skip("psql is not installed beside the server")
    subprocess.run(
        [folder / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url.replace("+psycopg", "")],
        input=text,
        text=True,
        check=True,
        capture_output=True,
    )


def _by_psycopg(url: str, text: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(text.encode())


@pytest.mark.parametrize("applied", [_by_psql, _by_psycopg])
def test_the_sql_for_a_dba_gives_the_schema_that_upgrade_gives(
    empty: str, upgraded: str, applied: Any
) -> None:
    assert _outbox(empty, "schema", "check").returncode == 3
    printed = _outbox(empty, "schema", "sql")
    assert printed.returncode == 0
    applied(empty, printed.stdout)
    for catalogs in (OURS, RIGHTS):
        assert _tuples(empty, catalogs) == _tuples(upgraded, catalogs)
    assert _outbox(empty, "schema", "check").returncode == 0
    assert schema.current(empty) == schema.head()
    before = _tuples(empty, OURS)
    schema.upgrade(empty)
    assert _tuples(empty, OURS) == before

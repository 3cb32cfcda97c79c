"""The migrations: up, down, and up again to the same schema, with no other schema touched."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from outbox import schema
from workers.servers import Servers

OURS = """
    SELECT 'table', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0
    UNION ALL
    SELECT 'constraint', c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid), ''
      FROM pg_constraint c WHERE c.connamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'index', tablename, indexname, indexdef, '' FROM pg_indexes WHERE schemaname = 'outbox'
    UNION ALL
    SELECT 'function', proname, '', pg_get_functiondef(oid), ''
      FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'trigger', c.relname, t.tgname, pg_get_triggerdef(t.oid), ''
      FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
     WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal
    ORDER BY 1, 2, 3, 4
"""
THEIRS = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"


@pytest.fixture
def empty_database(servers: Servers) -> Iterator[str]:
    address = servers.database_url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE unmigrated")
        yield servers.database_url.replace("@/postgres?", "@/unmigrated?")
        connection.execute("DROP DATABASE unmigrated WITH (FORCE)")


def rows(database_url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_up_down_and_up_again_gives_the_same_schema(empty_database: str) -> None:
    schema.upgrade(empty_database)
    first = rows(empty_database, OURS)
    assert any(name == "intents" for _, name, *_ in first)

    schema.downgrade(empty_database)
    left = [str(name).removeprefix("outbox.") for _, name, *_ in rows(empty_database, OURS)]
    assert [name for name in left if not name.startswith("alembic_version")] == []

    schema.upgrade(empty_database)
    assert rows(empty_database, OURS) == first
    assert schema.current(empty_database) == schema.head()


def test_the_callers_own_tables_are_never_touched(empty_database: str) -> None:
    with psycopg.connect(empty_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE alembic_version (version_num text PRIMARY KEY)")
    before = rows(empty_database, THEIRS)
    schema.upgrade(empty_database)
    schema.downgrade(empty_database)
    assert rows(empty_database, THEIRS) == before


def test_a_second_upgrade_changes_nothing(database: str) -> None:
    before = rows(database, OURS)
    schema.upgrade(database)
    assert rows(database, OURS) == before

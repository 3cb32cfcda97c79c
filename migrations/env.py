"""Alembic's entry: one schema, its own version table inside it, and never another's tables."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

SCHEMA = "outbox"

if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        # Any style but the driver's own, which would write every percent sign of the SQL twice.
        dialect_opts={"paramstyle": "named"},
        version_table_schema=SCHEMA,
        literal_binds=True,
        as_sql=True,
    )
    with context.begin_transaction():
        context.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        context.run_migrations()
else:
    connection = context.config.attributes["connection"]
    # Behind a lock that is waited for, everybody else waits too: a report that runs for an hour
    # must not stop every enqueue.
    connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    # Two deploys at once take turns instead of failing on each other's tables.
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('outbox.migrations'))"))
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    context.configure(connection=connection, version_table_schema=SCHEMA)
    with context.begin_transaction():
        context.run_migrations()

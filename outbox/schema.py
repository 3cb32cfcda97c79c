"""The schema's life: upgrade, check, and the SQL for a DBA. Alembic does the work."""

from __future__ import annotations

import io
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from outbox.errors import Unreachable


def _scripts() -> Path:
    """The installed migrations, or the checkout's folder beside the package."""
    here = Path(__file__).resolve().parent
    installed = here / "_migrations"
    return installed if installed.is_dir() else here.parent / "migrations"


def _config(buffer: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=buffer) if buffer is not None else Config()
    config.set_main_option("script_location", str(_scripts()))
    config.set_main_option("path_separator", "os")
    return config


def _run(database_url: str, action: str, revision: str) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    config = _config()
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            if action == "upgrade":
                command.upgrade(config, revision)
            else:
                command.downgrade(config, revision)
    except OperationalError as error:
        raise Unreachable(f"DATABASE_URL: {error.orig}") from error


def upgrade(database_url: str, revision: str = "head") -> None:
    """Brings schema ``outbox`` to ``revision`` in one transaction; a second call does nothing."""
    _run(database_url, "upgrade", revision)


def downgrade(database_url: str, revision: str = "base") -> None:
    """Takes the schema down again; for tests of the migrations, never for production."""
    _run(database_url, "downgrade", revision)


def sql() -> str:
    """All migrations as SQL text, for a database whose schema only a DBA may change."""
    buffer = io.StringIO()
    command.upgrade(_config(buffer), "head", sql=True)
    return buffer.getvalue()


def head() -> str:
    """The newest revision this release knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def current(database_url: str) -> str | None:
    """The database's revision, None where the schema is missing. Raises ``Unreachable``."""
    engine = create_engine(database_url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"version_table_schema": "outbox"}
            )
            return context.get_current_revision()
    except OperationalError as error:
        raise Unreachable(f"DATABASE_URL: {error.orig}") from error
    finally:
        engine.dispose()

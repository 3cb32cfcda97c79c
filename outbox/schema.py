"""The schema's life: upgrade, check, and the SQL for a DBA. Alembic does the work."""

from __future__ import annotations

import io
import re
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import InternalError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from outbox.errors import Busy, Denied, Invalid, ReadOnly, Unreachable
from outbox.store.session import connect_args

_READ_ONLY = "25006"
_LOCKED = "55P03"
# A table, function or other object of that name is there already.
_TAKEN = ("42P07", "42723", "42710")


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
    engine = create_engine(
        database_url, poolclass=NullPool, connect_args=connect_args(database_url)
    )
    config = _config()
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            if action == "upgrade":
                command.upgrade(config, revision)
            else:
                command.downgrade(config, revision)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == _LOCKED:
            raise Busy(
                "DATABASE_URL: another transaction holds a table of schema outbox: nothing was "
                "changed; end it (a report, a dump) or try again later"
            ) from error
        raise Unreachable(f"DATABASE_URL: {error.orig}") from error
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) not in _TAKEN:
            raise
        # A name, never a value: this statement only creates.
        raise Denied(
            "foreign_schema",
            f"DATABASE_URL: its schema outbox is not of this product ({error.orig}): nothing was "
            "changed; rename that schema, or use another database",
        ) from error
    except InternalError as error:
        if getattr(error.orig, "sqlstate", None) != _READ_ONLY:
            raise
        raise ReadOnly(
            "DATABASE_URL: a standby, or read-only by its settings: it must name the primary"
        ) from error


def upgrade(database_url: str, revision: str = "head") -> None:
    """Brings schema ``outbox`` to ``revision`` in one transaction; a second call does nothing.

    Does nothing either to what a newer release has only added to. Raises ``Denied`` for a
    database that a newer major version has upgraded, and for a schema of that name that is
    somebody else's.
    """
    found = current(database_url)
    if _only_adds(found):
        return
    if not _is_known(found):
        raise Denied("schema_ahead", f"the schema {advice(found)}")
    _run(database_url, "upgrade", revision)


def downgrade(database_url: str, revision: str = "base") -> None:
    """Takes the schema down again; for tests of the migrations, never for production."""
    _run(database_url, "downgrade", revision)


def sql(found: str | None = None) -> str:
    """The migrations as SQL text, for a database whose schema only a DBA may change: all of them,
    or those after the revision that it is at. Raises ``Invalid`` for one that is not known."""
    if not _is_known(found):
        raise Invalid("from", f"{found} is no revision of this release, which is at {head()}")
    buffer = io.StringIO()
    command.upgrade(_config(buffer), f"{found}:head" if found else "head", sql=True)
    return buffer.getvalue()


def head() -> str:
    """The newest revision this release knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def advice(revision: str | None) -> str | None:
    """What is wrong with a database at ``revision`` and what to do; None where nothing is. It
    goes on after the words "the schema"."""
    wanted = head()
    if revision == wanted or _only_adds(revision):
        return None
    if revision is None:
        return "is missing: `outbox schema upgrade`"
    if not _is_known(revision):
        return (
            f"is at {revision}, which this release (at {wanted}) does not know: a newer release "
            "has upgraded it, so run that one"
        )
    return f"is at {revision}, this release needs {wanted}: `outbox schema upgrade`"


def _is_known(revision: str | None) -> bool:
    scripts = ScriptDirectory.from_config(_config())
    return revision is None or revision in {script.revision for script in scripts.walk_revisions()}


def _only_adds(revision: str | None) -> bool:
    """Whether a newer release of our own major version has upgraded the database: within it
    migrations only expand, so that this release goes on beside that one while it is rolled out."""
    if revision is None or _is_known(revision):
        return False
    (ours, newest), (theirs, number) = _numbers(head()), _numbers(revision)
    return theirs == ours and number > newest


def _numbers(revision: str) -> tuple[int, int]:
    """The major version and the number within it: ``1_0002``."""
    found = re.fullmatch(r"(\d+)_(\d+)", revision)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def current(database_url: str) -> str | None:
    """The database's revision, None where the schema is missing. Raises ``Unreachable``."""
    engine = create_engine(
        database_url, poolclass=NullPool, connect_args=connect_args(database_url)
    )
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

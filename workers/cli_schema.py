"""``outbox schema``: the ledger's tables."""

from __future__ import annotations

import click

from workers.cli_errors import CheckFound
from workers.cli_output import show_item, show_json
from workers.cli_run import Noun, current


@click.group("schema", cls=Noun)
def schema() -> None:
    """The schema `outbox` in the database."""


@schema.command(
    "upgrade",
    refuses="the schema is a newer release's, or somebody else's; nothing was changed",
    examples=("outbox schema upgrade",),
)
def upgrade() -> None:
    """Bring the schema to this release, in one transaction; a second time does nothing."""
    from outbox import schema as tables

    run = current()
    url = run.settings.require_database()
    before = tables.current(url)
    tables.upgrade(url)
    after = tables.current(url)
    show_item(run, {"before": before, "revision": after, "changed": before != after})


@schema.command("check", finds="they differ", examples=("outbox schema check",))
def check() -> None:
    """Compare the database with this release."""
    from outbox import schema as tables

    run = current()
    found, wanted = tables.current(run.settings.require_database()), tables.head()
    problem = tables.advice(found)
    show_item(run, {"revision": found, "wanted": wanted, "ok": problem is None, "problem": problem})
    if problem is not None:
        raise CheckFound


@schema.command(
    "sql",
    examples=(
        "outbox schema sql | psql -v ON_ERROR_STOP=1",
        "outbox schema sql --from 1_0006 | psql -v ON_ERROR_STOP=1",
    ),
)
@click.option(
    "--from",
    "found",
    metavar="REVISION",
    help="The revision that the database is at, as `outbox schema check` tells it; without it all "
    "is created.",
)
def sql(found: str | None) -> None:
    """Print the migrations as SQL, for a database that only a DBA may change."""
    from outbox import schema as tables

    text = tables.sql(found)
    if current().json:
        show_json({"sql": text})
    else:
        click.echo(text, nl=False)


COMMANDS = (schema,)

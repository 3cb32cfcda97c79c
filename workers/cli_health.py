"""``outbox health``: what ought to be moving and is not, from Postgres."""

from __future__ import annotations

import click

from workers.cli_errors import CheckFound
from workers.cli_output import Column, show_json, show_rows
from workers.cli_run import Verb, current

_LIST = (Column("state"), Column("what", folds=True))


@click.command("health", cls=Verb, examples=("outbox health", "outbox health --json"))
def health() -> None:
    """Tell whether everything moves. Exit code 3 where something does not."""
    from resolvers.health import health as examine

    run = current()
    found = examine(run.store, run.directory)
    if run.json:
        show_json(found)
    else:
        rows = [
            *({"state": "failed", "what": text} for text in found["problems"]),
            *({"state": "open", "what": text} for text in found["notices"]),
        ]
        show_rows(run, _LIST, rows or [{"state": "ok", "what": "everything moves"}])
    if not found["ok"]:
        raise CheckFound


COMMANDS = (health,)

"""``outbox health``: what ought to be moving and is not, from Postgres."""

from __future__ import annotations

from typing import Any

import click

from workers.cli_errors import CheckFound
from workers.cli_output import Column, show_json, show_rows
from workers.cli_run import Verb, current
from workers.cli_watch import show_or_watch, watched

_LIST = (Column("state"), Column("what", folds=True))


@click.command(
    "health",
    cls=Verb,
    finds="something does not move (never with --watch)",
    examples=(
        "outbox health",
        "outbox health --json",
        "outbox health --watch --every 5s",
    ),
)
@watched
def health(*, watch: bool, every_s: float) -> None:
    """Tell whether everything moves.

    Heartbeats, due writes, stored webhooks and pages that wait too long are problems. Open
    questions and closed switches are told beside them: a person knows of them already.
    """
    from resolvers.health import health as examine

    run = current()

    def show(found: dict[str, Any]) -> None:
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

    show_or_watch(
        run,
        lambda: examine(run.store, run.directory),
        show,
        lambda found: found,
        watch=watch,
        every_s=every_s,
    )


COMMANDS = (health,)

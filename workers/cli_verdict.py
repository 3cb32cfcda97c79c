"""A verb that changes something: tried, asked about, done, and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from workers.cli_confirm import ask, require_somebody
from workers.cli_output import printable, say, show_json
from workers.cli_run import Run

if TYPE_CHECKING:
    from resolvers.triage_case import Ruling


def decide(
    run: Run,
    verb: Callable[[bool], Ruling],
    question: str,
    card: Callable[[], list[tuple[str, str]]],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Runs ``verb`` (its argument is "dry run"). A person is asked only what would be done: what
    is refused, or has been done before, is told at once."""
    if dry_run or yes:
        show_ruling(run, verb(dry_run))
        return
    require_somebody()
    tried = verb(True)
    if not tried.dry_run:  # there is nothing to do
        show_ruling(run, tried)
        return
    ask(question, card())
    show_ruling(run, verb(False))


def show_ruling(run: Run, ruling: Ruling) -> None:
    """The ruling on stdout, in one line or one object."""
    if run.json:
        show_json(ruling.as_json())
        return
    about = ruling.intent_id or ruling.escalation_id or ruling.holder
    click.echo(f"{printable(str(about))}\t{printable(ruling.said)}")
    if ruling.dry_run:
        say("dry run: nothing was changed")

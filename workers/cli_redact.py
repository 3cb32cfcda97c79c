"""``outbox intent redact``: empty a settled intent of what is personal."""

from __future__ import annotations

import click

from workers.cli_confirm import card
from workers.cli_intent import INTENT, intent
from workers.cli_run import changes, confirmed, current
from workers.cli_verdict import decide


@intent.command(
    "redact",
    examples=(
        "outbox intent redact 4f1a9c --reason 'erasure request 118' --dry-run",
        "outbox intent redact 4f1a9c --reason 'erasure request 118' --yes --json",
    ),
)
@INTENT
@changes
@confirmed
def redact(intent_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Empty a settled intent of arguments, request, receipt and webhook bodies, for good.

    Key, hash, receipt id, join keys and amounts stay: a repeat of the write still finds it. Refused
    while a question about it is open or a consumer has not had its result.
    """
    from resolvers.redacting import redact as emptied
    from resolvers.triage_case import read_intent_case

    run = current()
    case = read_intent_case(run.store, intent_id)
    decide(
        run,
        lambda dry: emptied(run.store, case, by=run.actor, reason=reason, dry_run=dry),
        "Empty it? There is no way back.",
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


COMMANDS: tuple[click.Command, ...] = ()  # its group is another file's

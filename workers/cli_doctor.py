"""``outbox doctor``: what must hold, asked of the ledger itself."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from workers.cli_errors import CheckFound
from workers.cli_output import Column, say, show_rows
from workers.cli_run import Verb, current

# It may read every row there is; a send never waits for it.
_STATEMENT_S = 120.0
_LIST = (
    Column("check"),
    Column("count", right=True),
    Column("what", folds=True),
    Column("ids", rank=1, folds=True),
)


@click.command(
    "doctor",
    cls=Verb,
    examples=("outbox doctor", "outbox doctor --accept --reason 'clock was set back by the host'"),
)
@click.option(
    "--accept", is_flag=True, help="Accept a step of the database's clock: re-sends go on."
)
@click.option("--reason", default="", help="Why, for the audit log. Required with --accept.")
@click.option("--dry-run", is_flag=True, help="With --accept: only say what would be accepted.")
def doctor(*, accept: bool, reason: str, dry_run: bool) -> None:
    """Check what must hold, and change nothing. Exit code 3 where something is found."""
    from outbox.store import checks, switches
    from outbox.store.connection import Store, probe
    from resolvers.doctoring import findings
    from resolvers.triage_case import said_by

    if accept and not reason.strip():
        raise click.UsageError("--accept needs --reason")
    run = current()
    if accept:
        by, reason = said_by(run.actor, reason)
        with run.store.transaction() as tx:
            doubts = checks.clock_doubts(tx)
            if doubts and not dry_run:
                switches.accept_clock(tx, by=by, reason=reason)
        word = "would accept" if dry_run else "accepted"
        for row in doubts:
            say(f"{word}: {row['reason']}")
        if not doubts:
            say("nothing to accept: the clock is not in doubt")
    patient = replace(run.settings, statement_timeout_s=_STATEMENT_S)
    probe(patient)
    store = Store(patient, size=1)
    try:
        found = findings(store, run.directory)
    finally:
        store.close()
    show_rows(run, _LIST, [asdict(f) for f in found])
    if found:
        raise CheckFound
    if not run.json:
        say("all is as it must be")


COMMANDS = (doctor,)

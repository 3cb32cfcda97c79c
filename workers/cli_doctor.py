"""``outbox doctor``: what must hold, asked of the ledger itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from workers.cli_errors import CheckFound
from workers.cli_output import Column, plain, say, show_json, show_rows
from workers.cli_run import Run, Verb, current

if TYPE_CHECKING:
    from resolvers.doctoring_setup import Finding

# Each question may take so long; one that takes longer is told as not checked.
_STATEMENT_S = 20.0
_LIST = (
    Column("check"),
    Column("rule", rank=2, right=True),
    Column("ok"),
    Column("count", right=True),
    Column("detail", folds=True),
    Column("sample", rank=1, folds=True),
)


@click.command(
    "doctor",
    cls=Verb,
    finds="something is not as it must be",
    examples=("outbox doctor", "outbox doctor --accept --reason 'clock was set back by the host'"),
)
@click.option(
    "--accept", is_flag=True, help="Accept a step of the database's clock: re-sends go on."
)
@click.option("--reason", default="", help="Why, for the audit log. Required with --accept.")
@click.option("--dry-run", is_flag=True, help="With --accept: only say what would be accepted.")
def doctor(*, accept: bool, reason: str, dry_run: bool) -> None:
    """Check what must hold, and change nothing. Exit code 3 where something is found.

    Shown is what is not as it must be; --json has the checks that passed beside it.
    """
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
    patient = replace(
        run.settings, statement_timeout_s=_STATEMENT_S, idle_in_transaction_timeout_s=_STATEMENT_S
    )
    probe(patient)
    store = Store(patient, size=1)
    try:
        found = findings(store, run.directory)
    finally:
        store.close()
    _show(run, found)


def _show(run: Run, found: Sequence[Finding]) -> None:
    """What is not as it must be; JSON has the checks that passed beside it."""
    rows = [asdict(f) for f in found]
    wrong = [row for row in rows if not row["ok"]]
    if run.json:
        items, passed = (
            [{c.name: plain(row[c.name]) for c in _LIST} for row in rows if row["ok"] is ok]
            for ok in (False, True)
        )
        show_json({"ok": not wrong, "items": items, "next": None, "passed": passed})
    else:
        # A person sees that by its being there.
        columns = [c for c in _LIST if c.name != "ok" or not sys.stdout.isatty()]
        show_rows(run, columns, wrong)
    if wrong:
        raise CheckFound
    if not run.json:
        say(f"all is as it must be: {len(found)} checks")


COMMANDS = (doctor,)

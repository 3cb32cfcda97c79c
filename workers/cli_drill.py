"""``outbox drill``: the promise shown on real parts, and what other strategies make of it."""

from __future__ import annotations

import click

from workers.cli_run import Noun, current

_WRONG = "a row of ours is wrong; the table says which"


@click.group("drill", cls=Noun)
def drill() -> None:
    """Show the promise on real parts; needs no setting and touches no configured database."""


@drill.command(
    "strategies",
    finds=_WRONG,
    examples=("outbox drill strategies", "outbox drill strategies --json"),
)
def strategies() -> None:
    """Charge by five strategies under lost answers, late commits and redeliveries.

    Counts charges in the vendor's own ledger beside what the agent was told.
    """
    from workers.drills import report, strategies

    report.report(current(), strategies.COLUMNS, strategies.LEGEND, strategies.run)


@drill.command(
    "staging",
    finds=_WRONG,
    examples=("outbox drill staging", "outbox drill staging --json"),
)
def staging() -> None:
    """Stage six mishaps of agents and vendors: one effect each.

    Shows what the agent was told in each, and what the vendor's ledger counts.
    """
    from workers.drills import report, staging

    report.report(current(), staging.COLUMNS, staging.LEGEND, staging.run)


@drill.command(
    "leases",
    finds=_WRONG,
    examples=("outbox drill leases", "outbox drill leases --json"),
)
def leases() -> None:
    """Let answers come after their lease, and check four properties of each call."""
    from workers.drills import leases, report

    report.report(current(), leases.COLUMNS, leases.LEGEND, leases.run)


@drill.command(
    "timelines",
    finds=_WRONG,
    examples=("outbox drill timelines", "outbox drill timelines --json"),
)
def timelines() -> None:
    """Enumerate 4,000 timelines a policy: what replies say beside what the world says."""
    from workers.drills import report
    from workers.drills.timelines import COLUMNS, LEGEND, run

    report.report(current(), COLUMNS, LEGEND, run)


@drill.command(
    "faults",
    finds=_WRONG,
    examples=("outbox drill faults", "outbox drill faults --json"),
)
def faults() -> None:
    """Strike eleven write paths with the LIMBO benchmark's twelve faults, on simulated time.

    Under both contracts, native and keys everywhere, beside the published figures.
    """
    from workers.drills import faults, report

    report.report(current(), faults.COLUMNS, faults.LEGEND, faults.run)


COMMANDS = (drill,)

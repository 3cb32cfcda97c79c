"""Asking before what can move money. Never off a terminal: then ``--yes`` must be given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from workers.cli_errors import Declined
from workers.cli_output import money, printable, say, span

if TYPE_CHECKING:
    from resolvers.triage_case import Case


def card(case: Case) -> list[tuple[str, str]]:
    """What a person must see before a verdict: whose write, how much, how old, how long left."""
    row = case.asked
    age_s = (case.now - row.created_at).total_seconds()
    amount = money(row.amount_minor, row.currency)
    left = "not sent, or no key is honoured"
    if row.window_ends_at is not None:
        left_s = (row.window_ends_at - case.now).total_seconds()
        left = span(left_s) if left_s > 0 else "none: it has closed"
    place = (f"{row.vendor}/{row.account}", row.mode or "not sent yet", row.vendor_account)
    reasons = ", ".join(case.escalation["reasons"]) if case.escalation else "none"
    return [
        ("intent", str(row.id)),
        ("tenant", row.tenant),
        ("account", ", ".join(p for p in place if p)),
        ("tool", f"{row.tool} ({row.side_effect}, {row.operation})"),
        ("amount", f"{amount} (minor units)" if amount else "none"),
        ("age", span(age_s)),
        ("window left", left),
        ("status", f"{row.status}, doubt {row.doubt}" + (f", veto {row.veto}" * bool(row.veto))),
        ("escalation", reasons),
    ]


def require_somebody() -> None:
    """A usage error where nobody can answer."""
    if not sys.stdin.isatty():
        raise click.UsageError("stdin is no terminal, so nobody can be asked: give --yes")


def ask(question: str, shown: list[tuple[str, str]]) -> None:
    """Shows the card on stderr and asks. Raises ``Declined`` for anything but a yes."""
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        say(f"  {name:<{width}}  {value}")
    try:
        agreed = click.confirm(printable(question), default=False, err=True)
    except click.Abort:
        raise Declined from None
    if not agreed:
        raise Declined

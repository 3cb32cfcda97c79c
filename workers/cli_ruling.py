"""A person's answers to a question: ``outbox escalation ack``, ``mute``, ``landed``,
``not-landed``, ``resend`` and ``close``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from workers.cli_complete import offer
from workers.cli_confirm import card
from workers.cli_run import Run, Verb, changes, confirmed, current
from workers.cli_span import MOMENT, SPAN
from workers.cli_verdict import decide, show_ruling

if TYPE_CHECKING:
    from resolvers.triage_case import Case, Ruling

ESCALATION = click.argument(
    "escalation_id", metavar="ESCALATION", shell_complete=offer("escalation")
)
_HOLD_DAYS = 30


@click.command(
    "ack",
    cls=Verb,
    examples=(
        "outbox escalation ack 9b20d4 --reason 'asking the vendor'",
        "outbox escalation ack 9b20d4 --for 30m --reason 'asking the vendor'",
    ),
)
@ESCALATION
@click.option(
    "--for",
    "for_s",
    type=SPAN,
    help=f"How long: 30m, 2h; at most {_HOLD_DAYS}d.  [default: 1h]",
)
@click.option("--until", type=MOMENT, help="Until when, instead of --for; UTC without a zone.")
@changes
def ack(
    escalation_id: str, *, for_s: float | None, until: datetime | None, reason: str, dry_run: bool
) -> None:
    """Say that you look at it: no page and no re-send until then.

    An approved re-send is withdrawn at once. `resend` ends an acknowledgement.
    """
    from resolvers import holding
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    ruling = holding.ack(
        run.store,
        run.directory,
        case,
        by=run.actor,
        reason=reason,
        for_s=_span(for_s, until, case.now, holding.ACK_S),
        dry_run=dry_run,
    )
    show_ruling(run, ruling)


@click.command(
    "mute",
    cls=Verb,
    examples=(
        "outbox escalation mute 9b20d4 --for 2h --reason 'known outage'",
        "outbox escalation mute 9b20d4 --until 2026-11-30T09:00Z --reason 'outage'",
    ),
)
@ESCALATION
@click.option("--for", "for_s", type=SPAN, help=f"How long: 30m, 2h, 1d; at most {_HOLD_DAYS}d.")
@click.option("--until", type=MOMENT, help="Until when, instead of --for; UTC without a zone.")
@changes
def mute(
    escalation_id: str, *, for_s: float | None, until: datetime | None, reason: str, dry_run: bool
) -> None:
    """Send no page about it until then. It stays open and listed; an end must be given."""
    from resolvers import holding
    from resolvers.triage_case import read_case

    if for_s is None and until is None:
        raise click.UsageError("a mute needs an end: give --for or --until")
    run = current()
    case = read_case(run.store, escalation_id)
    ruling = holding.mute(
        run.store,
        case,
        by=run.actor,
        reason=reason,
        for_s=_span(for_s, until, case.now, 0.0),
        dry_run=dry_run,
    )
    show_ruling(run, ruling)


def _span(for_s: float | None, until: datetime | None, now: datetime, default_s: float) -> float:
    if for_s is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    if until is not None:
        return (until - now).total_seconds()
    return default_s if for_s is None else for_s


@click.command(
    "landed",
    cls=Verb,
    examples=(
        "outbox escalation landed 9b20d4 --receipt pi_3Q --reason 'seen' --dry-run",
        "outbox escalation landed 9b20d4 --receipt pi_3Q --reason 'seen' --yes",
    ),
)
@ESCALATION
@click.option(
    "--receipt",
    default="",
    help="The object's id at the vendor, which is asked for it. Required where it can be asked.",
)
@changes
@confirmed
def landed(escalation_id: str, *, receipt: str, reason: str, dry_run: bool, yes: bool) -> None:
    """Rule that the write landed, by the object that the vendor shows now.

    Refused where the vendor has no such object, or it is of another intent, account, mode or
    amount. On a contradiction: rules which object stands.
    """
    from resolvers import triage

    _rule(
        escalation_id,
        lambda run, case, dry: triage.landed(
            run.store, run.directory, case, receipt, by=run.actor, reason=reason, dry_run=dry
        ),
        f"Rule that it landed{f' as {receipt}' if receipt else ''}?",
        yes=yes,
        dry_run=dry_run,
    )


@click.command(
    "not-landed",
    cls=Verb,
    examples=(
        "outbox escalation not-landed 9b20d4 --reason 'nothing is there' --dry-run",
        "outbox escalation not-landed 9b20d4 --reason 'nothing is there' --yes",
    ),
)
@ESCALATION
@changes
@confirmed
def not_landed(escalation_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Rule that the write never landed, once it no longer can and the vendor shows nothing."""
    from resolvers import triage

    _rule(
        escalation_id,
        lambda run, case, dry: triage.not_landed(
            run.store, run.directory, case, by=run.actor, reason=reason, dry_run=dry
        ),
        "Rule that it never landed?",
        yes=yes,
        dry_run=dry_run,
    )


@click.command(
    "resend",
    cls=Verb,
    examples=(
        "outbox escalation resend 9b20d4 --reason 'the vendor lost it' --dry-run",
        "outbox escalation resend 9b20d4 --reason 'the vendor lost it' --yes",
    ),
)
@ESCALATION
@changes
@confirmed
def resend(escalation_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Approve one more send under the same key, inside its window; ends an acknowledgement."""
    from resolvers import triage

    _rule(
        escalation_id,
        lambda run, case, dry: triage.resend(
            run.store, run.directory, case, by=run.actor, reason=reason, dry_run=dry
        ),
        "Send it again under the same key?",
        yes=yes,
        dry_run=dry_run,
    )


def _rule(
    escalation_id: str,
    verdict: Callable[[Run, Case, bool], Ruling],
    question: str,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """One verdict on what was read now; its last argument is "dry run"."""
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    decide(
        run,
        lambda dry: verdict(run, case, dry),
        question,
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


@click.command(
    "close",
    cls=Verb,
    examples=("outbox escalation close 9b20d4 --reason 'endpoint of staging corrected'",),
)
@ESCALATION
@changes
def close(escalation_id: str, **said: Any) -> None:
    """Close a question that is about no intent (mismatched events). Others close by a verdict."""
    from resolvers import holding

    run = current()
    show_ruling(run, holding.close(run.store, escalation_id, by=run.actor, **said))


COMMANDS = (ack, mute, landed, not_landed, resend, close)

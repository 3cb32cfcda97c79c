"""``outbox escalation``: the open questions, and a person's answers to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from workers.cli_confirm import card
from workers.cli_output import Column, show_item, show_rows
from workers.cli_run import Noun, changes, confirmed, current, page
from workers.cli_span import MOMENT, SPAN
from workers.cli_verdict import decide, show_ruling

_LIST = (
    Column("id"),
    Column("reasons", folds=True),
    Column("window_left_s", rank=1, kind="left", head="left"),
    Column("open_s", rank=3, kind="span"),
    Column("tenant", rank=4),
    Column("tool", rank=5),
    Column("account", rank=6),
    Column("amount_minor", rank=2, right=True, kind="money"),
    Column("currency", rank=2),
    Column("status", rank=7),
    Column("acked_by", rank=8),
    Column("muted_until", rank=9),
    Column("intent_id", rank=10),
    Column("holder", rank=11),
)
_MOST_SKIPPED = 100_000


@click.group("escalation", cls=Noun)
def escalation() -> None:
    """Escalations: open questions for a person."""


@escalation.command(
    "list", examples=("outbox escalation list", "outbox escalation list --all --json")
)
@click.option("--all", "everything", is_flag=True, help="Closed ones too.")
@page
def list_(*, everything: bool, after: int | None, limit: int) -> None:
    """List open questions, the one whose window ends first on top."""
    from outbox.store import reading

    run = current()
    skip = after or 0
    if skip > _MOST_SKIPPED:
        raise click.BadParameter("must be the `next` of the page before", param_hint="--after")
    with run.store.transaction() as tx:
        rows = reading.escalations(tx, everything=everything, limit=skip + limit)
    shown = [_row(row) for row in rows[skip:]]
    show_rows(run, _LIST, shown, skip + limit if len(rows) == skip + limit else None)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    place = "/".join(str(row[n] or row["detail"].get(n) or "") for n in ("vendor", "account"))
    return {**row, "account": place.strip("/") or None}


@escalation.command("show", examples=("outbox escalation show 9b20d4",))
@click.argument("escalation_id", metavar="ESCALATION")
def show(escalation_id: str) -> None:
    """Show one question, the write it is about, and its pages."""
    from outbox.errors import NotFound
    from outbox.store import reading
    from resolvers.page_text import in_words
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    question = case.escalation
    if question is None:
        raise NotFound("id", f"intent {case.asked.id} has no escalation")
    with run.store.transaction() as tx:
        pages = reading.pages_of(tx, question["id"])
    sent = sum(1 for page in pages if page["sent_at"] is not None)
    body = {**question, "pages": pages, "pages_sent": f"{sent} of {len(pages)}"}
    if case.intent is not None:
        body |= {name.replace(" ", "_"): value for name, value in card(case)[1:-1]}
        body["next"] = f"outbox intent history {case.intent.id}"
    body["why"] = question["detail"].get("why")
    body["objects"] = question["detail"].get("objects", [])
    body["found"] = in_words(question["detail"]) or None
    show_item(run, body)


@escalation.command(
    "ack",
    examples=("outbox escalation ack 9b20d4 --for 30m --reason 'asking the vendor'",),
)
@click.argument("escalation_id", metavar="ESCALATION")
@click.option("--for", "for_s", type=SPAN, default=None, help="How long: 30m, 2h. 1h by default.")
@click.option("--until", type=MOMENT, default=None, help="Until when, instead of --for.")
@changes
def ack(
    escalation_id: str, *, for_s: float | None, until: datetime | None, reason: str, dry_run: bool
) -> None:
    """Say that you look at it: no page and no re-send until then."""
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


@escalation.command(
    "mute",
    examples=("outbox escalation mute 9b20d4 --until 2026-11-30T09:00Z --reason 'known outage'",),
)
@click.argument("escalation_id", metavar="ESCALATION")
@click.option("--for", "for_s", type=SPAN, default=None, help="How long: 30m, 2h, 1d.")
@click.option("--until", type=MOMENT, default=None, help="Until when, instead of --for.")
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


@escalation.command(
    "landed",
    examples=("outbox escalation landed 9b20d4 --receipt pi_3Q --reason 'seen in the dashboard'",),
)
@click.argument("escalation_id", metavar="ESCALATION")
@click.option(
    "--receipt",
    default="",
    help="The object's id at the vendor, which is asked for it. Required where it can be asked.",
)
@changes
@confirmed
def landed(escalation_id: str, *, receipt: str, reason: str, dry_run: bool, yes: bool) -> None:
    """Rule that the write landed, by the object that the vendor shows now."""
    from resolvers import triage
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    decide(
        run,
        lambda dry: triage.landed(
            run.store, run.directory, case, receipt, by=run.actor, reason=reason, dry_run=dry
        ),
        f"Rule that it landed{f' as {receipt}' if receipt else ''}?",
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


@escalation.command(
    "not-landed",
    examples=("outbox escalation not-landed 9b20d4 --reason 'the vendor has nothing of it'",),
)
@click.argument("escalation_id", metavar="ESCALATION")
@changes
@confirmed
def not_landed(escalation_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Rule that the write never landed, once it no longer can and the vendor shows nothing."""
    from resolvers import triage
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    decide(
        run,
        lambda dry: triage.not_landed(
            run.store, run.directory, case, by=run.actor, reason=reason, dry_run=dry
        ),
        "Rule that it never landed?",
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


@escalation.command(
    "resend", examples=("outbox escalation resend 9b20d4 --reason 'the vendor lost it'",)
)
@click.argument("escalation_id", metavar="ESCALATION")
@changes
@confirmed
def resend(escalation_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Approve one more send under the same key, inside its window; ends an acknowledgement."""
    from resolvers import triage
    from resolvers.triage_case import read_case

    run = current()
    case = read_case(run.store, escalation_id)
    decide(
        run,
        lambda dry: triage.resend(
            run.store, run.directory, case, by=run.actor, reason=reason, dry_run=dry
        ),
        "Send it again under the same key?",
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


@escalation.command(
    "close", examples=("outbox escalation close 9b20d4 --reason 'endpoint of staging corrected'",)
)
@click.argument("escalation_id", metavar="ESCALATION")
@changes
def close(escalation_id: str, *, reason: str, dry_run: bool) -> None:
    """Close a question that is about no intent (mismatched events). Others close by a verdict."""
    from resolvers import holding

    run = current()
    show_ruling(
        run,
        holding.close(run.store, escalation_id, by=run.actor, reason=reason, dry_run=dry_run),
    )


COMMANDS = (escalation,)

"""``outbox escalation``: the open questions, and all that is known about one."""

from __future__ import annotations

from typing import Any

import click

from workers import cli_evidence, cli_evidence_text, cli_ruling
from workers.cli_filters import placed, whose
from workers.cli_output import Column, named, show_rows
from workers.cli_ruling import ESCALATION
from workers.cli_run import Noun, current, page_of
from workers.cli_span import PLACE
from workers.cli_watch import show_or_watch, watched

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


@click.group("escalation", cls=Noun)
def escalation() -> None:
    """Escalations: open questions for a person."""


@escalation.command(
    "list",
    examples=(
        "outbox escalation list",
        "outbox escalation list --reason window --vendor stripe --not-acked",
        "outbox escalation list --watch --every 5s",
        "outbox escalation list --all --json",
    ),
)
@click.option("--all", "everything", is_flag=True, help="Closed ones too, behind the open ones.")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    help="Only with this reason, as ttl, window, worker_lost, contradiction; may be repeated.",
)
@whose
@click.option(
    "--acked/--not-acked", default=None, help="Only those that somebody, or nobody, looks at now."
)
@click.option(
    "--muted/--not-muted", default=None, help="Only those that are, or are not, muted now."
)
@page_of(PLACE)
@watched
def list_(*, reasons: tuple[str, ...], watch: bool, every_s: float, **asked: Any) -> None:
    """List open questions, the one whose window ends first on top."""
    from outbox.store import listing

    run = current()
    filters = placed(asked)

    def read() -> list[dict[str, Any]]:
        with run.store.transaction() as tx:
            return listing.escalations(tx, reasons=list(reasons) or None, **filters)

    def show(rows: list[dict[str, Any]]) -> None:
        next_ = rows[-1]["place"] if len(rows) == filters["limit"] else None
        show_rows(run, _LIST, [_row(row) for row in rows], next_)

    show_or_watch(
        run,
        read,
        show,
        lambda rows: [named(_LIST, _row(row)) for row in rows],
        watch=watch,
        every_s=every_s,
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    place = "/".join(str(row[n] or row["detail"].get(n) or "") for n in ("vendor", "account"))
    return {
        **row,
        "account": place.strip("/") or None,
        # Who looked once, and a mute that has ended, are for `show`.
        "acked_by": row["acked_by"] if row["acked"] else None,
        "muted_until": row["muted_until"] if row["muted"] else None,
    }


@escalation.command(
    "show",
    examples=(
        "outbox escalation show 9b20d4",
        "outbox escalation show 9b20d4 --with-request --json",
        "outbox escalation show 9b20d4 --offline --watch",
    ),
)
@ESCALATION
@click.option(
    "--with-request",
    is_flag=True,
    help="Also the parameters of the request: they may hold personal data.",
)
@click.option(
    "--offline", is_flag=True, help="Do not ask the vendor. So it is with --watch, always."
)
@watched
def show(
    escalation_id: str, *, with_request: bool, offline: bool, watch: bool, every_s: float
) -> None:
    """Lay the evidence of one question side by side, and what each verdict would do.

    What was asked for and how often it was sent, what the ledger saw of it, what the vendor shows
    of it now, how long is left; and for each verdict whether it would be allowed right now, what
    the status would be, and the command to type. Nothing is changed.
    """
    run = current()
    show_or_watch(
        run,
        lambda: cli_evidence.body(
            run, escalation_id, with_request=with_request, ask=not (offline or watch)
        ),
        lambda body: cli_evidence_text.show(run, body),
        lambda body: body,
        watch=watch,
        every_s=every_s,
    )


for _command in cli_ruling.COMMANDS:
    escalation.add_command(_command)

COMMANDS = (escalation,)

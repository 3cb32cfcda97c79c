"""``outbox webhook``: what vendors have told us, and joining it again."""

from __future__ import annotations

import click

from workers.cli_output import Column, show_rows
from workers.cli_run import Noun, changes, current, page
from workers.cli_verdict import show_ruling

_LIST = (
    Column("id", right=True),
    Column("event_id", kind="event"),
    Column("state"),
    Column("kind", rank=1),
    Column("received_at", rank=2),
    Column("account", rank=5),
    Column("mode", rank=6),
    Column("tries", rank=7, right=True),
    Column("deliveries", rank=8, right=True),
    Column("kept", rank=9),
    Column("detail", rank=4, folds=True),
    Column("intent_id", rank=3),
)


@click.group("webhook", cls=Noun)
def webhook() -> None:
    """Webhooks: events that vendors delivered."""


@webhook.command("list", examples=("outbox webhook list --state parked",))
@click.option(
    "--state",
    type=click.Choice(("new", "joined", "parked", "foreign", "mismatch")),
    default=None,
    help="Only events in this state.",
)
@page
def list_(state: str | None, after: int | None, limit: int) -> None:
    """List the inbox, newest first."""
    from outbox.store import reading

    run = current()
    with run.store.transaction() as tx:
        rows = reading.webhooks(tx, state=state, limit=limit, after=after)
    shown = [{**row, "account": f"{row['vendor']}/{row['account']}"} for row in rows]
    show_rows(run, _LIST, shown, rows[-1]["id"] if len(rows) == limit else None)


@webhook.command("replay", examples=("outbox webhook replay 17 --reason 'intent was restored'",))
@click.argument("webhook_id", metavar="WEBHOOK")
@changes
def replay(webhook_id: str, *, reason: str, dry_run: bool) -> None:
    """Join a kept event again."""
    from resolvers import holding

    run = current()
    ruling = holding.replay(run.store, webhook_id, by=run.actor, reason=reason, dry_run=dry_run)
    show_ruling(run, ruling)


COMMANDS = (webhook,)

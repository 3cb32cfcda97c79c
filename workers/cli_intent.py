"""``outbox intent``: see what agents asked for, and what became of it."""

from __future__ import annotations

import json
from typing import Any

import click

from workers.cli_confirm import card
from workers.cli_output import Column, show_item, show_rows
from workers.cli_run import Noun, changes, confirmed, current, page
from workers.cli_span import SPAN
from workers.cli_verdict import decide

_STATUSES = (
    "awaiting_approval",
    "pending",
    "in_flight",
    "unknown",
    "retryable",
    "succeeded",
    "failed_poison",
    "cancelled",
)
_LIST = (
    Column("id"),
    Column("status"),
    Column("tool", rank=3),
    Column("tenant", rank=4),
    Column("account", rank=5),
    Column("amount_minor", rank=1, right=True, kind="money"),
    Column("currency", rank=1),
    Column("doubt", rank=7, right=True),
    Column("told", rank=8),
    Column("age_s", rank=2, kind="span"),
    Column("receipt_id", rank=6),
    Column("run_id", rank=9),
)
_HISTORY = (
    Column("at"),
    Column("actor", rank=2),
    Column("kind"),
    Column("what", rank=1),
    Column("detail", folds=True),
)


@click.group("intent", cls=Noun)
def intent() -> None:
    """Intents: one write each that somebody wants done once."""


@intent.command(
    "list",
    examples=(
        "outbox intent list --status unknown --older 1h",
        "outbox intent list --tenant acme --json",
    ),
)
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    multiple=True,
    help="Only these statuses; may be repeated.",
)
@click.option("--vendor", default=None, help="Only this vendor's.")
@click.option("--tool", default=None, help="Only this tool's.")
@click.option("--tenant", default=None, help="Only this tenant's.")
@click.option("--run", "run_id", default=None, help="Only this run's (a job or a conversation).")
@click.option(
    "--older", type=SPAN, default=None, help="Only those at least so old: 90s, 5m, 2h, 1d."
)
@page
def list_(status: tuple[str, ...], after: int | None, limit: int, **filters: Any) -> None:
    """List intents, newest first."""
    from outbox.store import intents, reading

    run = current()
    older_s = filters.pop("older")
    with run.store.transaction() as tx:
        rows = reading.intents(
            tx,
            **filters,
            status=list(status) or None,
            older_s=older_s,
            after=after,
            limit=limit,
        )
        now = intents.now(tx)
    shown = [
        {
            **{name: getattr(row, name) for name in ("id", "status", "tool", "tenant", "doubt")},
            "account": f"{row.vendor}/{row.account}",
            "amount_minor": row.amount_minor,
            "currency": row.currency,
            "told": _told(row),
            "age_s": (now - row.created_at).total_seconds(),
            "receipt_id": row.receipt_id,
            "run_id": row.run_id,
        }
        for row in rows
    ]
    show_rows(run, _LIST, shown, rows[-1].seq if len(rows) == limit else None)


def _told(row: Any) -> str:
    from outbox.states import told

    return told(row.state, row.doubt, contradicted=row.contradicted_at is not None).value


_SHOWN = [
    "id",
    "status",
    "doubt",
    "veto",
    "business_status",
    "business_word",
    "receipt_id",
    "failure_code",
    "settled_by",
    "settled_at",
    "contradicted_at",
    "told_at",
    "created_at",
    "tenant",
    "vendor",
    "account",
    "mode",
    "vendor_account",
    "tool",
    "operation",
    "side_effect",
    "run_id",
    "epoch",
    "once_per",
    "occurrence",
    "supersedes",
    "amount_minor",
    "currency",
    "lane",
    "attempts",
    "not_sent_count",
    "crashes",
    "resends",
    "looks",
    "absent_looks",
    "first_sent_at",
    "last_sent_at",
    "last_lease_end",
    "lease_until",
    "lease_owner",
    "due_at",
    "ttl_at",
    "window_ends_at",
    "escalate_at",
    "api_version",
    "version",
    "note",
]


@intent.command(
    "show",
    examples=("outbox intent show 4f1a9c", "outbox intent show 4f1a9c --with-request --json"),
)
@click.argument("intent_id", metavar="INTENT")
@click.option(
    "--with-request",
    is_flag=True,
    help="Also the arguments, the frozen request and the receipt: they may hold personal data.",
)
def show(intent_id: str, *, with_request: bool) -> None:
    """Show one intent, without what may be personal."""
    from outbox.store import reading
    from resolvers.triage_case import read_intent_case

    run = current()
    case = read_intent_case(run.store, intent_id)
    row = case.asked
    with run.store.transaction() as tx:
        attempts = reading.attempts(tx, row.id)
        webhooks = reading.webhooks_of(tx, row.id)
    question = case.escalation
    body: dict[str, Any] = {name: getattr(row, name) for name in _SHOWN}
    body["told"] = _told(row)
    body["age_s"] = (case.now - row.created_at).total_seconds()
    body["window_left_s"] = None
    if row.window_ends_at is not None:
        body["window_left_s"] = (row.window_ends_at - case.now).total_seconds()
    body["escalation"] = str(question["id"]) if question and not question["closed_at"] else None
    body["request_sha256"] = bytes(row.request_sha256).hex()
    body["key"] = bytes(row.key).hex()
    body["attempt_log"] = attempts
    body["webhooks"] = webhooks
    if with_request:
        for name in ("identity", "guard", "args", "request", "receipt"):
            text = getattr(row, name)
            body[name] = json.loads(text) if text and run.json else text
    show_item(run, body, {"age_s": "span", "window_left_s": "left"})


@intent.command("history", examples=("outbox intent history 4f1a9c",))
@click.argument("intent_id", metavar="INTENT")
def history(intent_id: str) -> None:
    """Tell what happened to one intent, oldest first: attempts, evidence, people."""
    from outbox.store import intents, reading

    run = current()
    with run.store.transaction() as tx:
        rows = reading.history(tx, intents.expand(tx, "intent", intent_id))
    show_rows(run, _HISTORY, rows)


@intent.command(
    "cancel", examples=("outbox intent cancel 4f1a9c --reason 'customer withdrew' --dry-run",)
)
@click.argument("intent_id", metavar="INTENT")
@changes
@confirmed
def cancel(intent_id: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Withdraw an intent of which no byte ever left; every other is refused."""
    from resolvers import triage
    from resolvers.triage_case import read_intent_case

    run = current()
    case = read_intent_case(run.store, intent_id)
    decide(
        run,
        lambda dry: triage.cancel(run.store, case, by=run.actor, reason=reason, dry_run=dry),
        "Cancel it?",
        lambda: card(case),
        yes=yes,
        dry_run=dry_run,
    )


COMMANDS = (intent,)

"""``outbox intent``: see what agents asked for, and what became of it."""

from __future__ import annotations

import json
from typing import Any

import click

from workers.cli_complete import offer
from workers.cli_confirm import card
from workers.cli_filters import placed, whose
from workers.cli_output import Column, named, show_item, show_rows
from workers.cli_run import Noun, Run, changes, confirmed, current, page
from workers.cli_span import SPAN
from workers.cli_verdict import decide
from workers.cli_watch import show_or_watch, watched

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
INTENT = click.argument("intent_id", metavar="INTENT", shell_complete=offer("intent"))
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
        "outbox intent list --status unknown --older-than 1h",
        "outbox intent list --unsettled --escalated --vendor stripe --watch",
        "outbox intent list --tenant acme --newer-than 2h --json",
    ),
)
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    multiple=True,
    metavar="STATUS",
    help=f"Only these statuses; may be repeated. One of {', '.join(_STATUSES)}.",
)
@click.option("--unsettled", is_flag=True, help="Only those without an outcome yet.")
@click.option(
    "--escalated/--not-escalated",
    default=None,
    help="Only those with, or without, an open question for a person.",
)
@whose
@click.option("--run", "run_id", help="Only this run's (a job or a conversation).")
@click.option(
    "--older-than",
    "older_s",
    type=SPAN,
    help="Only those recorded at least so long ago: 90s, 5m, 2h, 1d.",
)
@click.option(
    "--newer-than", "newer_s", type=SPAN, help="Only those recorded at most so long ago: 30m, 2h."
)
@page
@watched
def list_(
    status: tuple[str, ...], *, unsettled: bool, watch: bool, every_s: float, **asked: Any
) -> None:
    """List intents, newest first."""
    from outbox.store import listing

    run = current()
    statuses = _statuses(status, unsettled=unsettled)
    filters = placed(asked)

    def read() -> list[dict[str, Any]]:
        with run.store.transaction() as tx:
            return listing.intents(tx, status=statuses, **filters)

    def show(rows: list[dict[str, Any]]) -> None:
        next_ = rows[-1]["seq"] if len(rows) == asked["limit"] else None
        show_rows(run, _LIST, [_row(row) for row in rows], next_)

    show_or_watch(
        run,
        read,
        show,
        lambda rows: [named(_LIST, _row(row)) for row in rows],
        watch=watch,
        every_s=every_s,
    )


def _statuses(given: tuple[str, ...], *, unsettled: bool) -> list[str] | None:
    from outbox.states import UNSETTLED

    if not unsettled:
        return list(given) or None
    open_ = sorted(str(status) for status in UNSETTLED)
    if not given:
        return open_
    if not set(given) & set(open_):
        raise click.UsageError(f"--unsettled leaves nothing of --status {given[0]}")
    return [status for status in given if status in open_]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    from outbox.states import Status, told

    word = told(
        Status(row["status"]), row["doubt"], contradicted=row["contradicted_at"] is not None
    )
    return {**row, "account": f"{row['vendor']}/{row['account']}", "told": word.value}


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
    examples=(
        "outbox intent show 4f1a9c",
        "outbox intent show 4f1a9c --with-request --json",
        "outbox intent show 4f1a9c --watch --every 1s",
    ),
)
@INTENT
@click.option(
    "--with-request",
    is_flag=True,
    help="Also the arguments, the frozen request and the receipt: they may hold personal data.",
)
@watched
def show(intent_id: str, *, with_request: bool, watch: bool, every_s: float) -> None:
    """Show one intent, without what may be personal."""
    run = current()
    show_or_watch(
        run,
        lambda: _body(run, intent_id, with_request=with_request),
        lambda body: show_item(run, body, {"age_s": "span", "window_left_s": "left"}),
        lambda body: body,
        watch=watch,
        every_s=every_s,
    )


def _body(run: Run, intent_id: str, *, with_request: bool) -> dict[str, Any]:
    from outbox.store import reading
    from resolvers.triage_case import read_intent_case

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
        kept = {
            "identity": row.identity,
            "guard": row.guard,
            "args": row.plain_text("args"),
            "request": row.plain_text("request"),
            "receipt": row.plain_text("receipt"),
        }
        for name, text in kept.items():
            body[name] = json.loads(text) if text and run.json else text
    return body


@intent.command("history", examples=("outbox intent history 4f1a9c",))
@INTENT
def history(intent_id: str) -> None:
    """Tell what happened to one intent, oldest first: attempts, evidence, people."""
    from outbox.store import intents, reading

    run = current()
    with run.store.transaction() as tx:
        rows = reading.history(tx, intents.expand(tx, "intent", intent_id))
    show_rows(run, _HISTORY, rows)


@intent.command(
    "cancel",
    examples=(
        "outbox intent cancel 4f1a9c --reason 'customer withdrew' --dry-run",
        "outbox intent cancel 4f1a9c --reason 'customer withdrew' --yes --json",
    ),
)
@INTENT
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

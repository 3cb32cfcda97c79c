"""``outbox vendor``: the accounts we write to, who their credentials are, and pausing them."""

from __future__ import annotations

from typing import Any

import click

from workers.cli_complete import offer
from workers.cli_errors import CheckFound
from workers.cli_output import Column, show_rows
from workers.cli_run import Noun, Run, changes, confirmed, current
from workers.cli_suite import check_adapters
from workers.cli_verdict import decide, show_ruling

_LIST = (
    Column("account"),
    Column("mode"),
    Column("state"),
    Column("unsettled", rank=1, right=True),
    Column("credential", rank=3),
    Column("vendor_account", rank=5),
    Column("webhook_secrets", rank=6, right=True),
    Column("closed_by", rank=2),
    Column("closed_at", rank=4),
    Column("why", rank=7, folds=True),
)
_CHECK = (
    Column("account"),
    Column("ok"),
    Column("mode", rank=1),
    Column("vendor_account", rank=2),
    Column("problem", folds=True),
)


@click.group("vendor", cls=Noun)
def vendor() -> None:
    """Vendors: the accounts that writes go to."""


@vendor.command("list", examples=("outbox vendor list",))
def list_() -> None:
    """List accounts: configured ones, and those the ledger still holds rows of."""
    from outbox.store import checks, switches

    run = current()
    with run.store.transaction() as tx:
        counted = {(r["vendor"], r["account"]): r["unsettled"] for r in checks.unsettled(tx)}
        closed = {row["holder"]: row for row in switches.listed(tx)}
    places = sorted({*run.settings.accounts, *counted})
    shown = [_account(run, place, counted.get(place, 0), closed) for place in places]
    show_rows(run, _LIST, shown)


def _account(
    run: Run, place: tuple[str, str], unsettled: int, closed: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    from outbox.store.switches import holder_of

    account = run.settings.accounts.get(place)
    switch = closed.get(holder_of(*place), {})
    states = {"pause": "paused", "breaker": "breaker open", "freeze": "frozen"}
    return {
        "account": "/".join(place),
        "mode": account.mode if account else None,
        "state": states.get(switch.get("kind", ""), "open"),
        "unsettled": unsettled,
        "credential": "set" if account else "not set",
        "vendor_account": account.vendor_account if account else None,
        "webhook_secrets": len(account.webhook_secrets) if account else 0,
        "closed_by": switch.get("set_by"),
        "closed_at": switch.get("set_at"),
        "why": switch.get("reason"),
    }


@vendor.command(
    "check",
    finds="a credential is another's, or what was found differs",
    examples=(
        "outbox vendor check",
        "outbox vendor check stripe/default",
        "outbox vendor check --all",
    ),
)
@click.argument("account", required=False)
@click.option(
    "--all",
    "adapters",
    is_flag=True,
    help="Hold every adapter of this release to its contract, in a sandbox; asks no vendor.",
)
def check(account: str | None, adapters: bool) -> None:
    """Ask the vendor whose credential it is, and compare. Without ACCOUNT: every one.

    Exit code 3 where something is wrong.
    """
    run = current()
    if adapters:
        if account:
            raise click.UsageError("--all checks every adapter: leave ACCOUNT out")
        check_adapters(run)
        return
    wanted = [_place(account)] if account else sorted(run.settings.accounts)
    rows = [_checked(run, place) for place in wanted]
    show_rows(run, _CHECK, rows)
    if any(row["problem"] for row in rows):
        raise CheckFound


def _checked(run: Run, place: tuple[str, str]) -> dict[str, Any]:
    from dataclasses import replace

    from outbox.errors import NotFound, Unreachable
    from outbox.outcomes import Unreadable
    from outbox.store import switches

    account = run.settings.account(*place)
    adapter = run.directory.vendor(place[0])
    if account is None or adapter is None:
        known = tuple("/".join(p) for p in sorted(run.settings.accounts))
        raise NotFound("account", f"no credentials for {'/'.join(place)} are configured", known)
    seen = adapter.whoami(account)
    if isinstance(seen, Unreadable):
        raise Unreachable(f"{'/'.join(place)} did not say whose credential it is: {seen.reason}")
    problem = None
    if account.vendor_account and account.vendor_account != seen:
        problem = f"configured for {account.vendor_account}, the credential is of {seen}"
    elif run.settings.database_url:
        with run.store.transaction() as tx:
            found = replace(account, vendor_account=seen)
            problem = switches.account_problem(tx, place[0], found)
    return {
        "account": "/".join(place),
        "ok": problem is None,
        "mode": account.mode,
        "vendor_account": seen,
        "problem": problem,
    }


def _place(text: str) -> tuple[str, str]:
    name, slash, account = text.partition("/")
    if not (name and slash and account):
        raise click.BadParameter("must be VENDOR/NAME, as in stripe/default", param_hint="ACCOUNT")
    return name, account


@vendor.command(
    "pause", examples=("outbox vendor pause stripe/default --reason 'incident at the vendor'",)
)
@click.argument("account", shell_complete=offer("account"))
@changes
def pause(account: str, *, reason: str, dry_run: bool) -> None:
    """Send nothing to an account until it is resumed. Evidence is still collected."""
    from resolvers import holding

    run = current()
    ruling = holding.pause(
        run.store, run.directory, *_place(account), by=run.actor, reason=reason, dry_run=dry_run
    )
    show_ruling(run, ruling)


@vendor.command(
    "resume", examples=("outbox vendor resume stripe/default --reason 'vendor is back' --yes",)
)
@click.argument("account", shell_complete=offer("account"))
@changes
@confirmed
def resume(account: str, *, reason: str, dry_run: bool, yes: bool) -> None:
    """Send to an account again: what is due goes out at once."""
    from resolvers import holding

    run = current()
    place = _place(account)
    decide(
        run,
        lambda dry: holding.resume(
            run.store, run.directory, *place, by=run.actor, reason=reason, dry_run=dry
        ),
        f"Resume {account}?",
        lambda: _waiting(run, place),
        yes=yes,
        dry_run=dry_run,
    )


def _waiting(run: Run, place: tuple[str, str]) -> list[tuple[str, str]]:
    from outbox.store import checks

    account = run.settings.accounts.get(place)
    with run.store.transaction() as tx:
        due = checks.waiting(tx, *place)
    return [
        (
            "account",
            "/".join(place) + (f", {account.mode}" if account else ", not configured here"),
        ),
        ("due now", f"{due['intents']} intents of {due['tenants']} tenants"),
        ("amounts", ", ".join(due["amounts"]) or "none"),
        ("oldest", due["oldest"] or "-"),
    ]


COMMANDS = (vendor,)

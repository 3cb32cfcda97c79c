"""What ``doctor`` asks about the accounts: whom each name stands for, and whether one is paused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from outbox.contract import Account
from outbox.store import checks, checks_accounts, switches
from outbox.store.connection import Transaction
from outbox.store.invariants import NEWEST
from resolvers.directory import Directory
from resolvers.doctoring_setup import Asked, Finding, finding


def asked_of(directory: Directory) -> Iterator[tuple[str, int | None, Asked]]:
    """Each check of the accounts: its name, its rule, and what asks it."""
    yield "account_changed", None, partial(_changed, directory)
    yield "mode_or_owner_changed", None, partial(_frozen_otherwise, directory)
    yield "sent_for_another_owner", None, _sent_otherwise
    yield "account_paused", None, _paused


def _known(directory: Directory, tx: Transaction) -> Iterator[tuple[str, Account]]:
    """Every account by its vendor. Whose it is, where the settings do not say it, is what the last
    worker to start learned: no vendor is asked here."""
    for (vendor, _), account in sorted(directory.accounts.items()):
        owner = account.vendor_account or switches.remembered_owner(tx, vendor, account)
        yield vendor, replace(account, vendor_account=owner)


def _changed(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    problems = {
        f"{vendor}/{account.name}": problem
        for vendor, account in _known(directory, tx)
        if (problem := switches.account_problem(tx, vendor, account)) is not None
    }
    yield finding("account_changed", None, list(problems), "; ".join(problems.values()))


def _frozen_otherwise(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    count, ids, names = 0, list[str](), list[str]()
    for vendor, account in _known(directory, tx):
        of_account, found = checks_accounts.frozen_otherwise(tx, vendor, account)
        count += of_account
        ids += found
        named = f"{vendor}/{account.name} ({account.vendor_account or account.mode})"
        names += [named] * bool(of_account)
    what = (
        f"first sent for another mode or vendor account than {', '.join(names)} is: "
        "they are neither sent nor looked up; give the new credentials another name, "
        "or start a worker with the old ones"
    )
    yield finding("mode_or_owner_changed", None, ids, what, count=count)


def _sent_otherwise(tx: Transaction) -> Iterator[Finding]:
    rows = checks_accounts.sent_otherwise(tx)
    told = "; ".join(_told(row) for row in rows)
    what = (
        f"two credentials share one name, and each write goes to either by chance: {told}. "
        "End the workers whose credential is not meant, then start the others again"
    )
    looks_at = f"of the newest {NEWEST} intents settled in {checks_accounts.LATELY_H} hours"
    ids = [id_ for row in rows for id_ in row["ids"]]
    count = sum(row["n"] for row in rows)
    yield finding("sent_for_another_owner", None, ids, what, count=count, holds=looks_at)


def _told(row: dict[str, Any]) -> str:
    name = f"{row['vendor']}/{row['account']}"
    now = f"{row['now_owner'] or 'an account'} ({row['now_mode']})"
    return (
        f"{name} is {now} since {row['seen_at'].isoformat('T', 'seconds')}, and {row['n']} were "
        f"sent for {row['vendor_account']} ({row['mode']}) after that"
    )


def _paused(tx: Transaction) -> Iterable[Finding]:
    """One that holds nothing back is a person's business; held writes are everybody's."""
    held: dict[str, str] = {}
    for switch in switches.listed(tx):
        vendor, _, account = switch["holder"].removeprefix("vendor:").partition("/")
        name = f"{vendor}/{account}"
        if switch["kind"] == "pause" and (n := checks.waiting(tx, vendor, account)["intents"]):
            held[name] = (
                f"{name}: {n} writes wait, paused by {switch['set_by']}: {switch['reason']}; "
                f"once that is mended, `outbox vendor resume {name} --reason ...`"
            )
    yield finding("account_paused", None, list(held), ". ".join(held.values()))

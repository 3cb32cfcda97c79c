"""``doctor``: what must hold, asked of the ledger itself. It reads, and repairs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outbox import schema
from outbox.contracts import CONTRACTS
from outbox.fingerprint import FINGERPRINT_VERSION
from outbox.store import checks, switches, vitals
from outbox.store.connection import Store, Transaction
from resolvers.directory import Directory
from resolvers.health import limits_s

# What to do about a broken rule, where it is not a bug to report.
_WHAT = {
    "lease_long_expired": "no resolver runs: start a worker",
    "overdue_without_escalation": "no resolver runs: start a worker",
    "page_not_going_out": "the pagers fail: see `outbox escalation show` and OUTBOX_PAGERS",
    "webhook_ours_and_not_joined": "events with our marks and no intent: was a database restored?",
    "two_intents_with_one_receipt": "one object settled two intents: rule on each",
}
_BUG = "the ledger's rules are broken: keep the rows and report it"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be: how many, the first of them, and what to do."""

    check: str
    count: int
    ids: tuple[str, ...]
    what: str


def findings(store: Store, directory: Directory) -> list[Finding]:
    """Everything that is wrong now; empty is good. Raises ``Unreachable``."""
    with store.transaction() as tx:
        found = list(_schema(tx))
        if found:
            return found  # nothing else can be asked
        return [
            *_clock(tx),
            *_unknown_kinds(tx, directory),
            *_accounts(tx, directory),
            *_heartbeats(tx, directory),
            *_rules(tx, directory),
        ]


def _schema(tx: Transaction) -> Iterator[Finding]:
    current = vitals.revision(tx)
    problem = schema.advice(current)
    if problem is not None:
        yield Finding("schema_revision", 1, (current or "none",), f"the schema {problem}")


def _clock(tx: Transaction) -> Iterator[Finding]:
    if checks.clock_is_settable(tx):
        what = "a test's clock is installed: windows and leases mean nothing"
        yield Finding("settable_clock", 1, ("outbox.clock()",), what)
    for row in checks.clock_doubts(tx):
        what = f"{row['reason']}: re-sends wait for `outbox doctor --accept --reason ...`"
        yield Finding("clock_doubted", 1, (row["holder"],), what)


def _unknown_kinds(tx: Transaction, directory: Directory) -> Iterator[Finding]:
    wrong: dict[tuple[str, str], list[dict[str, Any]]] = {}
    configured = set(directory.settings.accounts)
    for row in checks.kinds(tx):
        if row["vendor"] not in CONTRACTS:
            wrong.setdefault(("unknown_vendor", row["vendor"]), []).append(row)
        elif row["operation"] not in CONTRACTS[row["vendor"]].operations:
            name = f"{row['vendor']} {row['operation']}"
            wrong.setdefault(("unknown_operation", name), []).append(row)
        elif row["fingerprint_version"] != FINGERPRINT_VERSION:
            name = f"version {row['fingerprint_version']}"
            wrong.setdefault(("unknown_fingerprint_version", name), []).append(row)
        if (row["vendor"], row["account"]) not in configured:
            name = f"{row['vendor']}/{row['account']}"
            wrong.setdefault(("account_without_credentials", name), []).append(row)
    for (check, name), rows in wrong.items():
        ids = tuple(i for row in rows for i in row["ids"])[: checks.SAMPLES]
        what = f"{name}: this process leaves these rows alone"
        yield Finding(check, sum(row["n"] for row in rows), ids, what)


def _accounts(tx: Transaction, directory: Directory) -> Iterator[Finding]:
    for (vendor, name), account in sorted(directory.settings.accounts.items()):
        problem = switches.account_problem(tx, vendor, account)
        if problem is not None:
            yield Finding("account_changed", 1, (f"{vendor}/{name}",), problem)


def _heartbeats(tx: Transaction, directory: Directory) -> Iterator[Finding]:
    ages = switches.beat_ages_s(tx)
    stale = tuple(
        role
        for role, limit_s in limits_s(directory.policy).items()
        if ages.get(role) is None or ages[role] > limit_s
    )
    if stale:
        yield Finding("heartbeat_stale", len(stale), stale, "no worker runs these jobs: start one")


def _rules(tx: Transaction, directory: Directory) -> Iterator[Finding]:
    marked = [o.name for c in CONTRACTS.values() for o in c.operations.values() if o.marks]
    policy = directory.policy
    broken = checks.broken_rules(
        tx,
        marked=marked,
        tick_expire_s=policy.tick_expire_s,
        tick_escalate_s=policy.tick_escalate_s,
        page_tries=len(policy.page_tries_s),
    )
    for check, (count, ids) in broken.items():
        yield Finding(check, count, tuple(ids), _WHAT.get(check, _BUG))

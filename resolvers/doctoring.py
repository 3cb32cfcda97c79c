"""``doctor``: what must hold, asked of the ledger itself. It reads, and repairs nothing.

Every question is asked in one read-only transaction and bounded by itself; one that is not
answered in time is told as not checked, and the others are asked all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outbox.codec import Sealed
from outbox.contracts import CONTRACTS
from outbox.fingerprint import RULES, fingerprint, intent_id, intent_key, parse_json
from outbox.policy import LEAST_RETENTION_S
from outbox.store import checks
from outbox.store.connection import Store, Transaction
from outbox.store.escalations import DOUBT_REASONS
from outbox.store.intents import Intent
from outbox.store.invariants import OF_INTENTS, Invariant
from outbox.store.invariants_beside import BESIDE, GUARDS
from resolvers import doctoring_accounts, doctoring_setup
from resolvers.directory import Directory
from resolvers.doctoring_setup import Asked, Finding, finding

# How long what is due may wait while everything is alive.
_DUE_S = 120.0
_NO_RESOLVER = "no resolver runs: start a worker"
# What to do about a broken rule, where it is not a bug to report.
_WHAT = {
    "lease_long_expired": _NO_RESOLVER,
    "overdue_without_escalation": _NO_RESOLVER,
    "ended_epoch_still_waits": _NO_RESOLVER,
    "doubt_closed_and_still_asked": _NO_RESOLVER,
    "webhook_waits": "no resolver runs, or joining fails: start a worker",
    "due_and_not_sent": "no worker sends: start one, or look at its log",
    "page_not_going_out": "the pagers fail: see `outbox escalation show` and OUTBOX_PAGERS",
    "webhook_ours_and_not_joined": "events with our marks and no intent: was a database restored?",
    "two_intents_with_one_receipt": "one object settled two intents: rule on each",
    "settlement_not_taken": "results wait for a day, or fail again and again: see their consumer",
    "time_ahead_of_the_clock": "the database's clock was set back: windows and leases are wrong",
    "beyond_all_bounds": "rows with impossible times, which no worker takes: who wrote them?",
    "transaction_held_open": "a session of ours rests inside a transaction: end that process",
}
_BUG = "the ledger's rules are broken: keep the rows and report it"


@dataclass(frozen=True, slots=True)
class _Question:
    """One or more findings of one look at the ledger; named and numbered for when it fails."""

    check: str
    rule: int | None
    ask: Asked


def findings(store: Store, directory: Directory) -> list[Finding]:
    """Every check and what it found, the broken ones too; of a schema that is not this release's
    that one alone. Raises ``Unreachable``."""
    with store.transaction() as tx:
        checks.read_only(tx)
        schema = doctoring_setup.schema_revision(tx)
        if not schema.ok:
            return [schema]  # nothing else can be asked
        found = [schema]
        for question in _questions(directory):
            found += _asked(tx, question)
        return found


def _asked(tx: Transaction, question: _Question) -> list[Finding]:
    try:
        with checks.bounded(tx):
            return list(question.ask(tx))
    except checks.NotChecked as why:
        return [Finding(question.check, question.rule, False, 0, (), f"not checked: {why}")]


def _questions(directory: Directory) -> Iterator[_Question]:
    for part in (doctoring_setup, doctoring_accounts):
        for check, rule, ask in part.asked_of(directory):
            yield _Question(check, rule, ask)
    yield _Question("guard_missing", None, _guards)
    yield _Question("key_not_of_its_intent", 1, _keys)
    yield _Question("sealed_request_not_as_hashed", 2, _sealed)
    params = _params(directory)
    for invariant in (*OF_INTENTS, *BESIDE):
        yield _Question(invariant.check, invariant.rule, _invariant(invariant, params))


def _params(directory: Directory) -> dict[str, Any]:
    policy = directory.policy
    return {
        "marked": [
            o.name for c in CONTRACTS.values() for o in c.operations.values() if o.leaves_mark
        ],
        "keyless": [c.vendor for c in CONTRACTS.values() if not c.honours_keys],
        "doubts": sorted(DOUBT_REASONS),
        "reached": [f"{v}/{a}" for v, a in directory.accounts if directory.reach(v, a)],
        "tick_expire_s": policy.tick_expire_s,
        "tick_escalate_s": policy.tick_escalate_s,
        "page_tries": len(policy.page_tries_s),
        "clock_step_s": policy.clock_step_s,
        "due_s": _DUE_S,
        "least_retention_s": LEAST_RETENTION_S,
        "idle_s": directory.settings.idle_in_transaction_timeout_s,
    }


def _invariant(invariant: Invariant, params: dict[str, Any]) -> Asked:
    def ask(tx: Transaction) -> Iterator[Finding]:
        count, ids = checks.broken(tx, invariant, params)
        wrong = f"{_WHAT.get(invariant.check, _BUG)} ({invariant.looks_at})"
        yield finding(
            invariant.check, invariant.rule, ids, wrong, count=count, holds=invariant.looks_at
        )

    return ask


def _guards(tx: Transaction) -> Iterator[Finding]:
    missing = checks.missing_guards(tx)
    rules = sorted({GUARDS[name] for name in missing})
    wrong = (
        f"the schema guards rule {', '.join(map(str, rules))} no more: a constraint, an index or a "
        "trigger is gone or switched off (`outbox schema sql` has it)"
    )
    yield finding("guard_missing", None, missing, wrong)


def _keys(tx: Transaction) -> Iterator[Finding]:
    wrong = [str(row["id"]) for row in checks.newest_keys(tx) if not _is_of_its_key(row)]
    looks_at = f"of the newest {checks.NEWEST_KEYS} intents"
    yield finding("key_not_of_its_intent", 1, wrong, f"{_BUG} ({looks_at})", holds=looks_at)


def _sealed(tx: Transaction) -> Iterator[Finding]:
    wrong = [str(row.id) for row in checks.sealed_requests(tx) if not _opens(row)]
    looks_at = f"of at most {checks.SEALED} unsettled intents whose request is sealed"
    yield finding("sealed_request_not_as_hashed", 2, wrong, f"{_BUG} ({looks_at})", holds=looks_at)


def _opens(row: Intent) -> bool:
    try:
        row.plain_text("request")
    except Sealed:
        return False
    return True


def _is_of_its_key(row: dict[str, Any]) -> bool:
    """Whether an intent's fingerprint, key and id are what its columns make of them."""
    if row["fingerprint_version"] not in RULES:
        return True  # another release's to judge
    try:
        print_ = fingerprint(parse_json(row["identity"]), row["fingerprint_version"])
    except Exception:
        return False  # no identity that enqueue would have taken
    key = intent_key(
        tenant=row["tenant"],
        vendor=row["vendor"],
        account=row["account"],
        tool=row["tool"],
        once_per=row["once_per"],
        run_id=row["run_id"],
        epoch=row["epoch"],
        print_=print_,
        occurrence=row["occurrence"],
        supersedes=row["supersedes"],
    )
    return (print_, key, intent_id(key)) == (
        bytes(row["fingerprint"]),
        bytes(row["key"]),
        row["id"],
    )

"""A person's order to empty a settled intent of what is personal: checked, done once, audited."""

from __future__ import annotations

from uuid import UUID

from outbox.errors import Denied
from outbox.store import redaction
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from outbox.store.moves import log
from resolvers.triage_case import Case, Ruling, decided, lock_unmoved, read_intent_case, said_by


def redact(
    store: Store,
    reference: Case | str | UUID,
    *,
    by: str,
    reason: str,
    dry_run: bool = False,
) -> Ruling:
    """Empties arguments, request and receipt of a settled intent, and the bodies of the events that
    joined it. It still answers for its key: a repeat of the write finds it, a late event joins it.

    Raises ``Denied`` while it is unsettled, asked of a person, or not told to every consumer.
    """
    by, reason = said_by(by, reason)
    case = reference if isinstance(reference, Case) else read_intent_case(store, reference)
    with store.transaction() as tx:
        row = lock_unmoved(tx, case.asked, dry_run=dry_run)
        if not redaction.holds_anything(tx, row):
            return _ruling(row, "nothing to do: it holds nothing personal any more")
        _check(tx, case, row)
        if dry_run:
            said = "would empty arguments, request, receipt and webhook bodies, for good"
            return _ruling(row, said, dry_run=True)
        emptied = redaction.empty(tx, [row])[row.id]
        log(
            tx,
            intent_id=row.id,
            actor=by,
            kind="redacted",
            from_status=row.status,
            to_status=row.status,
            reason=reason,
            detail=emptied,
        )
    return _ruling(row, "emptied: key, hash, receipt id and amounts are kept", changed=True)


def _check(tx: Transaction, case: Case, row: Intent) -> None:
    if row.settled_at is None:
        raise Denied("unsettled", f"only what is settled can be emptied: {decided(tx, row)}")
    question = case.escalation
    if row.contradicted_at is not None or (question and not question["closed_at"]):
        raise Denied(
            "escalated", "a question about it is open, and what it holds is evidence: rule first"
        )
    waiting = redaction.undelivered(tx, row.id)
    if waiting:
        raise Denied(
            "undelivered", f"its result has not reached every consumer: {', '.join(waiting)}"
        )


def _ruling(row: Intent, said: str, *, changed: bool = False, dry_run: bool = False) -> Ruling:
    return Ruling(
        verb="redact",
        said=said,
        changed=changed,
        dry_run=dry_run,
        intent_id=row.id,
        status=row.status,
        receipt_id=row.receipt_id,
    )

"""One question with all its evidence side by side: what was asked for, what was sent, what was seen
of it, how long is left, and what each verdict would do now."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.cli_confirm import card
from workers.cli_output import span
from workers.cli_run import Run

if TYPE_CHECKING:
    from outbox.store.connection import Transaction
    from outbox.store.intents import Intent
    from resolvers.triage_case import Case
    from resolvers.triage_options import Shown


def body(run: Run, reference: str, *, with_request: bool, ask: bool) -> dict[str, Any]:
    """Everything, as JSON has it. ``ask``: ask the vendor too. Raises ``NotFound``."""
    from outbox.errors import NotFound
    from outbox.store import reading
    from resolvers import triage_options
    from resolvers.page_text import in_words
    from resolvers.triage_case import read_case

    case = read_case(run.store, reference)
    question = case.escalation
    if question is None:
        raise NotFound("id", f"intent {case.asked.id} has no escalation")
    not_asked = triage_options.Shown(answer="not_asked", said="not asked")
    shown = triage_options.ask(run.directory, case) if ask else not_asked
    directory = run.directory if ask else triage_options.NotAsked(run.directory)
    options = triage_options.options(run.store, directory, case, shown, by=run.actor)
    with run.store.transaction() as tx:
        pages = reading.pages_of(tx, question["id"])
        if case.intent is None:
            seen = {"next": _waiting(question)}
        else:
            seen = _of_intent(tx, case, with_request=with_request)
    sent = sum(1 for page in pages if page["sent_at"] is not None)
    return {
        **question,
        "pages": pages,
        "pages_sent": f"{sent} of {len(pages)}",
        **seen,
        "vendor_now": _vendor(shown),
        "why": question["detail"].get("why"),
        "objects": question["detail"].get("objects", []),
        "found": in_words(question["detail"]) or None,
        "receipts": [o.receipt_id for o in options if o.receipt_id and o.now == "allowed"],
        "options": [option.as_json() for option in options],
    }


def _waiting(question: Mapping[str, Any]) -> str:
    """What lists the rows that a question about many is about."""
    detail = question["detail"]
    place = "/".join(str(detail[n]) for n in ("vendor", "account") if detail.get(n))
    account = f" --account {shlex.quote(place)}" if "/" in place else ""
    if detail.get("samples"):
        reasons = " ".join(f"--reason {reason}" for reason in question["reasons"])
        return f"outbox escalation list {reasons}{account}"
    return f"outbox intent list --unsettled{account}"


def _of_intent(tx: Transaction, case: Case, *, with_request: bool) -> dict[str, Any]:
    from outbox.states import told
    from outbox.store import reading
    from resolvers.page_text import known

    row = case.asked
    word = told(row.state, row.doubt, contradicted=case.is_contradicted)
    ttl_left_s = (row.ttl_at - case.now).total_seconds()
    return {
        **{name.replace(" ", "_"): value for name, value in card(case)[1:-1]},
        "ttl_left": span(ttl_left_s) if ttl_left_s > 0 else "none: it has passed",
        "ttl_at": row.ttl_at,
        "window_ends_at": row.window_ends_at,
        "told": word.value,
        "known": None if case.is_contradicted else known(row.vendor, row.status, row.doubt),
        "receipt_id": row.receipt_id,
        "failure_code": row.failure_code,
        "request": _request(row, with_params=with_request),
        "attempts": reading.attempts(tx, row.id),
        "looks": {
            "count": row.looks,
            "found_nothing": row.absent_looks,
            "first_quiet_absence_at": row.absent_first_at,
            "last_quiet_absence_at": row.absent_last_at,
            "next_at": row.due_at if row.status == "unknown" else None,
        },
        "webhooks": reading.webhooks_of(tx, row.id),
        "next": f"outbox intent history {row.id}",
    }


def _request(row: Intent, *, with_params: bool) -> dict[str, Any]:
    """What would be sent, each time the same. Its parameters may be personal."""
    from outbox.codec import Sealed

    unreadable = None
    frozen: Mapping[str, Any] = {}
    try:
        frozen = json.loads(row.plain_text("request") or "{}")
    except Sealed as error:
        unreadable = str(error)
    shown = {
        "method": frozen.get("method", "").upper() or None,
        "path": frozen.get("path") or row.path_without_request() or None,
        "operation": row.operation,
        "api_version": row.api_version,
        "amount_minor": row.amount_minor,
        "currency": row.currency,
        "sha256": bytes(row.request_sha256).hex(),
        "unreadable": unreadable,
    }
    return {**shown, "params": frozen.get("params")} if with_params else shown


def _vendor(shown: Shown) -> dict[str, Any]:
    modes = {None: None, True: "live", False: "test"}
    return {
        "answer": shown.answer,
        "said": shown.said or None,
        "objects": [
            {
                "object": found.receipt_id,
                "standing": found.standing.value,
                "word": found.word,
                "amount_minor": found.amount_minor,
                "currency": found.currency,
                "mode": modes[found.livemode],
                "vendor_account": found.vendor_account,
            }
            for found in shown.readings
        ],
    }

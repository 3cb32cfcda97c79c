"""From one HTTP answer to an outcome, by the rules of the vendor's recipe; pure.

Whatever no rule names, whatever came in part, and whatever a rule cannot read, is ``Lost``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, assert_never

from outbox.contract import Call, VendorContract
from outbox.contracts.recipe import Means, OnDuplicate, Recipe, Rule
from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Refused, Standing, Wire
from vendors.http_json_reading import (
    NOT_JSON,
    at,
    is_ours,
    owned,
    parsed,
    reading_of,
    tells_money,
    word_at,
)
from vendors.reads import date_of, retry_after_s, wrong_mode
from vendors.wire import Answer

NEVER_AGAIN = "never_again"
_REQUEST_IDS = ("X-Request-Id", "Request-Id")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}")


def outcome_of(contract: VendorContract, call: Call, answer: Answer) -> Outcome:
    """The outcome of one answer to the call."""
    recipe: Recipe = contract.recipe
    wire = _wire(recipe, answer)
    if answer.body is None:
        return Lost("cut_answer", wire=wire)
    document = parsed(answer.body)
    rule = _rule_for(recipe, answer.status, document)
    code = word_at(document, recipe.error_code) or f"http_{answer.status}"
    if rule is None:
        return Lost(code, wire=wire)
    if rule.means is Means.LANDED:
        return _landed(contract, call, answer, document, wire)
    if rule.means is Means.REFUSED:
        return _refused(contract, call, document, rule, code, wire)
    return _undecided(rule, answer, code, wire)


def _undecided(rule: Rule, answer: Answer, code: str, wire: Wire) -> Outcome:
    veto = NEVER_AGAIN if rule.never_again else ""
    if rule.means is Means.EXISTS:
        # Of which object the answer speaks, and whether it is as asked, a look-up tells.
        return Lost("exists", veto, wire)
    if rule.means is Means.IN_DOUBT or wire.replayed:
        # A stored answer was given to a request that was processed, whatever it says now.
        return Lost(code, veto, wire)
    return NotSent(
        code,
        retry_after_s=retry_after_s(answer.headers),
        pause=rule.means is Means.PAUSE,
        throttled=rule.means is Means.THROTTLED,
        wire=wire,
        veto=veto,
    )


def _rule_for(recipe: Recipe, status: int, document: Any) -> Rule | None:
    """The first rule that matches; None where one that might match cannot be read."""
    for rule in recipe.answers:
        if not rule.covers(status):
            continue
        if rule.where and document is NOT_JSON:
            return None
        if all(_same(at(document, path), value) for path, value in rule.where):
            return rule
    return None


def _same(found: Any, wanted: Any) -> bool:
    # To Python 1 and True are equal; in JSON they are not.
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _landed(
    contract: VendorContract, call: Call, answer: Answer, document: Any, wire: Wire
) -> Outcome:
    spec = contract.recipe.operations[call.operation].receipt
    header_id = (answer.headers.get(spec.id_header) or "") if spec.id_header else ""
    seen_at = date_of(answer.headers) if _is_fresh(contract.recipe, wire) else 0
    made = at(document, spec.object)
    reading = reading_of(spec, made, seen_at=seen_at, header_id=header_id)
    if document is NOT_JSON and reading is None:
        return Lost("no_receipt", wire=wire)  # a gateway's page, perhaps
    if reading is None:
        return _taken("no_receipt" if tells_money(spec, made) else "unreadable_amount", wire)
    reading = owned(call, spec, reading)
    if not is_ours(call, contract.operations[call.operation], spec, reading):
        return _taken("foreign_object", wire)
    if wrong_mode(call.account, reading.livemode):
        return _taken("other_mode", wire)
    match reading.standing:
        case Standing.DECLINED:
            return Refused(reading.failure_code, covers_key=True, reading=reading, wire=wire)
        case Standing.LANDED | Standing.OPEN:
            # The vendor took this very request; the effect may show on the object later.
            return Receipt(replace(reading, standing=Standing.LANDED), wire)
        case _:
            assert_never(reading.standing)


def _taken(reason: str, wire: Wire) -> Lost:
    """The vendor said yes, of what we cannot tell: after that no look-up makes a send safe."""
    return Lost(reason, reason, wire)


def _refused(
    contract: VendorContract, call: Call, document: Any, rule: Rule, code: str, wire: Wire
) -> Outcome:
    if document is NOT_JSON:
        return Lost("unreadable_answer", wire=wire)  # a gateway's page, perhaps
    spec = contract.recipe.operations[call.operation].receipt
    reading = reading_of(spec, at(document, spec.object))
    declined = (
        reading
        if reading is not None
        and reading.standing is Standing.DECLINED
        and is_ours(call, contract.operations[call.operation], spec, reading)
        else None
    )
    veto = NEVER_AGAIN if rule.never_again else ""
    return Refused(code, rule.stored or wire.replayed, declined, wire, veto)


def _is_fresh(recipe: Recipe, wire: Wire) -> bool:
    """Whether an answer surely shows the object as it is now: a replay shows it as it was."""
    if recipe.on_duplicate is OnDuplicate.REPLAY:
        return bool(recipe.replay_header) and not wire.replayed
    return True


def _wire(recipe: Recipe, answer: Answer) -> Wire:
    names = [recipe.request_id_header] if recipe.request_id_header else _REQUEST_IDS
    request_id = next((v for n in names if (v := answer.headers.get(n))), "")
    mark = answer.headers.get(recipe.replay_header) if recipe.replay_header else None
    return Wire(
        http_status=answer.status,
        request_id=request_id if _ID.fullmatch(request_id) else "",
        replayed=mark is not None and mark.strip().lower() == recipe.replay_value.lower(),
    )

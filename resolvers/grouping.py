"""Many open questions about one cause are one page, and none of them is swallowed by it.

A question that comes after its group was told waits for the group's next page. That one is due at
once for an amount larger than any the group has told of, and as soon as as many wait as were told
of; else when the group has been quiet for as long as it was old then, a day at the most. So what
trickles in costs pages by its logarithm and by the day, and everything is told of in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from outbox.policy import Policy
from outbox.store import escalations, page_groups, pages
from outbox.store.connection import Odd, Transaction
from outbox.store.page_groups import Questions
from resolvers.page import Pager

_log = logging.getLogger(__name__)
SAMPLES = 5
# No question waits longer for its group's next page.
_AT_LATEST_S = 86400.0


def group(tx: Transaction, pagers: Sequence[Pager], policy: Policy) -> None:
    """Places every question that was not told of yet: in a new group, in a page of the one it
    belongs to, or by itself. The caller is the only sender, and claims in the same transaction.
    What cannot be placed, by an odd row, is told of by itself."""
    plain = [pager.name for pager in pagers if not pager.repages]
    first = pagers[0].name if pagers else ""
    for some in _waiting(tx, first, plain):
        # Without a pager a group that is there tells nobody: these are kept for later themselves.
        if pagers or some["group_id"] is None:
            try:
                with tx.apart():
                    _place(tx, some, plain, policy)
            except Odd as odd:
                _left_alone(some, odd)


def close_emptied(tx: Transaction) -> None:
    """Closes the question of every group in which none is left open."""
    for holder in page_groups.holders(tx):
        try:
            with tx.apart():
                if page_groups.is_emptied(tx, holder):
                    verdict = "no question left in it"
                    escalations.close_holder(tx, holder, by="paging", verdict=verdict)
        except Odd as odd:
            _log.error("%s stays open: %s", holder, odd)


def _waiting(tx: Transaction, first: str, plain: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All in one reading; place by place where an odd row of one keeps that from all."""
    try:
        with tx.apart():
            found = page_groups.waiting(tx, first=first, plain=plain)
    except Odd:
        pass
    else:
        yield from found
        return
    for place in page_groups.places(tx):
        try:
            with tx.apart():
                found = page_groups.waiting(tx, first=first, plain=plain, place=place)
        except Odd as odd:
            _left_alone(place, odd)
        else:
            yield from found


def _left_alone(place: dict[str, Any], odd: Odd) -> None:
    where = "/".join(str(place[name]) for name in ("vendor", "account", "reason"))
    _log.error("the questions of %s are told of one by one: %s", where, odd)


def _place(tx: Transaction, some: dict[str, Any], plain: Sequence[str], policy: Policy) -> None:
    if some["held_s"] is not None:  # asked before a person held the group: it covers them
        page_groups.wait(tx, some["ids"], min(some["held_s"], _AT_LATEST_S))
        return
    where = (some["vendor"], some["account"], some["reason"])
    group_id, since = some["group_id"], None
    if group_id is None:
        since = some["since"]
        found = page_groups.open_after(tx, *where, since, SAMPLES)
    else:
        found = page_groups.open_in_group(tx, group_id, SAMPLES)
    if found.count < policy.page_group_from:
        page_groups.alone(tx, some["ids"])
        return
    left_s = 0.0 if group_id is None or some["telling"] else _left_s(some, found, policy)
    if left_s > 0:
        page_groups.wait(tx, some["ids"], min(left_s, _AT_LATEST_S))
        return
    holder = some["holder"] or page_groups.begin(tx, *where)
    page_groups.take(tx, some["ids"], holder)
    told = {
        "vendor": some["vendor"],
        "account": some["account"],
        "count": found.count,
        "samples": found.samples,
        "largest": _larger(some["largest"] or {}, found.largest),
    }
    if since is not None:
        told["since"] = since.isoformat()
    escalations.open_for_holder(tx, holder, [some["reason"]], told)
    if (
        group_id is not None
        and not some["telling"]
        and not pages.tell_now(tx, group_id, plain=plain)
    ):
        escalations.page_again(tx, group_id, some["reason"])


def _left_s(some: dict[str, Any], found: Questions, policy: Policy) -> float:
    """How long the group's next page may still wait for more."""
    if some["in_air"]:  # what it says was settled before these came; what it did is not known yet
        return _AT_LATEST_S
    told = some["largest"] or {}
    if any(amount > told.get(name, -1) for name, amount in (some["amounts"] or {}).items()):
        return 0.0
    if some["fresh"] >= found.count - some["fresh"] or some["told_s"] is None:
        return 0.0
    quiet_s = max(policy.repage_s, min(some["age_s"], _AT_LATEST_S))
    return float(quiet_s - some["told_s"])


def _larger(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}

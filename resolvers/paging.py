"""Paging: each due page is sent to one target outside any transaction, then recorded.

A crash between the two sends the same dedup key again. A page is never lost: after three tries it
goes to the next target, and after the last one it keeps going round at the longest delay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox.settings import Settings
from outbox.store import page_groups, pages
from outbox.store.connection import Store, Transaction
from resolvers.grouping import SAMPLES, close_emptied, group
from resolvers.page import Failed, Page, Pager, Sent
from resolvers.page_post import SEND_TIMEOUT_S
from resolvers.page_text import page_of
from resolvers.pager_round import OneRound

_LIMIT = 50
# A round goes on for so many periods: its heartbeat is due by three.
_PERIODS = 2
# A target that forgets is told again in a quarter of its time: three posts may fail before it does.
_KEEP_SHARE = 0.25
# A page is held for as long as its sends may take, and a little.
_SLACK_S = 10.0
# Never quicker than this once every target has failed, whatever the policy's delays are.
_LEAST_AGAIN_S = 1.0


def page_once(
    store: Store, pagers: Sequence[Pager], settings: Settings, limit: int = _LIMIT
) -> int:
    """Sends what is due, one page at a time; returns how many were worked on.

    Any number of these may run at once. Raises ``Unreachable`` when the database is away: what
    was claimed is due again when its hold ends.
    """
    named: dict[str, Pager] = {pager.name: OneRound(pager) for pager in pagers}
    give_up = time.monotonic() + _PERIODS * settings.policy.tick_page_s
    first = pagers[0].name if pagers else ""
    hold_s = SEND_TIMEOUT_S * max(1, len(pagers)) + _SLACK_S
    kept = [pager.name for pager in pagers if pager.lasts_s is not None]
    with store.transaction() as tx:
        pages.one_sender(tx)
        close_emptied(tx)
        if pagers:
            pages.revive(tx, named=list(named), after_s=settings.policy.repage_s)
        for pager in pagers:
            _tell_again(tx, pager, settings.policy.repage_s)
        if kept:
            rest = [each.name for each in pagers if each.repages and each.lasts_s is None]
            after_s = min(_keep_s(each, settings.policy.repage_s) for each in pagers)
            pages.keep(tx, kept=kept, rest=rest, after_s=after_s)
    worked = 0
    has_grouped = False
    while worked < limit and (not worked or time.monotonic() < give_up):
        with store.transaction() as tx:
            pages.one_sender(tx)
            page_id = pages.next_due(tx, first=first, kept=kept)
            if page_id is None and has_grouped:
                break
            # What is claimed was due before, and so it has been judged whether a group tells of it.
            group(tx, pagers, settings.policy)
            row = None
            if page_id is not None:
                row = pages.claim(tx, page_id, first=first, hold_s=hold_s, kept=kept)
        has_grouped = True
        if row is not None:
            _work(store, named, settings, row)
            worked += 1
    return worked


def _tell_again(tx: Transaction, pager: Pager, repage_s: float) -> None:
    """An open question does not fall silent where nobody answers it."""
    if pager.lasts_s is not None:
        pages.repage(tx, pager=pager.name, after_s=_keep_s(pager, repage_s), silenced=True)
    elif pager.repages:
        pages.renew(tx, pager=pager.name, after_s=repage_s)
    else:
        pages.repage(tx, pager=pager.name, after_s=repage_s, silenced=False)


def _keep_s(pager: Pager, repage_s: float) -> float:
    return repage_s if pager.lasts_s is None else min(repage_s, pager.lasts_s * _KEEP_SHARE)


def _work(
    store: Store, named: Mapping[str, Pager], settings: Settings, row: dict[str, Any]
) -> None:
    if not named:
        _drop(store, row, pages.NO_PAGER, _Progress.of(row).maybe)
    elif row["action"] == "trigger":
        _trigger(store, named, settings, row)
    else:
        _follow(store, named, settings, row)


def _trigger(
    store: Store, named: Mapping[str, Pager], settings: Settings, row: dict[str, Any]
) -> None:
    progress = _Progress.of(row)
    if row["interrupted"]:
        # The sender before died with the page in its hands: perhaps it was shown. Written down
        # before anything else, so that a target that kills its senders is left in the end.
        after = progress.failed(named, settings, maybe=True, final=False)
        _again(store, row, after, "its sender died", in_s=0.0)
        return
    if row["closed_at"] is not None or row["body"].get("reason") not in row["reasons"]:
        _drop(store, row, "closed before it was sent", progress.maybe)
        return
    page = page_of(_counted(store, row), settings.environment)
    if row["keep"]:
        _keep(store, named, settings, row, page)
        return
    pager = named.get(progress.pager) or named[next(iter(named))]
    answer = pager.send(page)
    if isinstance(answer, Sent):
        for name in progress.maybe:
            other = named.get(name)
            if other is not None and other.name != pager.name and other.lasts_s is not None:
                other.send(page)  # it may show it: told as often, it does not say that it is over
        with store.transaction() as tx:
            pages.sent(tx, row["id"], pager=pager.name, detail=answer.detail)
        return
    after = replace(progress, pager=pager.name).failed(
        named, settings, maybe=answer.maybe, final=answer.final
    )
    asked_s = answer.retry_after_s if after.pager == pager.name else None
    _again(store, row, after, answer.detail, in_s=max(after.wait_s, asked_s or 0.0))


def _keep(
    store: Store, named: Mapping[str, Pager], settings: Settings, row: dict[str, Any], page: Page
) -> None:
    """Told to the targets alone that may show it and would forget it: nobody else is woken."""
    progress = _Progress.of(row)
    kept = [named[name] for name in progress.maybe if name in named]
    answers = [(each.name, each.send(page)) for each in kept if each.lasts_s is not None]
    taken = [name for name, answer in answers if isinstance(answer, Sent)]
    detail = "; ".join(answer.detail for _, answer in answers)
    if "keep" in row["body"]:  # it was sent elsewhere, and that is where it stays sent
        with store.transaction() as tx:
            pages.sent(tx, row["id"], pager=row["pager"], detail=detail)
    elif taken:
        with store.transaction() as tx:
            pages.sent(tx, row["id"], pager=taken[0], detail=detail)
    elif progress.pager in [name for name, _ in answers]:
        final = all(isinstance(answer, Failed) and answer.final for _, answer in answers)
        after = progress.failed(named, settings, maybe=True, final=final)
        _again(store, row, after, detail, in_s=after.wait_s)
    else:  # its way goes on there when the hold has ended
        _again(store, row, progress, detail, in_s=_between_s(settings, progress.tries + 1))


def _counted(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    """A group's page counts the questions that are open when it is sent: half of those of its
    first page may be settled when it is told again."""
    if not str(row["holder"] or "").startswith(page_groups.GROUP):
        return row
    with store.transaction() as tx:
        found = page_groups.open_in_group(tx, row["escalation_id"], SAMPLES)
    if not found.count:  # its last question is closed, and its resolve about to be written
        return row
    now = {"count": found.count, "samples": found.samples, "largest": found.largest}
    return {**row, "detail": {**row["detail"], **now}}


def _follow(
    store: Store, named: Mapping[str, Pager], settings: Settings, row: dict[str, Any]
) -> None:
    """Acknowledge and resolve go wherever the trigger went, or may have gone."""
    progress = _Progress.of(row)
    if row["action"] == "acknowledge" and not row["held"] and row["closed_at"] is None:
        _drop(store, row, "what it was to tell has ended", progress.maybe)
        return
    with store.transaction() as tx:
        targets = pages.targets_of(tx, row["dedup_key"])
    reachable = [named[name] for name in targets if name in named]
    if not reachable:
        _drop(store, row, "its target is no longer configured" if targets else "never shown")
        return
    answers = [(pager.name, pager.send(page_of(row, settings.environment))) for pager in reachable]
    failures = [(name, answer) for name, answer in answers if isinstance(answer, Failed)]
    passing = [answer for _, answer in failures if not answer.final]
    taken = tuple(name for name, answer in answers if isinstance(answer, Sent) or answer.maybe)
    maybe = tuple(dict.fromkeys([*progress.maybe, *taken]))
    if passing:
        tries = progress.tries + 1
        wait_s = _between_s(settings, tries)
        after = _Progress(targets[0], tries, progress.rounds, maybe, wait_s)
        asked_s = passing[0].retry_after_s or 0.0
        _again(store, row, after, passing[0].detail, in_s=max(wait_s, asked_s))
    elif len(failures) == len(answers):
        _drop(store, row, failures[0][1].detail, maybe)
    else:
        told = [name for name, answer in answers if isinstance(answer, Sent)]
        policies = [name for name in told if named[name].repages]
        with store.transaction() as tx:
            detail = "; ".join(answer.detail for _, answer in answers)
            pages.sent(tx, row["id"], pager=(policies or told or targets)[0], detail=detail)
            if policies and row["action"] == "acknowledge":
                pages.rests(tx, row["dedup_key"])


@dataclass(frozen=True, slots=True)
class _Progress:
    """Where a page is on its way through the targets; ``wait_s`` until the next try."""

    pager: str
    tries: int = 0
    rounds: int = 0
    maybe: tuple[str, ...] = ()
    wait_s: float = 0.0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Progress:
        body = row["body"]
        return cls(
            row["pager"], body.get("tries", 0), body.get("round", 0), tuple(body.get("maybe", []))
        )

    def failed(
        self, named: Mapping[str, Pager], settings: Settings, *, maybe: bool, final: bool
    ) -> _Progress:
        """After one more failed try: this target again, the next one, or round once more."""
        seen = tuple(dict.fromkeys([*self.maybe, self.pager])) if maybe else self.maybe
        names = list(named)
        tries = self.tries + 1
        at = names.index(self.pager) if self.pager in names else -1
        if self.rounds == 0 and not final and tries < len(settings.policy.page_tries_s):
            wait_s = _between_s(settings, tries)
            return _Progress(self.pager, tries, 0, seen, wait_s)
        if self.rounds == 0 and at + 1 < len(names):
            wait_s = settings.policy.page_tries_s[0]
            return _Progress(names[at + 1], 0, 0, seen, wait_s)
        wait_s = max(_LEAST_AGAIN_S, *settings.policy.page_tries_s)
        return _Progress(names[(at + 1) % len(names)], 0, self.rounds + 1, seen, wait_s)


def _between_s(settings: Settings, tries: int) -> float:
    """The policy names the times of the tries from the first on; this is the wait before the next,
    and the longest there is once they are used up."""
    times = settings.policy.page_tries_s
    if tries < len(times):
        return max(0.0, times[tries] - times[tries - 1])
    return max(_LEAST_AGAIN_S, *times)


def _again(
    store: Store, row: dict[str, Any], after: _Progress, detail: str, *, in_s: float
) -> None:
    with store.transaction() as tx:
        pages.again(
            tx,
            row["id"],
            pager=after.pager,
            in_s=in_s,
            detail=detail,
            tries=after.tries,
            rounds=after.rounds,
            maybe=after.maybe,
        )


def _drop(store: Store, row: dict[str, Any], detail: str, maybe: Sequence[str] = ()) -> None:
    with store.transaction() as tx:
        pages.dropped(tx, row["id"], detail, maybe=maybe)

"""One round of paging over a target: what hangs once is given up for the rest of the round, so that
fifty pages do not wait for it one after the other. Each of them counts as tried, and goes to the
next target when the others do."""

from __future__ import annotations

import time

from resolvers import page_post
from resolvers.page import Failed, Page, Pager, Sent

# A target that fails after so much of its time did not refuse: it hangs.
_SHARE = 0.5


class OneRound:
    """A pager for the length of one round."""

    def __init__(self, pager: Pager) -> None:
        self._pager = pager
        self._hangs = False

    @property
    def name(self) -> str:
        return self._pager.name

    @property
    def repages(self) -> bool:
        return self._pager.repages

    @property
    def lasts_s(self) -> float | None:
        return self._pager.lasts_s

    def send(self, page: Page) -> Sent | Failed:
        """The target's answer; a failure at once where it has hung in this round."""
        if self._hangs:
            return Failed("not tried: the target hung a moment ago")
        began = time.monotonic()
        answer = self._pager.send(page)
        took_s = time.monotonic() - began
        if isinstance(answer, Failed) and took_s > _SHARE * page_post.SEND_TIMEOUT_S:
            self._hangs = True
        return answer

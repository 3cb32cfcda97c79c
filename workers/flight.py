"""One call in the air: its limits, its socket, and the one outcome that is recorded for it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from outbox.contract import TooLate
from outbox.outcomes import Lost, Outcome
from outbox.store.intents import Intent
from vendors.watchdog import Cut


class Flight(Cut):
    """A claimed intent on its way. Implements the adapter's ``Cutoff``.

    The first of answer and deadline decides what is recorded; an answer that comes after the
    deadline is delivered too, as late evidence.
    """

    def __init__(
        self,
        intent: Intent,
        *,
        start_by: float,
        deadline_s: float,
        results: Results,
        since_boot_s: Callable[[], float],
    ) -> None:
        super().__init__()
        self.intent = intent
        self.start_by = start_by
        self.deadline_s = deadline_s
        # How long its call took, in s; of one that was cut, its deadline.
        self.took_s = deadline_s
        self.reported = False  # a flight that was cut reports twice; its place is freed once
        self.over = False  # its thread is free for another one, or is about to be
        self._results = results
        self._since_boot_s = since_boot_s

    def may_start(self) -> bool:
        """Whether the claim's own time still allows a first byte."""
        return self._since_boot_s() < self.start_by

    def attach(self, sock: Any) -> None:
        """Called by the transport just before the first byte of the request."""
        if not self.may_start():
            raise TooLate
        super().attach(sock)

    def land(self, outcome: Outcome) -> None:
        """The call returned."""
        self.over = True
        self.let_go()
        self._results.put((self, outcome))

    def cut(self) -> None:
        """The deadline passed: the outcome is not known, whatever the thread brings back."""
        self._results.put((self, Lost(f"no answer within {self.deadline_s:g} s")))
        super().cut()


# None: whoever waits for a result shall look for something else.
Results = queue.SimpleQueue[tuple[Flight, Outcome] | None]


def tells_more(outcome: Outcome) -> bool:
    """Whether an outcome adds to the ``Lost`` that was recorded at the deadline: the thread whose
    socket was shut mostly comes back with no more than that."""
    return not isinstance(outcome, Lost) or bool(outcome.veto)

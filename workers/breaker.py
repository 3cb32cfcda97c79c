"""The breaker: counts what comes back from one (vendor, account) in this process."""

from __future__ import annotations

from collections import defaultdict, deque

from outbox.outcomes import Lost, NotSent, Outcome
from outbox.policy import Policy

_SERVER_ERRORS = 500
# The reasons of a row that this process gave back unsent because it was told to end, or because a
# thread came too late to start: they speak of this process and not of the vendor.
HANDED_BACK = "handed back unsent"
TOO_LATE = "too_late"
_OURS = frozenset({HANDED_BACK, TOO_LATE})


def says_nothing(outcome: Outcome) -> bool:
    """Whether an outcome speaks of its row or of this process only, and not of the vendor: a row
    that can never be sent must not hold up everybody else's."""
    return isinstance(outcome, NotSent) and (outcome.local or outcome.reason in _OURS)


def is_bad(outcome: Outcome) -> bool:
    """Whether an outcome speaks of a vendor that is down: not sent, or a 5xx. A 429 asks for
    patience and a 401 for a person; neither is an outage."""
    if isinstance(outcome, NotSent):
        return not (outcome.throttled or outcome.pause or says_nothing(outcome))
    status = outcome.wire.http_status
    return isinstance(outcome, Lost) and status is not None and status >= _SERVER_ERRORS


def verdict_of_probe(outcome: Outcome) -> bool | None:
    """Whether the row that a tripped breaker let through found the vendor back; None where it
    says nothing, as a row that was never tried. Silence is no answer either."""
    if says_nothing(outcome):
        return None
    silent = isinstance(outcome, Lost) and outcome.wire.http_status is None
    return not (silent or is_bad(outcome))


class Breaker:
    """Trips when ``breaker_failures`` of the last ``breaker_sample`` outcomes within
    ``breaker_span_s`` were bad."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._seen: dict[tuple[str, str], deque[tuple[float, bool]]] = defaultdict(
            lambda: deque(maxlen=policy.breaker_sample)
        )

    def count(self, vendor: str, account: str, outcome: Outcome, now_s: float) -> bool:
        """Counts one outcome; True when the breaker trips with it."""
        if says_nothing(outcome):
            return False
        seen = self._seen[vendor, account]
        seen.append((now_s, is_bad(outcome)))
        since = now_s - self._policy.breaker_span_s
        bad = sum(1 for at, was_bad in seen if was_bad and at >= since)
        if bad < self._policy.breaker_failures:
            return False
        seen.clear()
        return True

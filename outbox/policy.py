"""Every duration of the product in one place, and the pure functions over them. Seconds.

The functions take what the database said; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from outbox.contract import VendorContract

_DAY_S = 86400.0
# Where a depth is limited each enqueue counts up to it: beyond this that would not be cheap.
MOST_DEPTH = 100_000
# No duration of ours is longer than that: beyond a hundred years a date has no room for it.
_MOST_S = 366 * _DAY_S
# Numbers that are no durations, and durations with a closer bound.
_MOST: Mapping[str, float] = {
    "batch": 10_000,
    "threads": 1_000,
    "children": 1_000,
    "max_resends": 1_000,
    "max_crashes": 1_000,
    "breaker_sample": 10**9,
    "breaker_failures": 10**9,
    "page_group_from": 10**6,
    "repage_s": 10**9,
    "call_deadline_s": 3600.0,
    "look_deadline_s": 3600.0,
    "connect_s": 3600.0,
    "lease_s": _DAY_S,
}
# How long what is over is kept; the least is longer than a vendor delivers an event again (Stripe,
# by its command line: 30 days) or takes a key for the same (its API v2: 30 days).
RETENTION_S = 400 * _DAY_S
LEAST_RETENTION_S = 35 * _DAY_S
MATCHED_EVENTS_S = 90 * _DAY_S
UNMATCHED_EVENTS_S = 35 * _DAY_S
HEARTBEATS_S = 35 * _DAY_S
_POSITIVE = ("ttl_max_s", "ttl_without_evidence_s", "ttl_override_s", "window_override_s")


@dataclass(frozen=True, slots=True)
class Policy:
    """The time policy. Defaults are for production; ``Policy.demo()`` is the same shape in small.

    ``call_deadline_s`` wall-clock limit of one call, ``look_deadline_s`` of one look-up with all
    its pages; ``lease_s`` how long a claim may send; ``start_limit_s`` until when after its claim
    began a thread may send its first byte.
    """

    call_deadline_s: float = 20.0
    look_deadline_s: float = 20.0
    connect_s: float = 5.0
    lease_s: float = 60.0
    start_limit_s: float = 30.0
    start_slack_s: float = 5.0
    drain_budget_s: float = 20.0
    budget_slack_s: float = 10.0
    soft_limit_s: float = 90.0
    hard_limit_s: float = 120.0
    visibility_timeout_s: float = 300.0
    batch: int = 64
    threads: int = 64
    children: int = 3
    tick_drain_s: float = 1.0
    tick_expire_s: float = 5.0
    tick_join_s: float = 2.0
    tick_resolve_s: float = 5.0
    tick_escalate_s: float = 15.0
    tick_page_s: float = 5.0
    tick_prune_s: float = 3600.0
    not_sent_first_s: float = 1.0
    not_sent_max_s: float = 60.0
    looks_s: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0, 1800.0)
    look_after_page_s: float = 3600.0
    resends_s: tuple[float, ...] = (10.0, 60.0, 300.0, 900.0)
    max_resends: int = 8
    max_crashes: int = 3
    ttl_max_s: float = 4 * 3600.0
    ttl_without_evidence_s: float = 900.0
    margin_slack_s: float = 300.0
    clock_skew_s: float = 600.0
    clock_step_s: float = 5.0
    breaker_sample: int = 20
    breaker_failures: int = 10
    breaker_span_s: float = 30.0
    breaker_probe_s: float = 15.0
    breaker_probe_max_s: float = 300.0
    lane_wait_s: float = 900.0
    repage_s: float = 1800.0
    page_group_from: int = 5
    page_tries_s: tuple[float, ...] = (0.0, 30.0, 120.0)
    park_s: float = 35 * 86400.0
    full_retry_s: float = 5.0
    window_override_s: float | None = None
    margin_override_s: float | None = None
    in_flight_override_s: float | None = None
    ttl_override_s: float | None = None

    @classmethod
    def demo(cls) -> Policy:
        """The demo's settings: the same rules within a minute."""
        return cls(
            call_deadline_s=1.0,
            look_deadline_s=1.0,
            connect_s=0.5,
            lease_s=3.0,
            start_limit_s=1.5,
            start_slack_s=0.3,
            drain_budget_s=2.0,
            soft_limit_s=20.0,
            hard_limit_s=30.0,
            visibility_timeout_s=60.0,
            batch=16,
            threads=32,
            tick_drain_s=0.25,
            tick_expire_s=0.5,
            tick_join_s=0.25,
            tick_resolve_s=0.25,
            tick_escalate_s=0.5,
            tick_page_s=0.5,
            not_sent_first_s=0.2,
            not_sent_max_s=1.0,
            looks_s=(1.0, 2.0, 4.0),
            look_after_page_s=4.0,
            resends_s=(1.0, 2.0, 4.0),
            max_resends=4,
            margin_slack_s=1.0,
            clock_skew_s=1.0,
            page_group_from=10**6,
            repage_s=10**9,
            full_retry_s=1.0,
            page_tries_s=(0.0, 1.0, 2.0),
            breaker_failures=10**9,
            window_override_s=40.0,
            margin_override_s=10.0,
            in_flight_override_s=5.0,
            ttl_override_s=12.0,
        )

    def adapted(self, contract: VendorContract) -> VendorContract:
        """The contract with this policy's overrides (the demo's small windows) applied."""
        overrides = (self.window_override_s, self.margin_override_s, self.in_flight_override_s)
        if overrides == (None, None, None):  # as ever but in the demo; asked several times a row
            return contract
        window = contract.window_s
        if window is not None and self.window_override_s is not None:
            # The vendor forgets its keys when it does: no setting makes it remember longer.
            window = min(window, self.window_override_s)
        return replace(
            contract,
            window_s=window,
            margin_s=_or(self.margin_override_s, contract.margin_s),
            in_flight_bound_s=_or(self.in_flight_override_s, contract.in_flight_bound_s),
        )

    def usable_window_s(self, contract: VendorContract) -> float | None:
        """How long after the first send a same-key send is still allowed; None: never again."""
        adapted = self.adapted(contract)
        if not adapted.honours_keys or adapted.window_s is None:
            return None
        margin = max(
            adapted.margin_s, self.lease_s + adapted.in_flight_bound_s + self.margin_slack_s
        )
        return max(adapted.window_s - margin, 0.0)

    def ttl_s(self, contract: VendorContract, asked_s: float | None = None) -> float:
        """How long an intent may stay unsettled before a person is paged."""
        if not contract.honours_keys and not contract.can_look_up:
            default = self.ttl_without_evidence_s
        else:
            window = self.adapted(contract).window_s if contract.honours_keys else None
            default = min(self.ttl_max_s, window / 2) if window else self.ttl_max_s
        # By comparisons alone: it is asked for each intent that is enqueued.
        least = default
        for s in (self.ttl_override_s, asked_s):
            if s is not None and s <= least:
                least = s
        return least

    def quiet_after_s(self, contract: VendorContract) -> float:
        """From the end of the last lease until absence can be ruled (quiescence)."""
        return self.adapted(contract).in_flight_bound_s + contract.read_lag_s

    def look_hold_s(self) -> float:
        """How long a resolver keeps a row to itself while it looks: nobody looks twice."""
        return 3 * self.look_deadline_s

    def look_after_lease_s(self) -> float:
        """From the end of a lease that nobody ended to its first look: as long after the last
        moment of its call as that of a lost answer, which in most settings has come by then."""
        return self.start_limit_s + self.call_deadline_s + self.looks_s[0] - self.lease_s

    def look_delay_s(self, looks: int, *, escalated: bool) -> float:
        """Until the next look-up, after ``looks`` of them."""
        if escalated and looks >= len(self.looks_s):
            return self.look_after_page_s
        return self.looks_s[min(looks, len(self.looks_s) - 1)]

    def resend_delay_s(self, resends: int) -> float:
        """Until the next same-key re-send may be approved, after ``resends`` of them."""
        return self.resends_s[min(resends, len(self.resends_s) - 1)]

    def loosened(self, contract: VendorContract) -> Iterator[tuple[str, str]]:
        """Overrides that say less than what is known of a vendor: for a sandbox alone."""
        for name, least in (
            ("margin_override_s", contract.margin_s),
            ("in_flight_override_s", contract.in_flight_bound_s),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                yield name, f"must be at least {least:g} for {contract.vendor} with a live key"

    def problems(self) -> Iterator[tuple[str, str]]:
        """The orderings that keep a call inside its lease and a task inside its limits, and
        numbers that mean nothing."""
        yield from self._out_of_bounds()
        ended = self.start_limit_s + self.call_deadline_s + self.start_slack_s
        if not ended < self.lease_s:
            yield "lease_s", f"must be above start limit + call deadline + slack, {ended:g}"
        longest = self.drain_budget_s + self.call_deadline_s + self.budget_slack_s
        if not longest < self.soft_limit_s:
            yield "soft_limit_s", f"must be above drain budget + call deadline + slack, {longest:g}"
        if not self.soft_limit_s < self.hard_limit_s:
            yield "hard_limit_s", f"must be above the soft limit, {self.soft_limit_s:g}"
        if not self.hard_limit_s < self.visibility_timeout_s:
            yield "visibility_timeout_s", f"must be above the hard limit, {self.hard_limit_s:g}"
        at_least_one = ("batch", "threads", "max_crashes", "page_group_from", "breaker_sample")
        for name in (*at_least_one, "breaker_failures"):
            if getattr(self, name) < 1:
                yield name, "must be at least 1"
        for item in fields(self):
            if item.name.startswith("tick_") and getattr(self, item.name) <= 0:
                yield item.name, "must be above 0: a tick without a pause stops everything else"
        if self.look_deadline_s <= 0:
            yield "look_deadline_s", "must be above 0: a look that may take no time finds nothing"
        if self.children < 2:
            yield "children", "must be at least 2: drains never take the last child"

    def _out_of_bounds(self) -> Iterator[tuple[str, str]]:
        for item in fields(self):
            value, most = getattr(self, item.name), _MOST.get(item.name, _MOST_S)
            values = value if isinstance(value, tuple) else (value,)
            if any(one is not None and one > most for one in values):
                yield item.name, f"must be at most {most:.0f}"
            elif item.name in _POSITIVE and value is not None and value <= 0:
                yield item.name, "must be above 0"


def _or(value: float | None, default: float) -> float:
    return default if value is None else value

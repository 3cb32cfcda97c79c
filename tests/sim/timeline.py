"""One timeline: an agent, two workers with their resolvers, a vendor, its webhooks and a person,
stepping through the product's own code as the choices say. First anything may go wrong; then
faults stop, and everything must come to an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from outbox import Answer, OutboxError
from outbox.store.due import next_due_in_s
from resolvers import holding, triage
from resolvers.receiving import receive
from tests.sim.choices import Choices
from tests.sim.ground import SECRET, Ground
from tests.sim.hosts import Faulty, Host, lost_connection
from tests.sim.scenarios import Scenario
from tests.sim.watch import Watch
from tests.sim.wire import Wire
from vendors.sandbox.json_webhooks import rendered, signed
from vendors.sandbox.sender import signature

JOBS = ("expire", "withdraw", "join", "look", "escalate", "page")
_LAST_ROUNDS = 12
_ENQUEUES = ("commits", "reply_lost", "rolled_back", "asked_twice")
_TURNS = (
    "nobody",
    "other_sends",
    "other_resolves",
    "agent_asks",
    "agent_again",
    "next_turn",
    "person",
    "consumer",
    "consumer_rolls_back",
    "clock_ahead",
    "clock_back",
    "told_to_end",
)
_CALM = tuple(turn for turn in _TURNS if not turn.startswith("clock_"))
_VERDICTS = (
    "landed",
    "not_landed",
    "resend",
    "cancel",
    "ack",
    "mute",
    "landed_as_another",
)
_EVENTS = (
    "delivered",
    "never",
    "twice",
    "second_event",
    "held",
    "other_mode",
    "other_account",
    "forged",
)
# Until something is due; or the worker was away for longer.
_STEPS = ("due", "a_minute", "past_the_lease", "past_the_ttl", "past_the_margin", "past_the_window")
_STEP_S = {"a_minute": 61.0, "past_the_lease": 130.0, "past_the_ttl": 4 * 3600.0 + 60,
           "past_the_margin": 22 * 3600.0 + 60, "past_the_window": 25 * 3600.0}  # fmt: skip
_LONGEST_S = 36 * 3600.0


@dataclass(slots=True)
class Timeline:
    """What happens, in order. ``watch`` raises ``Violation`` when a rule is broken."""

    ground: Ground
    scenario: Scenario
    choices: Choices
    hosts: list[Host] = field(default_factory=list)
    intents: list[UUID] = field(default_factory=list)
    nested: bool = False
    ruled: set[UUID] = field(default_factory=set)
    is_clock_doubted: bool = False
    watch: Watch = field(init=False)
    wire: Wire = field(init=False)
    acting: Host = field(init=False)
    web: Host = field(init=False)
    _held_events: list[dict[str, Any]] = field(default_factory=list)
    _epoch: str = ""

    def __post_init__(self) -> None:
        self.ground.begin(**self.scenario.vendor)
        faulty = Faulty(
            begins=self._begins, runs=self._runs, commits=self._commits, pauses=self._pauses,
            since_boot_s=lambda _: self.ground.vendor.now_s,
        )  # fmt: skip
        self.hosts = [
            Host(name, store, self.ground.directory, self.ground.settings, faulty)
            for name, store in zip(("A", "B", "web"), self.ground.stores, strict=True)
        ]
        self.web = self.hosts.pop()
        self.acting = self.hosts[0]
        self.watch = Watch(self)
        self.wire = Wire(self)
        self.ground.wire = self.wire
        self.ground.gate = self.wire.gate

    def run(self) -> None:
        """The whole of it. Raises ``Violation``."""
        asks, at_once = self.scenario.asks, self.scenario.at_once
        for number in range(self.scenario.rounds):
            for ask in range(len(asks))[number * at_once : (number + 1) * at_once]:
                self._enqueue(ask)
            self._round()
            asked_all = (number + 1) * at_once >= len(asks)
            if self.watch.found or (self._is_over() and asked_all and not self._has_a_turn()):
                break
            self._pass_time(self.choices.among("time", _STEPS))
        if not self.watch.found:
            self._end()

    def _has_a_turn(self) -> bool:
        return self.scenario.again is not None and not self._epoch

    def verdict(self) -> str:
        """What it came to, in a word or two: of each intent, and whether somebody was asked."""
        return self.watch.verdict()

    # -- somebody acts ---------------------------------------------------------------------------

    @contextmanager
    def _as(self, host: Host, *, nested: bool = False) -> Iterator[None]:
        before = (self.acting, self.nested)
        self.acting, self.nested = host, nested or self.nested
        try:
            yield
        finally:
            self.acting, self.nested = before

    def work(self, host: Host, *jobs: str) -> None:
        """A host does what is due of these jobs, in order."""
        with self._as(host):
            due = self.ground.due()
            for job in jobs:
                late = job == "drain" and host.sender.has_late_answers()
                if (job == "clock" or late or job in due) and host.work(job) != 0:
                    due = self.ground.due()

    def others_act(self, names: Sequence[str]) -> None:
        """Whoever is not acting now does something, while the other one waits."""
        other = next(host for host in self.hosts if host is not self.acting)
        with self._as(other, nested=True):
            for name in names:
                if name == "other_sends":
                    self.work(other, "drain")
                elif name == "other_resolves":
                    self.work(other, "expire", "withdraw", "join", "look")
                elif name == "webhooks_come":
                    self._webhooks()
                    self.work(other, "join")
                elif name == "person":
                    self._person()
                elif name == "next_turn":
                    self._next_turn()

    def _round(self) -> None:
        first, second = self.hosts
        turn = self.choices.among("turn", _TURNS if self.scenario.steps_clock else _CALM)
        acts: dict[str, Callable[[], object]] = {
            "other_sends": lambda: self.work(second, "drain"),
            "other_resolves": lambda: self.work(second, *JOBS),
            "agent_asks": self._ask,
            "agent_again": self._ask_again,
            "next_turn": self._next_turn,
            "person": self._person,
            "consumer": lambda: self.watch.consume(keep=True),
            "consumer_rolls_back": lambda: self.watch.consume(keep=False),
            "clock_ahead": lambda: self._step_clock(600.0),
            "clock_back": lambda: self._step_clock(-600.0),
            "told_to_end": lambda: setattr(first, "stopping", True),
        }
        if turn in acts:
            acts[turn]()
        self.work(first, "drain")
        first.stopping = False
        self._webhooks()
        self.work(first, *JOBS)
        self.watch.look()

    # -- the agent -------------------------------------------------------------------------------

    def _enqueue(self, ask: int, *, notes: str = "") -> Answer:
        scope, args = self.scenario.asks[ask]
        if "payment_method" in args and not notes:
            card = self.choices.among("card", self.scenario.cards)
            args = {**args, "payment_method": card}
        happens = self.choices.among("enqueue", _ENQUEUES)
        answer = self._ask_for(scope, args, keep=happens != "rolled_back")
        if happens != "commits":
            answer = self._ask_for(scope, args, keep=True)
        if answer.intent_id not in self.intents:
            self.intents.append(answer.intent_id)
        return answer

    def _ask_for(self, scope: Any, args: Any, *, keep: bool) -> Answer:
        agent = self.ground.agent
        try:
            answer = self.ground.outbox.enqueue(agent, self.scenario.tool, scope, args)
        except BaseException:
            agent.rollback()
            raise
        if keep:
            agent.commit()
        else:
            agent.rollback()
        return answer

    def _ask(self) -> None:
        """The agent asks what became of it, and is told."""
        for intent in self.intents:
            self.watch.heard(self.ground.outbox.wait(intent, 0.0))

    def _ask_again(self) -> None:
        """The same turn asks for the same write."""
        scope, args = self.scenario.asks[0]
        try:
            answer = self._ask_for(scope, args, keep=True)
        except OutboxError:
            return  # the card differs, or the epoch is over: nothing was recorded
        self.watch.same_row(answer)

    def _next_turn(self) -> None:
        """A new turn of the conversation begins, and asks for the same write once more."""
        if self.scenario.again is None or self._epoch:
            return
        scope, args = self.scenario.again
        agent = self.ground.agent
        self._epoch = scope.epoch
        self.ground.outbox.advance_epoch(agent, scope.tenant, scope.run_id, scope.epoch)
        agent.commit()
        untold = self.watch.untold(self.intents[0])
        try:
            answer = self._ask_for(scope, args, keep=True)
        except OutboxError:
            return
        self.watch.twin(answer, untold)
        if answer.intent_id not in self.intents:
            self.intents.append(answer.intent_id)

    # -- the vendor's events ---------------------------------------------------------------------

    def _webhooks(self) -> None:
        fresh = self._fresh_events()
        if len(fresh) > 1 and self.choices.pick("events in reverse", 2, of_world=True):
            fresh.reverse()
        for event in fresh:
            self.ground.vendor.delivered.add(event["id"])
            self._event(event, self.choices.among(f"event {event['type']}", _EVENTS))

    def _fresh_events(self) -> list[dict[str, Any]]:
        return [
            event for event in self.ground.vendor.events()
            if any(fnmatchcase(event["type"], kind) for kind in self.scenario.hears)
        ]  # fmt: skip

    def _event(self, event: dict[str, Any], how: str) -> None:
        if how == "held":
            self._held_events.append(event)
            return
        if how == "other_mode":
            event = {**event, "livemode": not event["livemode"]}
            obj = {**event["data"]["object"], "livemode": event["livemode"]}
            event["data"] = {**event["data"], "object": obj}
        if how == "other_account":
            event = {**event, "account": "acct_other"}
        if how != "never":
            self._deliver(event, forged=how == "forged")
        if how == "twice":
            self._deliver(event)
        if how == "second_event":
            self._deliver({**event, "id": f"{event['id']}_2"})

    def _deliver(self, event: dict[str, Any], *, forged: bool = False) -> None:
        web, vendor = self.web, self.scenario.tool.vendor
        now = int(self.ground.vendor.now_s + self.ground.skew_s)
        secrets = [SECRET + ("-forged" if forged else "")]
        if vendor == "stripe":
            body = json.dumps(event).encode()
            headers = {"Stripe-Signature": signature(secrets, body, now)}
        else:
            face = "nothing"
            body = json.dumps(rendered(face, event)).encode()
            headers = signed(face, secrets, event["id"], body, now)
        with self._as(web):
            answer = web.work(
                lambda: receive(
                    web.store, web.directory, vendor=vendor, account="default",
                    headers=headers, body=body,
                )
            )  # fmt: skip
        status = answer[0] if isinstance(answer, tuple) else None
        self.watch.received(status, forged=forged)
        if status in (None, 503):
            self._held_events.append(event)  # the vendor delivers it again

    # -- the person ------------------------------------------------------------------------------

    def _person(self) -> None:
        verdict = self.choices.among("verdict", _VERDICTS)
        said: dict[str, Any] = {"by": "ann", "reason": "simulated"}
        with self._as(self.web), suppress(OutboxError):  # refused: nothing was changed
            self.web.work(lambda: self._rule(self.web, verdict, self.intents[0], said))

    def _rule(self, host: Host, verdict: str, intent: UUID, said: dict[str, Any]) -> None:
        reference = str(intent)
        if verdict == "ack":
            holding.ack(host.store, host.directory, reference, for_s=1800.0, **said)
            return
        if verdict == "mute":
            holding.mute(host.store, reference, for_s=1800.0, **said)
            return
        if verdict == "cancel":
            triage.cancel(host.store, reference, **said)
            return
        if verdict == "resend":
            triage.resend(host.store, host.directory, reference, **said)
            return
        if verdict == "not_landed":
            ruling = triage.not_landed(host.store, host.directory, reference, **said)
        else:
            receipt = self.watch.receipt(intent, wrong=verdict == "landed_as_another")
            ruling = triage.landed(host.store, host.directory, reference, receipt, **said)
        if ruling.changed:
            self.ruled.add(intent)

    # -- time, faults ----------------------------------------------------------------------------

    def _pass_time(self, step: str) -> None:
        seconds = _STEP_S.get(step)
        if seconds is None:
            seconds = min(self._next_due_s() or 61.0, 4 * 3600.0 + 60)
        self.ground.pass_time(seconds)

    def _next_due_s(self) -> float | None:
        store = self.hosts[0].store
        quiet, self.choices.quiet = self.choices.quiet, True
        try:
            with store.transaction() as tx:
                return next_due_in_s(tx)
        finally:
            self.choices.quiet = quiet

    def _step_clock(self, seconds: float) -> None:
        """The database's clock is set; each worker sees it within a second, by its poll."""
        before = [self._sees_clock(host) for host in self.hosts]
        self.ground.step_clock(seconds)
        after = [self._sees_clock(host) for host in self.hosts]
        if any(map(all, zip(before, after, strict=True))):
            self.is_clock_doubted = True

    def _sees_clock(self, host: Host) -> bool:
        with self._as(host):
            return host.work("clock") is not None

    def _begins(self, host: Host) -> None:
        answers = 2 if self.nested else 3
        answer = self.choices.pick(f"{host.name} begins a transaction", answers)
        if answer == 1:
            host.kill()
        if answer == 2:
            self.others_act(("other_resolves", "other_sends"))

    def _runs(self, host: Host) -> None:
        if self.choices.pick(f"{host.name} runs a statement", 2):
            raise lost_connection()

    def _commits(self, host: Host) -> bool:
        happens = self.choices.pick(f"{host.name} commits", 5)
        if happens == 1:
            raise lost_connection()
        if happens == 2:
            host.kill()
        if happens == 3:
            host.alive = False  # committed, and the process is gone before it knows
        return happens != 4

    def _pauses(self, _: Host, seconds: float) -> None:
        self.ground.pass_time(seconds)

    # -- the end ---------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        vendor = self.ground.vendor
        return (
            self.watch.is_settled() and not vendor.late and not self._fresh_events()
            and vendor.last_due_s() <= vendor.now_s
        )  # fmt: skip

    def _end(self) -> None:
        """Faults stop. What was on its way arrives, what was held is delivered, and everything is
        settled or asked about."""
        self.choices.quiet = True
        first, second = self.hosts
        for _ in range(_LAST_ROUNDS):
            held, self._held_events = self._held_events, []
            for event in held:
                self._deliver(event)
            self._round()
            self.work(second, "drain")
            if self._is_over():
                break
            due_s = self._next_due_s()
            last_s = self.ground.vendor.last_due_s() - self.ground.vendor.now_s
            steps = [s for s in (due_s, last_s) if s is not None and s > 0]
            self.ground.pass_time(min([*steps, 4 * 3600.0 + 60]))
        self.watch.live()
        # Whoever comes much later finds everything as it must be.
        self.ground.pass_time(_LONGEST_S)
        self._round()
        self.work(first, "drain", *JOBS)
        self.watch.end()

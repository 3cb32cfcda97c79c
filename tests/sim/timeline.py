"""One timeline: an agent, two workers with their resolvers, a vendor, its webhooks and a person,
stepping through the product's own code as the choices say. First anything may go wrong; then
faults stop, and everything must come to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from tests.sim.actors import Agent, Person, Webhooks
from tests.sim.choices import Choices
from tests.sim.ground import Ground
from tests.sim.hosts import Faulty, Host, lost_connection
from tests.sim.scenarios import Scenario
from tests.sim.watch import Watch
from tests.sim.wire import Wire

JOBS = ("expire", "withdraw", "join", "look", "escalate", "page")
# After faults have stopped: so many rounds at the most, and so many after a person was asked.
_LAST_ROUNDS = 12
_ASKED_ROUNDS = 3
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
# Until something is due; or the worker was away for longer.
_STEPS = ("due", "a_minute", "past_the_lease", "past_the_ttl", "past_the_margin", "past_the_window")
_STEP_S = {"a_minute": 61.0, "past_the_lease": 130.0, "past_the_ttl": 4 * 3600.0 + 60,
           "past_the_margin": 22 * 3600.0 + 60, "past_the_window": 25 * 3600.0}  # fmt: skip
_LONGEST_S = 36 * 3600.0
# Longer than a lease: whoever claimed must not begin what it claimed.
_SLOW_COMMIT_S = 70.0


@dataclass(slots=True)
class Timeline:
    """What happens, in order. ``watch`` raises ``Violation`` when a rule is broken."""

    ground: Ground
    scenario: Scenario
    choices: Choices
    hosts: list[Host] = field(default_factory=list)
    intents: list[UUID] = field(default_factory=list)
    nested: bool = False
    is_clock_doubted: bool = False
    watch: Watch = field(init=False)
    wire: Wire = field(init=False)
    acting: Host = field(init=False)
    agent: Agent = field(init=False)
    webhooks: Webhooks = field(init=False)
    person: Person = field(init=False)

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
        web = self.hosts.pop()
        self.acting = self.hosts[0]
        self.agent = Agent(self)
        self.webhooks = Webhooks(self, web)
        self.person = Person(self, web)
        self.watch = Watch(self)
        self.wire = Wire(self)
        self.ground.wire = self.wire
        self.ground.gate = self.wire.gate

    def run(self) -> None:
        """The whole of it. Raises ``Violation``."""
        asks, at_once = self.scenario.asks, self.scenario.at_once
        for number in range(self.scenario.rounds):
            for ask in range(len(asks))[number * at_once : (number + 1) * at_once]:
                self.agent.enqueue(ask)
            self._round()
            asked_all = (number + 1) * at_once >= len(asks)
            if self.watch.found or (self._is_over() and asked_all and not self.agent.has_a_turn):
                break
            self._pass_time(self.choices.among("time", _STEPS))
        if not self.watch.found:
            self._end()

    def knows(self, intent: UUID) -> None:
        """An intent of this timeline."""
        if intent not in self.intents:
            self.intents.append(intent)

    def verdict(self) -> str:
        """What it came to, in a word or two: of each intent, and whether somebody was asked."""
        return self.watch.verdict()

    # -- somebody acts ---------------------------------------------------------------------------

    @contextmanager
    def acts(self, host: Host, *, nested: bool = False) -> Iterator[None]:
        """Meanwhile this host is the one that acts."""
        before = (self.acting, self.nested)
        self.acting, self.nested = host, nested or self.nested
        try:
            yield
        finally:
            self.acting, self.nested = before

    def work(self, host: Host, *jobs: str) -> None:
        """A host does what is due of these jobs, in order."""
        with self.acts(host):
            due: set[str] | None = None
            for job in jobs:
                due = self.ground.due() if due is None else due
                late = job == "drain" and host.sender.has_late_answers()
                if (late or job in due) and host.work(job) != 0:
                    due = None

    def others_act(self, names: Sequence[str]) -> None:
        """Whoever is not acting now does something, while the other one waits."""
        other = next(host for host in self.hosts if host is not self.acting)
        with self.acts(other, nested=True):
            for name in names:
                if name == "other_sends":
                    self.work(other, "drain")
                elif name == "other_resolves":
                    self.work(other, "expire", "withdraw", "join", "look")
                elif name == "webhooks_come":
                    self.webhooks.come()
                    self.work(other, "join")
                elif name == "person":
                    self.person.acts()
                elif name == "next_turn":
                    self.agent.next_turn()

    def _round(self) -> None:
        first, second = self.hosts
        turn = self.choices.among("turn", _TURNS if self.scenario.steps_clock else _CALM)
        acts: dict[str, Callable[[], object]] = {
            "other_sends": lambda: self.work(second, "drain"),
            "other_resolves": lambda: self.work(second, *JOBS),
            "agent_asks": self.agent.hears,
            "agent_again": self.agent.repeats,
            "next_turn": self.agent.next_turn,
            "person": self.person.acts,
            "consumer": lambda: self.watch.results.consume(keep=True),
            "consumer_rolls_back": lambda: self.watch.results.consume(keep=False),
            "clock_ahead": lambda: self._step_clock(600.0),
            "clock_back": lambda: self._step_clock(-600.0),
            "told_to_end": lambda: setattr(first, "stopping", True),
        }
        if turn in acts:
            acts[turn]()
        self.work(first, "drain")
        first.stopping = False
        self.webhooks.come()
        self.work(first, *JOBS)
        self.watch.look()

    # -- time, faults ----------------------------------------------------------------------------

    def _pass_time(self, step: str) -> None:
        seconds = _STEP_S.get(step)
        if seconds is None:
            seconds = min(self.ground.next_due_s() or 61.0, 4 * 3600.0 + 60)
        self.ground.pass_time(seconds)

    def _step_clock(self, seconds: float) -> None:
        """The database's clock is set; each worker sees it within a second, by its poll."""
        before = [self._sees_clock(host) for host in self.hosts]
        self.ground.step_clock(seconds)
        after = [self._sees_clock(host) for host in self.hosts]
        if any(map(all, zip(before, after, strict=True))):
            self.is_clock_doubted = True

    def _sees_clock(self, host: Host) -> bool:
        with self.acts(host):
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
        happens = self.choices.pick(f"{host.name} commits", 6)
        if happens == 5:
            self.ground.pass_time(_SLOW_COMMIT_S)  # committed, and the reply is long on its way
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
        return self.watch.is_settled() and self._is_quiet()

    def _is_quiet(self) -> bool:
        """Whether nothing more comes from the vendor by itself."""
        vendor = self.ground.vendor
        return (
            not vendor.late and not any(self.webhooks.fresh())
            and vendor.last_due_s() <= vendor.now_s
        )  # fmt: skip

    def _end(self) -> None:
        """Faults stop. What was on its way arrives, what was held is delivered, and everything is
        settled or asked about."""
        self.choices.quiet = True
        first, second = self.hosts
        asked_rounds = 0
        for _ in range(_LAST_ROUNDS):
            self.webhooks.come_again()
            self._round()
            self.work(second, "drain")
            self.watch.overdue()
            asked_rounds += self._is_quiet() and self.watch.is_asked()
            if self._is_over() or asked_rounds == _ASKED_ROUNDS:
                break
            due_s = self.ground.next_due_s()
            last_s = self.ground.vendor.last_due_s() - self.ground.vendor.now_s
            unseen_s = self.watch.unseen_in_s()
            steps = [s for s in (due_s, last_s, unseen_s) if s is not None and s > 0]
            self.ground.pass_time(min([*steps, 4 * 3600.0 + 60]))
        self.watch.live()
        # Whoever comes much later finds everything as it must be.
        self.ground.pass_time(_LONGEST_S)
        self._round()
        self.work(first, "drain", *JOBS)
        self.watch.end()

"""Who acts in a timeline beside the workers: the agent, the vendor's webhooks, a person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox import Answer, OutboxError
from resolvers import holding, triage
from resolvers.receiving import receive
from resolvers.triage_case import Ruling
from tests.sim.ground import SECRET
from tests.sim.hosts import Host
from vendors.sandbox.json_webhooks import rendered, signed
from vendors.sandbox.sender import signature

if TYPE_CHECKING:
    from tests.sim.timeline import Timeline

_ENQUEUES = ("commits", "reply_lost", "rolled_back", "asked_twice")
_VERDICTS = (
    "landed",
    "not_landed",
    "resend",
    "cancel",
    "ack",
    "mute",
    "landed_as_another",
    "pause",
    "resume",
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
    "amended",
)


class Agent:
    """Asks for writes in transactions of its own, and asks what became of them."""

    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        self._turn = ""

    @property
    def has_a_turn(self) -> bool:
        """Whether a next turn of the conversation is still to come."""
        return self._line.scenario.again is not None and not self._turn

    def enqueue(self, ask: int) -> None:
        """Asks for one write of the scenario; its commit may go wrong, and it asks again."""
        scope, args = self._line.scenario.asks[ask]
        if "payment_method" in args:
            card = self._line.choices.among("card", self._line.scenario.cards)
            args = {**args, "payment_method": card}
        happens = self._line.choices.among("enqueue", _ENQUEUES)
        answer = self._asked(scope, args, keep=happens != "rolled_back")
        if happens != "commits":
            answer = self._asked(scope, args, keep=True)
        self._line.knows(answer.intent_id)

    def _asked(self, scope: Any, args: Any, *, keep: bool) -> Answer:
        line = self._line
        connection = line.ground.agent
        try:
            answer = line.ground.outbox.enqueue(connection, line.scenario.tool, scope, args)
        except BaseException:
            connection.rollback()
            raise
        if keep:
            connection.commit()
        else:
            connection.rollback()
        return answer

    def hears(self) -> None:
        """Asks what became of it, and is told."""
        for intent in self._line.intents:
            self._line.watch.heard(self._line.ground.outbox.wait(intent, 0.0))

    def repeats(self) -> None:
        """The same turn asks for the same write."""
        scope, args = self._line.scenario.asks[0]
        try:
            answer = self._asked(scope, args, keep=True)
        except OutboxError:
            return  # the card differs, or the epoch is over: nothing was recorded
        self._line.watch.same_row(answer)

    def next_turn(self) -> None:
        """A new turn of the conversation begins, and asks for the same write once more."""
        line = self._line
        if line.scenario.again is None or self._turn:
            return
        scope, args = line.scenario.again
        self._turn = scope.epoch
        connection = line.ground.agent
        line.ground.outbox.advance_epoch(connection, scope.tenant, scope.run_id, scope.epoch)
        connection.commit()
        untold = line.watch.untold(line.intents[0])
        try:
            answer = self._asked(scope, args, keep=True)
        except OutboxError:
            return
        line.watch.twin(answer, untold)
        line.knows(answer.intent_id)


class Webhooks:
    """The vendor's deliveries to a receiver. ``held`` are those that it will make again."""

    def __init__(self, timeline: Timeline, receiver: Host) -> None:
        self._line = timeline
        self._receiver = receiver
        self._held: list[dict[str, Any]] = []
        self._amended: list[dict[str, Any]] = []

    def come(self) -> None:
        """Each new event comes, or does not, as is chosen."""
        choices = self._line.choices
        amended, self._amended = self._amended, []
        for event in amended:
            self._deliver(event)
        fresh = list(self.fresh())
        if len(fresh) > 1 and choices.pick("events in reverse", 2, of_world=True):
            fresh.reverse()
        for event in fresh:
            self._line.ground.vendor.delivered.add(event["id"])
            self._comes(event, choices.among(f"event {event['type']}", _EVENTS))

    def come_again(self) -> None:
        """What was held is delivered."""
        held, self._held = self._held, []
        for event in held:
            self._deliver(event)

    def fresh(self) -> Iterator[dict[str, Any]]:
        """What has happened at the vendor, is listened for, and was not delivered yet."""
        for event in self._line.ground.vendor.events():
            if any(fnmatchcase(event["type"], kind) for kind in self._line.scenario.hears):
                yield event

    def _comes(self, event: dict[str, Any], how: str) -> None:
        if how == "held":
            self._held.append(event)
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
        if how == "amended":
            self._amended.append(_amended(event))
        if how == "second_event":
            self._deliver({**event, "id": f"{event['id']}_2"})

    def _deliver(self, event: dict[str, Any], *, forged: bool = False) -> None:
        receiver, vendor = self._receiver, self._line.scenario.tool.vendor
        headers, body = self._request(event, vendor, SECRET + ("-forged" if forged else ""))
        with self._line.acts(receiver):
            answer = receiver.work(
                lambda: receive(
                    receiver.store, receiver.directory, vendor=vendor, account="default",
                    headers=headers, body=body,
                )
            )  # fmt: skip
        status = answer[0] if isinstance(answer, tuple) else None
        self._line.watch.received(status, event["id"], forged=forged)
        if status in (None, 503):
            self._held.append(event)

    def _request(
        self, event: dict[str, Any], vendor: str, secret: str
    ) -> tuple[dict[str, str], bytes]:
        now = int(self._line.ground.vendor.now_s + self._line.ground.skew_s)
        if vendor == "stripe":
            body = json.dumps(event).encode()
            return {"Stripe-Signature": signature([secret], body, now)}, body
        face = "nothing"
        body = json.dumps(rendered(face, event)).encode()
        return signed(face, [secret], event["id"], body, now), body


def _amended(event: dict[str, Any]) -> dict[str, Any]:
    """The same object, a round later, of another amount than was asked for."""
    obj = event["data"]["object"]
    more = {name: obj[name] + 100 for name in ("amount", "amount_received") if obj.get(name)}
    return {
        **event,
        "id": f"{event['id']}_amended",
        "data": {**event["data"], "object": {**obj, **more}},
    }


class Person:
    """Rules on the first intent, rightly or wrongly. ``ruled`` are those that were ruled on."""

    def __init__(self, timeline: Timeline, host: Host) -> None:
        self._line = timeline
        self._host = host
        self.ruled: set[UUID] = set()

    def acts(self) -> None:
        """One verb of the command line, as is chosen."""
        verdict = self._line.choices.among("verdict", _VERDICTS)
        with self._line.acts(self._host), suppress(OutboxError):  # refused: nothing was changed
            self._host.work(lambda: self._rules(verdict, self._line.intents[0]))

    def _rules(self, verdict: str, intent: UUID) -> None:
        store, directory, reference = self._host.store, self._host.directory, str(intent)
        said: dict[str, Any] = {"by": "ann", "reason": "simulated"}
        match verdict:
            case "ack":
                holding.ack(store, directory, reference, for_s=1800.0, **said)
            case "mute":
                holding.mute(store, reference, for_s=1800.0, **said)
            case "pause" | "resume":
                done = holding.pause if verdict == "pause" else holding.resume
                done(store, directory, self._line.scenario.tool.vendor, "default", **said)
            case "cancel":
                triage.cancel(store, reference, **said)
            case "resend":
                triage.resend(store, directory, reference, **said)
            case "not_landed":
                ruling = triage.not_landed(store, directory, reference, **said)
                self._has(verdict, intent, ruling)
            case _:
                wrong = verdict == "landed_as_another"
                receipt = self._line.watch.receipt(intent, wrong=wrong)
                ruling = triage.landed(store, directory, reference, receipt, **said)
                self._has(verdict, intent, ruling)

    def _has(self, verdict: str, intent: UUID, ruling: Ruling) -> None:
        if ruling.changed:
            self.ruled.add(intent)
            self._line.watch.ruled(verdict, intent)

"""``outbox drill timelines``: what the replies say of 4,000 calls beside what the world says.

Each policy meets the same enumerated timelines (``timelines_enumerated``) at the same vendor, a
process of its own: three clients over HTTP, and the outbox with its own enqueue, sender and
resolvers, on time that is moved. The published figures are reported success, applied once and
doubled of three of the policies; how often what goes wrong is derived from them, and said beneath
the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from outbox import Scope, WriteTool
from workers.cli_output import Column
from workers.drills.report import Progress, Row, Value
from workers.drills.simulated import TENANT, Simulated, open_simulated
from workers.drills.timelines_enumerated import Timeline, enumerated
from workers.drills.timelines_others import OTHERS, Policy, said_of

CALLS = _PUBLISHED_CALLS = 4_000
# Past the TTL of a write whose vendor honours its key.
_HORIZON_S = 5 * 3600.0
_CHUNK = 500
_POINTS = 2.0
_CONTRACT, _PATH = "keys", "/billing/charges"
OURS = "the outbox"
T = TypeVar("T")
COLUMNS: tuple[Column, ...] = (
    Column("policy"),
    Column("reported_pct", head="reported %", right=True),
    Column("published_reported_pct", rank=1, head="published", right=True),
    Column("once_pct", head="once %", right=True),
    Column("published_once_pct", rank=1, head="published", right=True),
    Column("doubled", right=True),
    Column("published_doubled", rank=1, head="published", right=True),
    Column("false_words", head="false words", right=True),
    Column("tries_per_call", rank=2, head="tries", right=True),
    Column("unknown", right=True),
    Column("refused", rank=3, right=True),
)
LEGEND: tuple[str, ...] = (
    "4,000 timelines a policy, all different: 2.17 % of the calls are never taken (half refused,",
    "half at a vendor that is out), 8.05 % of the requests are lost, and 8.93 % of the replies.",
    "The fractions are derived from the published figures, which are met within 2 points.",
    "reported: told as done; once, doubled: effects in the vendor's world; false words: told as",
    "failed and done, or as done and not done once; tries: writes on the wire, a call; unknown:",
    "said so, and a person was asked; refused: told as failed, and nothing was done.",
)


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of a policy: in percent, and the number of doubled calls of 4,000."""

    reported_pct: float | None
    once_pct: float
    doubled: int


PUBLISHED: Mapping[str, Published] = {
    "no retry": Published(81.92, 89.95, 0),
    "three tries": Published(96.95, 89.42, 334),
    "three tries with a key": Published(None, 97.78, 0),
}


@dataclass(slots=True)
class Told:
    """What a policy said of one call. ``unsure``: that it cannot know; ``asked``: a person was."""

    done: bool = False
    failed: bool = False
    unsure: bool = False
    asked: bool = False


def run(progress: Progress) -> Iterable[Row]:
    """A row a policy. Raises ``ServersError`` where no Postgres can be started."""
    return drilled(enumerated(CALLS), progress)


def drilled(timelines: Sequence[Timeline], progress: Progress) -> list[Row]:
    """The rows over these timelines."""
    progress.say("starting Postgres and the vendor")
    with open_simulated() as world:
        rows = []
        for policy in OTHERS:
            progress.say(f"{policy.name}: {len(timelines)} calls")
            rows.append(_other(world, policy, timelines))
        progress.say(f"{OURS}: enqueuing {len(timelines)} intents")
        rows.append(_ours(world, timelines, progress))
        return rows


# -- the others ------------------------------------------------------------------------------


def _other(world: Simulated, policy: Policy, timelines: Sequence[Timeline]) -> Row:
    calls = {f"{policy.name}-{number}": one for number, one in enumerate(timelines)}
    _plan(world, calls)
    said = said_of(policy, world.limbo.address(_CONTRACT) + _PATH, list(calls))
    # They know two words: what did not succeed has failed.
    told = {call: Told(done=done, failed=not done) for call, done in said.items()}
    values = _values(policy.name, world, calls, told)
    return Row(values, _is_as_published(values, PUBLISHED[policy.name], len(calls)))


def _is_as_published(values: Mapping[str, Value], published: Published, calls: int) -> bool:
    pairs = (
        (values["reported_pct"], published.reported_pct),
        (values["once_pct"], published.once_pct),
        (
            _percent(int(values["doubled"] or 0), calls),
            _percent(published.doubled, _PUBLISHED_CALLS),
        ),
    )
    return all(
        wanted is None or abs(float(found or 0.0) - wanted) <= _POINTS for found, wanted in pairs
    )


# -- the outbox ------------------------------------------------------------------------------


def _ours(world: Simulated, timelines: Sequence[Timeline], progress: Progress) -> Row:
    ids = _enqueued(world, len(timelines))
    calls = dict(zip(map(str, ids), timelines, strict=True))
    _plan(world, calls)
    progress.say(f"{OURS}: sending")
    world.pass_time(60.0)
    progress.say(f"{OURS}: a minute has passed; settling what is open")
    world.pass_time(_HORIZON_S)
    told = dict(zip(calls, _heard(world, ids), strict=True))
    done = _effects(world)
    ok = all(_is_right(one, told[call], done[call]) for call, one in calls.items())
    return Row(_values(OURS, world, calls, told), ok)


def _enqueued(world: Simulated, count: int) -> list[UUID]:
    charge = WriteTool(
        "charge",
        vendor="limbo_keys",
        operation="billing.charge",
        side_effect="charge",
        identity=("invoice_id",),
        guard=("amount", "currency"),
        money=("amount", "currency"),
        request=lambda args: {n: args[n] for n in ("amount", "currency", "customer")},
    )
    scope = Scope(tenant=TENANT, run_id="run", account=_CONTRACT)
    money = {"amount": 4900, "currency": "usd", "customer": "ann"}
    asked = [(scope, {"invoice_id": f"in_{number}", **money}) for number in range(count)]
    ids: list[UUID] = []
    for part in _chunks(asked):
        with world.store.transaction() as tx:
            answers = world.outbox.enqueue_many(tx.connection, charge, part)
        ids += [answer.intent_id for answer in answers]
    return ids


def _heard(world: Simulated, ids: Sequence[UUID]) -> Iterator[Told]:
    answers, asked = world.answers(ids), world.paged() & world.asked()
    for intent_id in ids:
        word = answers[intent_id].told
        yield Told(
            done=word == "settled",
            failed=word == "failed",
            unsure=word in ("unknown", "accepted"),
            asked=intent_id in asked,
        )


def _is_right(timeline: Timeline, told: Told, effects: int) -> bool:
    """What the outbox owes a call: once and told so where the vendor would ever take it, else
    nothing, and a refusal or a person who was asked."""
    if timeline.can_be_applied:
        return effects == 1 and told.done
    return effects == 0 and (told.failed or (told.unsure and told.asked))


# -- both ------------------------------------------------------------------------------------


def _plan(world: Simulated, calls: Mapping[str, Timeline]) -> None:
    plans = [
        (call, {"vendor": one.vendor, "fates": list(one.fates)}) for call, one in calls.items()
    ]
    for part in _chunks(plans):
        world.limbo.plan(dict(part))


def _effects(world: Simulated) -> Counter[str]:
    return Counter(effect["call"] for effect in world.limbo.effects())


def _values(
    name: str, world: Simulated, calls: Mapping[str, Timeline], told: Mapping[str, Told]
) -> dict[str, Value]:
    done, sent = _effects(world), world.limbo.sent()
    counts = [done[call] for call in calls]
    published = PUBLISHED.get(name)
    return {
        "policy": name,
        "reported_pct": _percent(sum(one.done for one in told.values()), len(calls)),
        "tries_per_call": round(sum(sent.get(call, 0) for call in calls) / len(calls), 3),
        "once_pct": _percent(sum(n == 1 for n in counts), len(calls)),
        "doubled": sum(n > 1 for n in counts),
        "unknown": sum(one.unsure for one in told.values()),
        "refused": sum(told[call].failed and not done[call] for call in calls),
        "false_words": sum(_is_false(told[call], done[call]) for call in calls),
        "published_reported_pct": published.reported_pct if published else None,
        "published_once_pct": published.once_pct if published else None,
        "published_doubled": published.doubled if published else None,
    }


def _is_false(told: Told, effects: int) -> bool:
    return (told.done and effects != 1) or (told.failed and effects > 0)


def _percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2)


def _chunks(found: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(found), _CHUNK):
        yield found[start : start + _CHUNK]

"""``outbox drill leases``: answers that come after their lease, and acknowledgements that are lost.

Each scenario is played with several calls on an outbox of its own. Four properties are checked for
each call, from the vendor's ledger, the wire, and the rows of the outbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from outbox import Answer
from outbox.states import Status
from vendors.sandbox.client import Sandbox
from workers.cli_output import Column
from workers.drills.leases_scenarios import SCENARIOS, Play, Played
from workers.drills.parts import Parts, attempts_of, history_of, open_parts, posts, row_of
from workers.drills.report import Progress, Row, Value
from workers.testing import OutboxBox

COLUMNS = (
    Column("scenario", folds=True),
    Column("calls", rank=1, right=True),
    Column("leases", rank=2, right=True),
    Column("effects", right=True),
    Column("ended", folds=True),
    Column("one_effect_per_key_and_epoch", head="one"),
    Column("no_bind_on_a_lease_mismatch", head="no bind"),
    Column("a_timeout_alone_adds_no_effect", head="timeout"),
    Column("ends_in_commit_compensate_or_reject", head="ends"),
    Column("problem", rank=3, folds=True),
)
LEGEND = (
    "effects: in the vendor's own ledger, refunds too. one: at most one effect per key",
    "and epoch. no bind: an answer whose lease is over is not bound as its answer.",
    "timeout: alone it sends and applies nothing, before a look-up allows it. ends: in",
    "commit, compensate (a refund) or reject, each call that was in doubt.",
)
_REJECTED = frozenset({Status.FAILED_POISON, Status.CANCELLED})
_ENDS = ("commit", "compensate", "reject")
_IN_DOUBT = "open"


def run(progress: Progress) -> Iterable[Row]:
    """The three scenarios, one after the other."""
    rows = []
    with open_parts(progress) as parts:
        for name, (play, settings) in SCENARIOS.items():
            progress.say(name)
            rows.append(row(parts, name, play, settings))
    return rows


def row(parts: Parts, name: str, play: Play, settings: dict[str, str]) -> Row:
    """Plays one scenario on an outbox of its own."""
    with parts.box(settings) as box:
        played = play(box)
        intents = [*played.calls, *played.compensations.values()]
        ended = Counter(_end(box, call, played) for call in played.calls)
        properties = {
            "one_effect_per_key_and_epoch": _one_effect(box, intents),
            "no_bind_on_a_lease_mismatch": not played.bound
            and all(_is_bound_by_its_own(box, one) for one in intents),
            "a_timeout_alone_adds_no_effect": not played.added
            and all(_is_allowed(box, one) for one in intents),
            "ends_in_commit_compensate_or_reject": not ended[_IN_DOUBT],
        }
        problems = [*played.problems]
        problems += [v["check"] for v in box.sandbox.oracle(box.account)["violations"]]
        if not _tells_the_truth(box, intents):
            problems.append("the rows say other effects than the vendor's ledger has")
        if dict(ended) != dict(played.ends):
            problems.append("they did not end as the scenario has them end")
        values: dict[str, Value] = {
            "scenario": name,
            "calls": len(played.calls),
            "leases": sum(row_of(box, call).lease_no for call in played.calls),
            "effects": len(applied(box.sandbox, box.account)),
            "ended": ", ".join(f"{ended[end]} {end}" for end in (*_ENDS, _IN_DOUBT) if ended[end]),
            **properties,
            "problem": "; ".join(problems),
        }
    return Row(values, all(properties.values()) and not problems)


# -- the four properties -------------------------------------------------------------------------


def applied(sandbox: Sandbox, account: str) -> list[dict[str, object]]:
    """The effects that the vendor's ledger counts."""
    return [e for e in sandbox.effects(account) if e["outcome"] == "applied"]


def _one_effect(box: OutboxBox, intents: Sequence[Answer]) -> bool:
    """Every effect is of one of our keys, and no key and epoch has two."""
    rows = {row.key.hex(): row for row in (row_of(box, one) for one in intents)}
    effects = applied(box.sandbox, box.account)
    if any(str(e["key"]) not in rows for e in effects):
        return False
    counted = Counter((e["key"], rows[str(e["key"])].epoch) for e in effects)
    return max(counted.values(), default=0) <= 1


def _tells_the_truth(box: OutboxBox, intents: Sequence[Answer]) -> bool:
    """What the rows call done is what the vendor has done, and nothing else is."""
    rows = [row_of(box, one) for one in intents]
    done = Counter(row.key.hex() for row in rows if row.state is Status.SUCCEEDED)
    return done == Counter(str(e["key"]) for e in applied(box.sandbox, box.account))


def _is_bound_by_its_own(box: OutboxBox, intent: Answer) -> bool:
    """A row that an answer settled was settled by that of its last lease, and every answer of an
    older lease is kept as late."""
    row, attempts = row_of(box, intent), attempts_of(box, intent)
    answers = [a for a in attempts if a["outcome"] in ("receipt", "refused", "not_sent")]
    if any(a["lease_no"] != row.lease_no and not a["late"] for a in answers):
        return False
    in_time = [a for a in answers if not a["late"]]
    return row.settled_by not in ("reply", "replay") or bool(in_time)


def _is_allowed(box: OutboxBox, intent: Answer) -> bool:
    """Each request after the first had a leave of its own, which only a resolver gives."""
    key = row_of(box, intent).key.hex()
    sent = sum(1 for p in posts(box.sandbox, box.account) if p["key"] == key)
    leaves = sum(1 for h in history_of(box, intent) if h["kind"] == "resend_approved")
    return sent <= 1 + leaves


def _end(box: OutboxBox, call: Answer, played: Played) -> str:
    row = row_of(box, call)
    compensation = played.compensations.get(call.intent_id)
    if row.state is Status.SUCCEEDED and compensation is not None:
        done = row_of(box, compensation).state is Status.SUCCEEDED
        return "compensate" if done else _IN_DOUBT
    if row.state is Status.SUCCEEDED:
        return "commit"
    return "reject" if row.state in _REJECTED else _IN_DOUBT

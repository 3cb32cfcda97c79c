"""Long histories: thirty intents in five lanes over a day and more, recorded as they happen, and
checked afterwards from the record alone. Whoever checks knows neither the product's code nor its
tables' rules: only what was asked, what was on the wire, what took effect, what was told and what
the consumer was handed.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.scenarios import LONG

if TYPE_CHECKING:
    from tests.sim.explore import Explorer, Ran
    from tests.sim.timeline import Timeline

_FINAL = ("settled", "failed", "cancelled")
_SETTLED = {"succeeded": "settled", "failed_poison": "failed", "cancelled": "cancelled"}


def long_histories(explorer: Explorer, seed: int, seconds: float) -> Iterator[Ran]:
    """Histories until so many seconds have passed."""
    return explorer.walks(seed, seconds, scenarios=(LONG,))


def recorded(line: Timeline) -> str:
    """One history as JSON: plain lists, in the order in which things happened."""
    ground = line.ground
    intents = ground.rows(
        "SELECT id::text, encode(key, 'hex') AS key, lane, seq, status, receipt_id, "
        "contradicted_at IS NOT NULL AS contradicted, "
        "EXTRACT(EPOCH FROM settled_at)::float8 AS settled_at FROM outbox.intents ORDER BY seq"
    )
    events = ground.rows(
        "SELECT intent_id::text AS intent, kind, from_status, to_status FROM outbox.events "
        "WHERE intent_id IS NOT NULL AND from_status IS NOT NULL ORDER BY id"
    )
    answers = ground.rows(
        "SELECT encode(i.key, 'hex') AS key, a.http_status AS status, "
        "EXTRACT(EPOCH FROM a.ended_at)::float8 AS at "
        "FROM outbox.attempts a JOIN outbox.intents i ON i.id = a.intent_id ORDER BY a.id"
    )
    results = ground.rows(
        "SELECT id, intent_id::text AS intent, kind, status, told FROM outbox.settlements "
        "ORDER BY id"
    )
    asked = ground.rows(
        "SELECT DISTINCT COALESCE(intent_id::text, holder) AS about FROM outbox.escalations "
        "WHERE closed_at IS NULL"
    )
    return json.dumps(
        {
            "intents": intents,
            "events": events,
            "answers": answers,
            "results": results,
            "asked": [row["about"] for row in asked],
            "ruled": [str(one) for one in line.person.ruled],
            "told": [[str(intent), word] for intent, word in line.watch.said],
            "handed": line.watch.results.handed,
            "wire": ground.vendor.ledger.all(
                "select key, body_sha256, at, status from requests where method = 'POST' "
                "and origin = 'client' order by seq"
            ),
            "effects": ground.vendor.ledger.all(
                "select key, object_id, outcome, at from effects order by seq"
            ),
            "faults": [kind for _, kind in line.wire.happened],
        }
    )


def problems(text: str) -> Iterator[str]:
    """What a history shows that must not be."""
    history = json.loads(text)
    wire, effects = _by_key(history["wire"]), _by_key(history["effects"])
    answers = _by_key(history["answers"])
    told: dict[str, list[str]] = defaultdict(list)
    for intent, word in history["told"]:
        told[intent].append(word)
    for row in history["intents"]:
        yield from _of_wire(row, wire[row["key"]], answers[row["key"]])
        yield from _of_effects(row, effects[row["key"]], history)
        yield from _of_words(row, told[row["id"]], history)
    strangers = set(wire) - {row["key"] for row in history["intents"]}
    if strangers:
        yield f"keys on the wire that nobody recorded: {sorted(map(str, strangers))}"
    yield from _of_lanes(history["intents"], wire)
    yield from _of_moves(history["events"])
    yield from _of_results(history)


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    return found


def _of_wire(
    row: Mapping[str, Any],
    posts: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    if len({post["body_sha256"] for post in posts}) > 1:
        yield f"{row['id']}: two bodies under one key"
    if row["status"] == "cancelled" and posts:
        yield f"{row['id']}: cancelled, and it was on the wire"
    # As it was recorded: an answer that a killed process took with it is nobody's to know.
    stored = [answer["at"] for answer in answers if answer["status"] == 500]
    if stored and any(post["at"] > stored[0] for post in posts):
        yield f"{row['id']}: sent again after a stored 500"


def _of_effects(
    row: Mapping[str, Any], effects: Sequence[Mapping[str, Any]], history: Mapping[str, Any]
) -> Iterator[str]:
    undone = {one["object_id"] for one in effects if one["outcome"] == "reversed"}
    landed = {one["object_id"] for one in effects if one["outcome"] == "applied"}
    if len(landed - undone) > 1 and "pruned_early" not in history["faults"]:
        yield f"{row['id']}: {len(landed)} effects"
    if row["status"] == "succeeded" and not landed:
        yield f"{row['id']}: succeeded, and nothing took effect"
    if row["status"] == "succeeded" and row["receipt_id"] not in landed:
        yield f"{row['id']}: its receipt is of another object"
    if row["status"] != "succeeded" and landed and row["id"] not in history["asked"]:
        yield f"{row['id']}: {row['status']}, and it took effect and nobody was asked"
    if row["settled_at"] is None and not history["asked"]:
        yield f"{row['id']}: {row['status']} at the end, and nobody was asked"


def _of_words(
    row: Mapping[str, Any], words: Sequence[str], history: Mapping[str, Any]
) -> Iterator[str]:
    final = [word for word in words if word in _FINAL]
    if len(set(final)) > 1 and row["id"] not in history["ruled"]:
        yield f"{row['id']}: told {' and then '.join(dict.fromkeys(final))}"
    if final and final[-1] != _SETTLED.get(row["status"]):
        yield f"{row['id']}: told {final[-1]}, and it is {row['status']}"


def _of_lanes(
    intents: Sequence[Mapping[str, Any]], wire: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[str]:
    lanes: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in intents:
        if row["lane"] is not None:
            lanes[row["lane"]].append(row)
    for rows in lanes.values():
        for earlier, later in itertools.pairwise(rows):
            posts = wire.get(later["key"], ())
            if not posts:
                continue
            if earlier["settled_at"] is None or posts[0]["at"] < earlier["settled_at"]:
                yield f"{later['id']}: overtook {earlier['id']} in their lane"


def _of_moves(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ended: dict[str, str] = {}
    for event in events:
        intent, at = event["intent"], ended.get(event["intent"])
        if at is not None and event["to_status"] != at and event["kind"] != "ruled_landed":
            yield f"{intent}: left {at} for {event['to_status']} by {event['kind']}"
        if event["to_status"] in _SETTLED:
            ended[intent] = event["to_status"]


def _of_results(history: Mapping[str, Any]) -> Iterator[str]:
    every = [row["id"] for row in history["results"]]
    if sorted(history["handed"]) != every:
        yield f"results {every}, handed over {sorted(history['handed'])}"
    with_result = {row["intent"] for row in history["results"]}
    for row in history["intents"]:
        if row["settled_at"] is not None and row["id"] not in with_result:
            yield f"{row['id']}: settled without a result"

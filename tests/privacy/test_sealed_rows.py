"""Sealed rows from enqueue to settlement: mixed keys, missing keys, and values put elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import psycopg
import pytest

from outbox import Outbox, Scope, WriteTool
from outbox.codec import codec_of
from outbox.errors import Invalid
from outbox.intent import draft, sealed
from outbox.outcomes import Lost
from outbox.store import intents, redaction
from outbox.store.claims import Claimer
from outbox.store.records import Ended, record
from resolvers.directory import Directory
from resolvers.doctoring_setup import asked_of
from tests.privacy.rings import BOTH, NEW, OLD
from tests.privacy.sealed import PERSON, Process, everything, landed_event, process, settings
from tests.workers.floor import CARD, CHARGE, PRODUCTION, Floor, enqueue, open_floor
from vendors.sandbox.client import Sandbox


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    """Its own processes keep values plain; time passes where the test says so."""
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened


def described(floor: Floor) -> list[str]:
    return [o["description"] for o in floor.sandbox.objects(floor.account, "payment_intents")]


def lose(worker: Process) -> None:
    """The one due row is claimed, and no byte of its request ever leaves."""
    claimer = Claimer(worker.store, worker.directory.sendable(), owner="w", lease_s=60.0)
    (claimed,) = claimer.claim(64)
    with worker.store.transaction() as tx:
        record(tx, [Ended(claimed, Lost("no reply"))])


def test_a_write_is_sealed_at_rest_and_sent_in_the_clear(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, OLD), description=PERSON)
    with process(floor, OLD) as worker:
        assert worker.drain() == 1
        worker.receive(landed_event(floor, intent, floor.row(intent)["receipt_id"]))
        assert worker.join() == 1
    row = floor.row(intent)
    assert row["status"] == "succeeded"
    assert described(floor) == [PERSON]
    assert PERSON not in everything(floor)
    assert {row["args_codec"], row["request_codec"], row["receipt_codec"]} == {"aesgcm:old"}
    (event,) = floor.sql("SELECT * FROM outbox.webhook_inbox")
    assert (event["state"], event["body_codec"]) == ("joined", "aesgcm:old")


def test_the_hash_is_of_the_request_and_not_of_what_is_kept(floor: Floor) -> None:
    (plain,) = enqueue(floor.settings, invoice_id="in_same", run="r1")
    (sealed,) = enqueue(settings(floor, OLD), invoice_id="in_other", run="r1")
    row = floor.row(plain)
    assert row["request_sha256"] == hashlib.sha256(row["request"].encode()).digest()
    with process(floor, OLD) as worker, worker.store.transaction() as tx:
        read = intents.read(tx, sealed)
    assert read is not None
    request = read.plain_text("request")
    assert request is not None
    assert request != read.request
    assert bytes(read.request_sha256) == hashlib.sha256(request.encode()).digest()
    assert json.loads(request)["params"]["amount"] == CARD["amount"]


def test_plain_rows_and_rows_of_two_keys_work_side_by_side(floor: Floor) -> None:
    ids = [*enqueue(floor.settings, 2)]
    ids += enqueue(settings(floor, OLD), 2)
    ids += enqueue(settings(floor, BOTH), 2)
    with process(floor, BOTH) as worker:
        assert worker.drain() == 6
    assert floor.statuses() == {"succeeded": 6}
    assert [floor.row(i)["request_codec"] for i in ids] == [
        *("plain", "plain", "aesgcm:old", "aesgcm:old", "aesgcm:new", "aesgcm:new")
    ]
    assert {floor.row(i)["receipt_codec"] for i in ids} == {"aesgcm:new"}
    assert floor.violations() == []


def test_a_row_whose_key_is_missing_is_left_alone_and_paged_at_its_ttl(floor: Floor) -> None:
    (theirs,) = enqueue(settings(floor, NEW))
    (ours,) = enqueue(settings(floor, OLD))
    with process(floor, OLD) as worker:
        assert worker.drain() == 1
        row = floor.row(theirs)
        assert (row["status"], row["attempts"], row["not_sent_count"]) == ("pending", 0, 0)
        floor.advance(row["ttl_s"] + 1)
        assert worker.drain() == 0
        worker.escalate()
    assert floor.status(ours) == "succeeded"
    (question,) = floor.escalations()
    assert (question["intent_id"], question["reasons"]) == (theirs, ["ttl"])
    assert len(floor.pages()) == 1
    with process(floor, BOTH) as worker:
        assert worker.drain() == 1
    assert floor.status(theirs) == "succeeded"
    assert floor.effects(theirs) == 1


def test_a_missing_key_is_found_by_doctor_until_it_is_there(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, NEW))

    def finding(keys: str) -> tuple[bool, int, str]:
        directory = Directory(settings(floor, keys), {})
        (ask,) = [ask for name, _, ask in asked_of(directory) if name == "values_sealed"]
        with floor.store.transaction() as tx:
            (found,) = ask(tx)
        return found.ok, found.count, " ".join((*found.sample, found.detail))

    ok, count, said = finding(OLD)
    assert (ok, count) == (False, 2)
    assert str(intent) in said
    assert "intents.request by aesgcm:new" in said
    assert finding(BOTH)[:2] == (True, 0)
    assert finding("")[1] == 2


def test_a_row_in_doubt_whose_key_is_missing_is_neither_resent_nor_settled(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, NEW))
    with process(floor, NEW) as worker:
        lose(worker)
    with process(floor, OLD) as worker:
        floor.advance(600)
        worker.looker.once()
        assert worker.drain() == 0
    row = floor.row(intent)
    assert row["status"] in ("unknown", "retryable")
    assert floor.posts() == []
    with process(floor, BOTH) as worker:
        for _ in range(6):
            floor.jump(intent)
            worker.looker.once()
            worker.drain()
    assert floor.status(intent) == "succeeded"
    assert floor.effects(intent) == 1


@pytest.mark.parametrize("column", ["request", "args"])
def test_values_swapped_between_rows_are_never_sent(floor: Floor, column: str) -> None:
    first, second = enqueue(settings(floor, OLD), 2)
    floor.sql(
        f"UPDATE outbox.intents i SET {column} = o.{column} "
        "FROM outbox.intents o WHERE o.id <> i.id"
    )
    with process(floor, OLD) as worker:
        worker.drain()
    if column == "request":
        assert floor.posts() == []
        assert floor.statuses() == {"pending": 2}
        assert floor.outcomes(first) == floor.outcomes(second) == ["not_sent"]
    else:
        assert floor.statuses() == {"succeeded": 2}  # what is sent is the request


def test_a_request_put_into_the_column_of_the_arguments_does_not_open(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, OLD))
    floor.sql("UPDATE outbox.intents SET request = args")
    with process(floor, OLD) as worker:
        worker.drain()
    assert floor.outcomes(intent) == ["not_sent"]
    assert floor.posts() == []


def test_an_event_whose_key_is_missing_waits_for_a_process_that_has_it(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, OLD))
    with process(floor, OLD) as worker:
        lose(worker)
    with process(floor, BOTH) as web:
        web.receive(landed_event(floor, intent, "pi_of_the_event"))
    with process(floor, OLD) as worker:
        floor.advance(3600)
        assert worker.join() == 0
        (event,) = floor.sql("SELECT state, tries, body FROM outbox.webhook_inbox")
        assert (event["state"], event["tries"]) == ("new", 0)
    with process(floor, BOTH) as worker:
        assert worker.join() == 1
    assert floor.row(intent)["receipt_id"] == "pi_of_the_event"


def test_a_body_moved_to_another_event_is_not_joined(floor: Floor) -> None:
    (intent,) = enqueue(settings(floor, OLD))
    with process(floor, OLD) as worker:
        lose(worker)
        worker.receive(landed_event(floor, intent, "pi_of_the_event"))
        floor.sql("UPDATE outbox.webhook_inbox SET event_id = 'evt_other'")
        assert worker.join() == 1
    (event,) = floor.sql("SELECT state, detail, body FROM outbox.webhook_inbox")
    assert (event["state"], event["detail"]) == ("parked", "could not be joined: Sealed")
    assert event["body"] is not None
    assert floor.status(intent) == "unknown"


# -- the agent's side ----------------------------------------------------------------------------


def again(floor: Floor, keys: str, **changes: str) -> tuple[bool, tuple[str, ...]]:
    """The same write enqueued by a process of these keys: (deduplicated, notes)."""
    args = {**CARD, "invoice_id": "in_1", "description": PERSON, **changes}
    outbox = Outbox(settings(floor, keys))
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as connection:
        answer = outbox.enqueue(connection, CHARGE, Scope(tenant="acme", run_id="r"), args)
    return answer.deduplicated, answer.notes


def test_a_repeat_is_compared_in_the_clear_whatever_key_sealed_the_first(floor: Floor) -> None:
    assert again(floor, OLD) == (False, ())
    assert again(floor, OLD) == (True, ())
    assert again(floor, BOTH) == (True, ())
    found, (note,) = again(floor, BOTH, description="another")
    assert found
    assert note == "another description was given later and not used"


def test_a_repeat_by_a_process_without_the_key_finds_the_row_all_the_same(floor: Floor) -> None:
    again(floor, NEW)
    assert again(floor, OLD, description="another") == (True, ())
    assert again(floor, "", description="another") == (True, ())


def test_a_tool_that_declares_no_identity_is_refused_under_a_codec(floor: Floor) -> None:
    tool = WriteTool("note", vendor="stripe", operation="customers.create")
    scope = Scope(tenant="acme", run_id="r")
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as connection:
        with pytest.raises(Invalid) as refused:
            Outbox(settings(floor, OLD)).enqueue(connection, tool, scope, {"name": PERSON})
        assert refused.value.field == "tool.identity"
        assert Outbox(floor.settings).enqueue(connection, tool, scope, {"name": PERSON}).xid


def test_a_codec_of_ones_own_works_in_agent_worker_and_web(database: str, sandbox: Sandbox) -> None:
    factory = "tests.privacy.rings:Reversing"
    with open_floor(database, sandbox, PRODUCTION, OUTBOX_CODEC=factory) as floor:
        intent = floor.one(description=PERSON)
        assert floor.drain() == 1
        assert described(floor) == [PERSON]
        assert floor.row(intent)["receipt_codec"] == "reversing"
        assert PERSON not in everything(floor)


def test_what_opens_to_another_request_than_was_hashed_is_not_sent(
    database: str, sandbox: Sandbox
) -> None:
    factory = "tests.privacy.rings:Careless"
    with open_floor(database, sandbox, PRODUCTION, OUTBOX_CODEC=factory) as floor:
        floor.enqueue(2)
        floor.sql(
            "UPDATE outbox.intents i SET request = o.request "
            "FROM outbox.intents o WHERE o.id <> i.id"
        )
        floor.drain()
        assert floor.posts() == []
        assert floor.statuses() == {"pending": 2}


def test_sealing_changes_nothing_of_what_a_plain_row_costs(floor: Floor) -> None:
    made = draft(CHARGE, Scope(tenant="acme", run_id="r"), {**CARD, "invoice_id": "in_1"})
    assert sealed(made, floor.settings.codec) is made
    assert (made.columns["request_codec"], made.columns["request_path"]) == ("plain", None)


def test_what_is_missing_is_grouped_by_column_and_key(floor: Floor) -> None:
    enqueue(settings(floor, NEW), 3)
    with floor.store.transaction() as tx:
        found = redaction.sealed(tx, codec_of("", OLD))
    assert [(r["column"], r["codec"], r["n"]) for r in found] == [
        ("intents.args", "aesgcm:new", 3),
        ("intents.request", "aesgcm:new", 3),
    ]

"""Joining: a stored webhook finds its intent, settles what it can, and touches nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox import Outbox, Scope, WriteTool
from outbox.outcomes import Lost, Outcome, Refused
from outbox.store import doubt, intents, records
from outbox.store.claims import Claimer
from outbox.store.intents import Intent
from outbox.store.records import Ended
from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.resolvers.deliveries import event, signed
from tests.resolvers.ledger import ACCOUNT, ARGS, CHARGE, Ledger, open_ledger

CHECKOUT = WriteTool(
    "open_checkout",
    vendor="stripe",
    operation="checkout.sessions.create",
    identity=("order",),
    request=lambda args: {"mode": "payment", "client_reference_id": args["order"]},
)


def row_of(ledger: Ledger, intent_id: UUID) -> Intent:
    with ledger.store.transaction() as tx:
        row = intents.read(tx, intent_id)
    assert row is not None
    return row


def claimed(ledger: Ledger, intent_id: UUID | None = None) -> Intent:
    """An intent whose call is on the wire."""
    wanted = intent_id or ledger.intent()
    claimer = Claimer(ledger.store, ledger.directory.sendable(), owner="w", lease_s=60.0)
    (row,) = [row for row in claimer.claim(64) if row.id == wanted]
    return row


def ended(ledger: Ledger, row: Intent, outcome: Outcome) -> Intent:
    with ledger.store.transaction() as tx:
        records.record(tx, [Ended(row, outcome)])
    return row_of(ledger, row.id)


def marks(row: Intent) -> dict[str, str]:
    return {"outbox_id": str(row.id), "outbox_key": row.key.hex()}


def about(row: Intent, **fields: Any) -> dict[str, Any]:
    """An event about a payment intent that this row made; ``fields`` are the object's."""
    kind = fields.pop("kind", "payment_intent.succeeded")
    made = event(marks(row), type=kind)
    made["data"]["object"] |= {"id": "pi_1", **fields}
    return made


def deliver(ledger: Ledger, body: Mapping[str, Any], *, account: str = "default") -> None:
    sent = signed(dict(body), ledger.now())
    status, text = receive(
        ledger.store,
        ledger.directory,
        vendor="stripe",
        account=account,
        headers=sent.headers,
        body=sent.body,
    )
    assert status == 200, text


def join(ledger: Ledger) -> int:
    return join_once(ledger.store, ledger.directory)


def arrive(ledger: Ledger, body: Mapping[str, Any]) -> None:
    deliver(ledger, body)
    join(ledger)


def is_due(ledger: Ledger, row: Intent) -> bool:
    """Whether the resolver looks at the row now."""
    (found,) = ledger.sql(
        "SELECT due_at <= outbox.clock() AS due FROM outbox.intents WHERE id = %(id)s",
        {"id": row.id},
    )
    return bool(found["due"])


def states(ledger: Ledger) -> list[str]:
    return [row["state"] for row in ledger.inbox()]


# -- early events --------------------------------------------------------------------------------


def test_an_event_that_comes_before_the_answer_settles_the_intent_once(ledger: Ledger) -> None:
    row = claimed(ledger)
    arrive(ledger, about(row))
    after = row_of(ledger, row.id)
    assert (after.status, after.receipt_id, after.settled_by) == ("succeeded", "pi_1", "webhook")
    assert (after.doubt, after.lease_token) == (0, None)
    ended(ledger, row, Lost("the answer came too late"))
    assert row_of(ledger, row.id).status == "succeeded"
    assert (states(ledger), ledger.pages()) == (["joined"], [])
    assert len(ledger.sql("SELECT 1 FROM outbox.settlements")) == 1


def test_an_event_settles_what_a_killed_worker_left_in_doubt(ledger: Ledger) -> None:
    row = claimed(ledger)
    ledger.forward(61)
    with ledger.store.transaction() as tx:
        doubt.expire_leases(tx, limit=10, look_after_s=5.0, max_crashes=3)
    arrive(ledger, about(row))
    after = row_of(ledger, row.id)
    assert (after.status, after.receipt_id, after.attempts) == ("succeeded", "pi_1", 1)


def test_an_event_of_an_intent_that_is_not_committed_yet_waits_and_is_joined(
    ledger: Ledger,
) -> None:
    url = ledger.settings.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        answer = Outbox(ledger.settings).enqueue(
            connection, CHARGE, Scope(tenant="acme", run_id="r"), {**ARGS, "invoice_id": "in_x"}
        )
        (key,) = connection.execute("SELECT key FROM outbox.intents").fetchone() or (b"",)
        early = event({"outbox_id": str(answer.intent_id), "outbox_key": key.hex()})
        arrive(ledger, early)
        assert states(ledger) == ["parked"]
    claimed(ledger, answer.intent_id)
    assert join(ledger) == 0
    ledger.forward(2)
    assert join(ledger) == 1
    assert states(ledger) == ["joined"]
    assert row_of(ledger, answer.intent_id).status == "succeeded"


def test_an_event_with_our_marks_and_no_intent_is_kept_listed_and_not_tried_for_ever(
    ledger: Ledger,
) -> None:
    deliver(ledger, event({"outbox_id": str(UUID(int=7)), "outbox_key": "ab" * 32}))
    tries = 0
    while join(ledger):
        tries += 1
        ledger.forward(6 * 86400)
    assert 3 < tries < 12
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["due_at"], kept["body"] is not None) == ("parked", None, True)
    assert ledger.pages() == []


@pytest.mark.parametrize("by", ["request key", "metadata key", "metadata id", "receipt"])
def test_an_event_is_joined_by_any_mark_it_bears(ledger: Ledger, by: str) -> None:
    row = claimed(ledger)
    body = about(row)
    body["data"]["object"]["metadata"] = {
        "request key": {},
        "metadata key": {"outbox_key": row.key.hex()},
        "metadata id": {"outbox_id": str(row.id)},
        "receipt": {},
    }[by]
    if by == "request key":
        body["request"]["idempotency_key"] = row.key.hex()
    if by == "receipt":
        ledger.sql(
            "UPDATE outbox.intents SET status = 'succeeded', receipt_id = 'pi_1', "
            "settled_at = now(), lease_token = NULL, lease_until = NULL"
        )
    arrive(ledger, body)
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["intent_id"]) == ("joined", row.id)


def test_an_event_that_does_not_bear_our_id_never_settles_by_itself(ledger: Ledger) -> None:
    row = claimed(ledger)
    body = about(row, metadata={"outbox_key": row.key.hex()})
    arrive(ledger, body)
    assert (states(ledger), row_of(ledger, row.id).status) == (["joined"], "in_flight")


# -- whose event it is ---------------------------------------------------------------------------


def test_an_event_of_another_mode_touches_nothing_and_asks_once(ledger: Ledger) -> None:
    row = claimed(ledger)
    for _ in range(3):
        arrive(ledger, {**about(row), "livemode": True})
    assert row_of(ledger, row.id).version == row.version
    assert states(ledger) == ["mismatch"] * 3
    assert len(ledger.pages()) == 1


def test_an_event_of_another_vendor_account_touches_nothing(database: str) -> None:
    ours = replace(ACCOUNT, vendor_account="acct_A")
    with open_ledger(database, accounts={("stripe", "default"): ours}) as ledger:
        row = claimed(ledger)
        arrive(ledger, {**about(row), "account": "acct_B"})
        assert row_of(ledger, row.id).version == row.version
        assert states(ledger) == ["mismatch"]


def test_an_event_for_another_of_our_accounts_touches_nothing(database: str) -> None:
    other = replace(ACCOUNT, name="other", vendor_account="acct_other")
    accounts = {("stripe", "default"): ACCOUNT, ("stripe", "other"): other}
    with open_ledger(database, accounts=accounts) as ledger:
        row = claimed(ledger)
        deliver(ledger, about(row), account="other")
        join(ledger)
        assert row_of(ledger, row.id).version == row.version
        assert states(ledger) == ["mismatch"]


@pytest.mark.parametrize(
    ("frozen", "fields"),
    [("mode = 'live'", {}), ("vendor_account = 'acct_A'", {"account": "acct_B"})],
)
def test_what_the_intent_was_sent_as_counts_whatever_the_name_stands_for_now(
    ledger: Ledger, frozen: str, fields: dict[str, Any]
) -> None:
    row = claimed(ledger)
    ledger.sql(f"UPDATE outbox.intents SET {frozen}")
    arrive(ledger, {**about(row), **fields})
    after = row_of(ledger, row.id)
    assert (after.status, after.contradicted_at) == ("in_flight", None)
    assert states(ledger) == ["mismatch"]


def test_an_object_of_ours_with_another_amount_is_a_contradiction(ledger: Ledger) -> None:
    row = claimed(ledger)
    arrive(ledger, about(row, amount=1201))
    after = row_of(ledger, row.id)
    assert (after.status, after.receipt_id) == ("in_flight", None)
    assert after.contradicted_at is not None
    assert [page["body"]["reason"] for page in ledger.pages()] == ["another_amount"]


def test_a_foreign_event_is_dropped_with_its_body_and_pages_nobody(ledger: Ledger) -> None:
    claimed(ledger)
    dashboard = event()
    dashboard["data"]["object"] = {"id": "re_1", "object": "refund", "status": "succeeded"}
    arrive(ledger, dashboard)
    assert states(ledger) == ["parked"]
    ledger.forward(200)
    join(ledger)
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["body"], kept["due_at"]) == ("foreign", None, None)
    assert ledger.pages() == []


def test_a_foreign_event_is_dropped_at_once_where_no_reply_could_explain_it(
    ledger: Ledger,
) -> None:
    """Each cost five looks, and a burst of them kept ours waiting."""
    ledger.intent()
    dashboard = event()
    dashboard["data"]["object"] = {"id": "re_1", "object": "refund", "status": "succeeded"}
    arrive(ledger, dashboard)
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["tries"]) == ("foreign", 1)


def test_a_foreign_event_is_looked_at_three_times_at_the_most(ledger: Ledger) -> None:
    claimed(ledger)
    dashboard = event()
    dashboard["data"]["object"] = {"id": "re_1", "object": "refund", "status": "succeeded"}
    arrive(ledger, dashboard)
    for _ in range(150):
        ledger.forward(1)
        join(ledger)
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["tries"]) == ("foreign", 3)


def test_a_burst_of_events_is_joined_in_one_job(ledger: Ledger) -> None:
    """One batch at each tick was a hundred events a second at the most."""
    row = claimed(ledger)
    foreign = [event() for _ in range(45)]
    for number, each in enumerate(foreign):
        each["id"] = f"evt_foreign_{number}"
        deliver(ledger, each)
    deliver(ledger, about(row))
    assert join_once(ledger.store, ledger.directory, limit=10) == 46
    assert row_of(ledger, row.id).status == "succeeded"


def test_an_event_at_the_door_of_another_name_of_the_same_vendor_account_joins_quietly(
    database: str,
) -> None:
    """Two names for one vendor account: each event comes to both doors."""
    accounts = {("stripe", name): replace(ACCOUNT, name=name) for name in ("default", "eu")}
    with open_ledger(database, accounts=accounts) as ledger:
        row = claimed(ledger)
        for door in ("eu", "default"):
            deliver(ledger, about(row), account=door)
        join(ledger)
        assert row_of(ledger, row.id).status == "succeeded"
        assert states(ledger) == ["joined", "joined"]
        assert ledger.sql("SELECT 1 FROM outbox.escalations") == []
        assert len(ledger.sql("SELECT 1 FROM outbox.settlements")) == 1


# -- one transaction -----------------------------------------------------------------------------


def refuse_updates(ledger: Ledger) -> None:
    ledger.sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not now'; END $$"
    )
    ledger.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON outbox.intents FOR EACH ROW "
        "EXECUTE FUNCTION public.refuse()"
    )


def test_an_event_whose_effect_failed_leaves_no_marker_and_is_applied_later_once(
    ledger: Ledger,
) -> None:
    row = claimed(ledger)
    refuse_updates(ledger)
    arrive(ledger, about(row))
    (kept,) = ledger.inbox()
    assert (kept["state"], kept["intent_id"]) == ("parked", None)
    assert ledger.sql("SELECT 1 FROM outbox.events") == []
    ledger.sql("DROP TRIGGER refuse ON outbox.intents")
    ledger.forward(2)
    join(ledger)
    assert (states(ledger), row_of(ledger, row.id).status) == (["joined"], "succeeded")
    kinds = [e["kind"] for e in ledger.sql("SELECT kind FROM outbox.events ORDER BY id")]
    assert kinds == ["webhook_joined", "receipt_found"]


def test_an_event_that_cannot_be_joined_holds_up_no_other(ledger: Ledger) -> None:
    bad, good = claimed(ledger), claimed(ledger)
    ledger.sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.seq = (SELECT min(seq) FROM outbox.intents) THEN RAISE EXCEPTION 'never'; END IF; "
        "RETURN NEW; END $$"
    )
    ledger.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON outbox.intents FOR EACH ROW "
        "EXECUTE FUNCTION public.refuse()"
    )
    deliver(ledger, about(bad))
    deliver(ledger, about(good, id="pi_2"))
    join(ledger)
    assert row_of(ledger, good.id).status == "succeeded"
    assert states(ledger) == ["parked", "joined"]


def test_joiners_at_once_join_each_event_once(ledger: Ledger) -> None:
    rows = [claimed(ledger) for _ in range(12)]
    for number, row in enumerate(rows):
        deliver(ledger, about(row, id=f"pi_{number}"))
    start = threading.Barrier(4)

    def work(_: int) -> int:
        start.wait()
        return join_once(ledger.store, ledger.directory, limit=5)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 12
    assert states(ledger) == ["joined"] * 12
    assert len(ledger.sql("SELECT 1 FROM outbox.settlements")) == 12


# -- order ---------------------------------------------------------------------------------------


def test_events_out_of_order_move_the_intent_once_and_ask_the_vendor_where_they_differ(
    ledger: Ledger,
) -> None:
    row = claimed(ledger)
    order = [
        ("succeeded", "payment_intent.succeeded", 100),
        ("processing", "payment_intent.processing", 99),
        ("succeeded", "payment_intent.succeeded", 100),
        ("requires_payment_method", "payment_intent.payment_failed", 98),
        ("succeeded", "payment_intent.succeeded", 100),
    ]
    for status, kind, created in order:
        arrive(ledger, {**about(row, kind=kind, status=status), "created": created})
    after = row_of(ledger, row.id)
    assert (after.status, after.business_word, after.contradicted_at) == (
        "succeeded",
        "succeeded",
        None,
    )
    assert after.verify_at is not None
    assert len(ledger.sql("SELECT 1 FROM outbox.settlements")) == 1
    ledger.forward(3 * 86400)
    arrive(ledger, {**about(row, status="processing"), "created": 99})
    assert row_of(ledger, row.id).business_word == "succeeded"
    assert ledger.pages() == []


def test_an_event_that_would_settle_as_declined_makes_the_vendor_be_asked_first(
    ledger: Ledger,
) -> None:
    row = ended(ledger, claimed(ledger), Lost("no reply"))
    ledger.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 hour'")
    failed = about(row, kind="payment_intent.payment_failed", status="requires_payment_method")
    failed["data"]["object"]["last_payment_error"] = {"code": "card_declined"}
    arrive(ledger, failed)
    after = row_of(ledger, row.id)
    assert (after.status, is_due(ledger, row)) == ("unknown", True)


def test_a_payment_of_what_was_told_as_refused_pages_a_person(ledger: Ledger) -> None:
    row = ended(ledger, claimed(ledger), Refused("card_declined", covers_key=True))
    ledger.sql("UPDATE outbox.intents SET receipt_id = 'pi_1', business_vendor_time = 2000000000")
    arrive(ledger, about(row))
    after = row_of(ledger, row.id)
    assert (after.status, after.contradicted_at is not None) == ("failed_poison", True)
    assert [page["body"]["reason"] for page in ledger.pages()] == ["contradiction"]


def test_a_second_object_pages_a_person(ledger: Ledger) -> None:
    row = claimed(ledger)
    arrive(ledger, about(row))
    arrive(ledger, about(row, id="pi_2"))
    after = row_of(ledger, row.id)
    assert (after.receipt_id, after.contradicted_at is not None) == ("pi_1", True)
    (page,) = ledger.pages()
    (question,) = ledger.sql("SELECT detail FROM outbox.escalations")
    assert question["detail"]["objects"] == ["pi_1", "pi_2"]
    assert page["body"]["reason"] == "contradiction"


# -- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2024-09-30.acacia", "2026-10-28.endive", ""])
def test_the_payloads_api_version_does_not_matter_to_joining(ledger: Ledger, version: str) -> None:
    row = claimed(ledger)
    body = {**about(row), "api_version": version}
    if version.startswith("2024"):
        body["request"] = row.key.hex()[:20]
        del body["data"]["object"]["amount_received"]
    arrive(ledger, body)
    assert row_of(ledger, row.id).status == "succeeded"


@pytest.mark.parametrize("missing", ["status", "id", "object"])
def test_a_snapshot_that_lacks_what_decides_is_never_a_success(
    ledger: Ledger, missing: str
) -> None:
    row = ended(ledger, claimed(ledger), Lost("no reply"))
    ledger.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 hour'")
    body = about(row)
    del body["data"]["object"][missing]
    arrive(ledger, body)
    after = row_of(ledger, row.id)
    assert (after.status, is_due(ledger, row)) == ("unknown", True)
    assert states(ledger) == ["joined"]


def test_an_unheard_of_type_about_our_object_is_joined_and_harmless(ledger: Ledger) -> None:
    row = claimed(ledger)
    arrive(ledger, about(row, kind="payment_intent.levitated", object="levitation"))
    assert (states(ledger), row_of(ledger, row.id).status) == (["joined"], "in_flight")


def test_a_thin_event_makes_the_vendor_be_asked(ledger: Ledger) -> None:
    row = ended(ledger, claimed(ledger), Lost("no reply"))
    ledger.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 hour'")
    thin = {
        "id": "evt_thin",
        "object": "v2.core.event",
        "type": "v1.payment_intent.succeeded",
        "livemode": False,
        "created": "2026-03-29T00:55:00.000Z",
        "related_object": {"id": "pi_1", "type": "payment_intent", "url": "/v1/x"},
        "reason": {"type": "request", "request": {"idempotency_key": row.key.hex()}},
    }
    arrive(ledger, thin)
    assert states(ledger) == ["joined"]
    assert is_due(ledger, row)


def test_a_nul_in_a_webhooks_text_is_stored_and_joined(ledger: Ledger) -> None:
    row = claimed(ledger)
    arrive(ledger, about(row, description="a\x00b"))
    assert (states(ledger), row_of(ledger, row.id).status) == (["joined"], "succeeded")


# -- checkout ------------------------------------------------------------------------------------


def checkout(ledger: Ledger) -> Intent:
    url = ledger.settings.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        answer = Outbox(ledger.settings).enqueue(
            connection, CHECKOUT, Scope(tenant="acme", run_id="r"), {"order": "o_1"}
        )
    return claimed(ledger, answer.intent_id)


def session(row: Intent, **fields: Any) -> dict[str, Any]:
    body = event(type="checkout.session.completed")
    body["data"]["object"] = {
        "id": "cs_1",
        "object": "checkout.session",
        "status": "complete",
        "payment_status": "paid",
        "payment_intent": "pi_9",
        "livemode": False,
        "created": 1,
        "metadata": marks(row),
        **fields,
    }
    return body


def test_a_child_without_our_marks_waits_and_its_session_is_joined(ledger: Ledger) -> None:
    row = checkout(ledger)
    child = event()
    child["data"]["object"]["id"] = "pi_9"
    arrive(ledger, child)
    arrive(ledger, session(row))
    assert states(ledger) == ["parked", "joined"]
    after = row_of(ledger, row.id)
    assert (after.status, after.receipt_id) == ("succeeded", "cs_1")
    assert ledger.pages() == []


def test_a_child_that_bears_our_marks_makes_the_session_be_read(ledger: Ledger) -> None:
    row = checkout(ledger)
    arrive(ledger, session(row, status="open", payment_status="unpaid"))
    settled = row_of(ledger, row.id)
    assert settled.status == "succeeded"
    arrive(ledger, about(row, id="pi_9"))
    after = row_of(ledger, row.id)
    assert (after.receipt_id, after.contradicted_at) == ("cs_1", None)
    assert after.verify_at is not None

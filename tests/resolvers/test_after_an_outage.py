"""Many rows in doubt at once: one reading of a list settles all that it shows, and says no more of
any of them than a look-up of its own would."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from outbox.store import settlements
from resolvers import looking
from tests.resolvers.outages import BACK_IN_S, EVENTS, LIST, asked, lose, owners, plant
from tests.workers.floor import READS, Floor, new_account
from vendors import stripe_lookup


def test_many_rows_are_settled_by_as_many_requests_as_their_list_has_pages(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 10)
    floor.sandbox.set_account(floor.account, any_customer=True)
    ids = lose(floor, 20, customer="cus_ann") + lose(floor, 20, customer="cus_bob")
    plant(floor, 25, order="of somebody else")
    floor.advance(BACK_IN_S)
    assert floor.look() == 40
    assert floor.statuses() == {"succeeded": 40}
    assert owners(floor, ids) == [str(intent_id) for intent_id in ids]
    assert asked(floor) == {LIST: 7, EVENTS: 7}
    assert len(floor.posts()) == 40


def test_a_row_by_itself_is_looked_up_as_ever(floor: Floor) -> None:
    (intent_id,) = lose(floor, 1)
    floor.advance(BACK_IN_S)
    assert floor.look() == 1
    assert floor.status(intent_id) == "succeeded"
    assert asked(floor) == {LIST: 1, EVENTS: 1}


def test_what_landed_and_what_did_not_are_told_apart_in_one_reading(floor: Floor) -> None:
    landed, gone = lose(floor, 6), lose(floor, 6, "lost_request")
    plant(floor, 3, outbox_id="another outbox's", outbox_key="")
    floor.advance(BACK_IN_S)
    floor.look()
    assert {floor.status(i) for i in landed} == {"succeeded"}
    rows = [floor.row(i) for i in gone]
    assert {(r["status"], r["looks"], r["absent_looks"]) for r in rows} == {("unknown", 1, 1)}
    assert {r["absent_first_at"] for r in rows} == {None}, "it may still land"


def test_rows_that_settle_together_leave_what_each_leaves_alone(floor: Floor) -> None:
    """An event, a result for each consumer, and its question closed."""
    settlements.register(floor.store, "billing")
    ids = lose(floor, 12)
    floor.sql(
        "UPDATE outbox.intents SET escalate_at = outbox.clock(), ttl_at = outbox.clock() "
        "WHERE id = ANY(%(ids)s)",
        {"ids": ids[:3]},
    )
    floor.escalate()
    floor.advance(BACK_IN_S)
    floor.look()
    results = floor.sql(
        "SELECT s.intent_id, s.kind, s.status, s.told, s.receipt_id, i.receipt_id AS wanted "
        "FROM outbox.deliveries d JOIN outbox.settlements s ON s.id = d.settlement_id "
        "JOIN outbox.intents i ON i.id = s.intent_id AND i.version = s.version"
    )
    assert {r["intent_id"] for r in results} == set(ids)
    assert len(results) == 12
    assert {(r["kind"], r["status"], r["told"]) for r in results} == {
        ("settled", "succeeded", "settled")
    }
    assert all(r["receipt_id"] == r["wanted"] for r in results)
    events = floor.sql(
        "SELECT intent_id, actor, from_status, to_status, reason, detail->>'object' AS object "
        "FROM outbox.events WHERE kind = 'receipt_found'"
    )
    assert {(e["intent_id"], e["object"]) for e in events} == {
        (r["intent_id"], r["receipt_id"]) for r in results
    }
    words = {(e["actor"], e["from_status"], e["to_status"], e["reason"]) for e in events}
    assert words == {("resolver", "unknown", "succeeded", "lookup")}
    asked = floor.escalations()
    assert [e["verdict"] for e in asked] == ["settled:succeeded"] * 3
    assert len([p for p in floor.pages() if p["action"] == "resolve"]) == 3


def test_absence_that_one_reading_showed_counts_from_before_it_began(floor: Floor) -> None:
    """Rows are quiet at their own times: a reading is of one moment for all."""
    early = lose(floor, 3, "lost_request")
    floor.advance(150)
    late = lose(floor, 3, "lost_request")
    floor.advance(40)
    floor.sql("UPDATE outbox.intents SET due_at = outbox.clock(), resends = 8")
    (before,) = floor.sql("SELECT outbox.clock() AS at")
    floor.look()
    assert asked(floor)[LIST] == 1
    assert {floor.row(i)["absent_first_at"] for i in late} == {None}
    (began_at,) = {floor.row(i)["absent_first_at"] for i in early}
    assert before["at"] <= began_at
    assert all(began_at < floor.row(i)["due_at"] for i in early)


def test_a_page_that_breaks_in_the_middle_settles_and_rules_out_nothing(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 5)
    ids = lose(floor, 12) + lose(floor, 3, "lost_request")
    floor.sandbox.fault(
        "unavailable_503", account=floor.account, endpoint=f"GET {LIST}", attempts=[2]
    )
    floor.advance(BACK_IN_S)
    floor.look()
    rows = [floor.row(i) for i in ids]
    assert {(r["status"], r["looks"], r["absent_looks"]) for r in rows} == {("unknown", 1, 0)}
    assert asked(floor) == {LIST: 2}


def test_while_the_vendor_is_down_one_failed_read_answers_for_all(floor: Floor) -> None:
    ids = lose(floor, 60)
    floor.sql("UPDATE outbox.intents SET resends = 8")  # a re-send would settle them
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    for looks, wait_s in enumerate((BACK_IN_S, 31, 121, 601), start=1):
        floor.advance(wait_s)
        floor.look()
        assert floor.look() == 0, "each waits for its next time"
        assert {floor.row(i)["looks"] for i in ids} == {looks}
        assert asked(floor) == {LIST: looks}
    reasons = floor.sql("SELECT reason FROM outbox.events WHERE kind = 'look_unreadable'")
    assert [r["reason"] for r in reasons] == ["http_503"] * 60, "said of each, and once"


def test_refused_credentials_pause_the_account_once(floor: Floor) -> None:
    lose(floor, 5)
    floor.sandbox.fault("unauthorized_401", account=floor.account, endpoint=READS)
    floor.advance(BACK_IN_S)
    floor.look()
    assert floor.statuses() == {"unknown": 5}
    assert [e["reasons"] for e in floor.escalations()] == [["paused"]]
    assert asked(floor) == {LIST: 1}


def test_two_objects_of_one_are_for_a_person_and_the_others_settle(floor: Floor) -> None:
    ids = lose(floor, 5)
    key = bytes(floor.row(ids[2])["key"]).hex()
    plant(floor, 1, outbox_id=str(ids[2]), outbox_key=key)
    floor.advance(BACK_IN_S)
    floor.look()
    assert floor.statuses() == {"succeeded": 4, "unknown": 1}
    assert floor.row(ids[2])["contradicted_at"] is not None
    assert [(e["intent_id"], e["reasons"]) for e in floor.escalations()] == [
        (ids[2], ["duplicate"])
    ]


def _second_account(floor: Floor) -> str:
    name, found = new_account(), floor.directory.account("stripe", "default")
    assert found is not None
    floor.sandbox.set_account(name, any_customer=True)
    key = floor.sandbox.api_key(name)
    other = replace(found, name="other", credential=key, vendor_account=f"acct_{name}")
    floor.directory.learn("stripe", other)
    return name


def test_rows_of_two_accounts_are_never_read_together(floor: Floor) -> None:
    other = _second_account(floor)
    floor.sandbox.fault("lost_ack", account=other, attempts=[1])
    theirs = floor.enqueue(30, account="other")
    ours = lose(floor, 30)
    assert floor.statuses() == {"unknown": 60}
    floor.advance(BACK_IN_S)
    floor.sandbox.set_account(other, clock_offset_s=floor.clock.offset)
    floor.look()
    assert floor.statuses() == {"succeeded": 60}
    assert owners(floor, ours) == [str(i) for i in ours]
    assert owners(floor, theirs, other) == [str(i) for i in theirs]
    for account in (floor.account, other):
        assert asked(floor, account)[LIST] == asked(floor, account)[EVENTS] <= 2


def test_rows_of_different_hours_are_not_one_reading(floor: Floor) -> None:
    """What lies between them is nobody's."""
    early = lose(floor, 2)
    floor.advance(2 * 3600)
    plant(floor, 1, order="in between")
    floor.advance(2 * 3600)
    late = lose(floor, 2)
    floor.advance(BACK_IN_S)
    floor.look()
    assert {floor.status(i) for i in [*early, *late]} == {"succeeded"}
    assert asked(floor) == {LIST: 2, EVENTS: 2}


@pytest.fixture
def small(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> Floor:
    """One reading is for thirty rows at the most."""
    monkeypatch.setattr(looking, "MOST_ROWS", 30)
    return floor


def test_more_rows_than_one_reading_takes_are_read_for_one_reading_after_the_other(
    small: Floor,
) -> None:
    ids = lose(small, 100)
    small.advance(BACK_IN_S)
    assert small.look() == 100
    assert owners(small, ids) == [str(i) for i in ids]
    assert asked(small) == {LIST: 4, EVENTS: 4}


def test_a_row_that_cannot_be_written_takes_no_other_with_it(floor: Floor) -> None:
    ids = lose(floor, 10)
    floor.sql(
        "CREATE FUNCTION outbox.odd() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.id = '{ids[4]}' AND NEW.status = 'succeeded' THEN RAISE 'odd'; END IF; "
        "RETURN NEW; END $$"
    )
    floor.sql(
        "CREATE TRIGGER odd BEFORE UPDATE ON outbox.intents FOR EACH ROW "
        "EXECUTE FUNCTION outbox.odd()"
    )
    floor.advance(BACK_IN_S)
    with pytest.raises(Exception, match="odd"):
        floor.look()
    assert floor.statuses() == {"succeeded": 9, "unknown": 1}
    assert floor.status(ids[4]) == "unknown"


def test_rows_with_a_veto_or_that_never_left_are_looked_at_by_themselves(floor: Floor) -> None:
    """Nothing bounds when the object of a stored 500 comes."""
    ids = lose(floor, 40)
    floor.sql(
        "UPDATE outbox.intents SET veto = 'stored_500', due_at = due_at + INTERVAL '1 s' "
        "WHERE id = ANY(%(ids)s)",
        {"ids": ids[:20]},
    )
    floor.advance(BACK_IN_S + 1)
    assert floor.look() == 40
    assert floor.statuses() == {"succeeded": 40}
    assert asked(floor) == {LIST: 21, EVENTS: 21}


def test_a_metered_account_pays_for_requests_and_not_for_rows(floor: Floor) -> None:
    ids = lose(floor, 50)
    account = floor.directory.account("stripe", "default")
    assert account is not None
    slow = 0.001
    floor.directory.learn("stripe", replace(account, rate_per_s=slow, burst=40))
    floor.advance(BACK_IN_S)
    assert floor.look() == 50
    assert owners(floor, ids) == [str(i) for i in ids]
    (left,) = floor.sql(
        "SELECT EXTRACT(EPOCH FROM full_at - outbox.clock())::float8 AS s FROM outbox.rates"
    )
    assert round(float(left["s"]) * slow, 1) == sum(asked(floor).values()) == 2


def test_a_throttled_reading_empties_the_bucket_and_settles_nothing(floor: Floor) -> None:
    lose(floor, 10)
    account = floor.directory.account("stripe", "default")
    assert account is not None
    floor.directory.learn("stripe", replace(account, rate_per_s=1.0, burst=4))
    floor.sandbox.fault(
        "rate_limited_429", account=floor.account, endpoint=READS, times=1, after_s=600
    )
    floor.advance(BACK_IN_S)
    assert floor.look() == 10
    floor.enqueue(1)
    assert floor.drain() == 0
    assert floor.statuses() == {"unknown": 10, "pending": 1}
    assert asked(floor) == {LIST: 1}


def test_the_oldest_are_looked_up_first(small: Floor) -> None:
    early = lose(small, 30)
    small.advance(1)
    late = lose(small, 30)
    small.advance(BACK_IN_S)
    # Due for a look in another order than they were sent.
    small.sql("UPDATE outbox.intents SET due_at = outbox.clock() - INTERVAL '1 h' * random()")
    order: list[set[UUID]] = []
    looker = small.new_looker()
    for due in looker._all_due():
        for unit in looker._claim(due)[0]:
            order.append({row.id for row in unit.held})
    assert len(order) == 1
    heads = 16
    assert len(order[0] & set(early)) >= len(order[0]) - heads
    assert len(order[0] & set(late)) <= heads

"""Many rows in doubt at once: one reading of a list settles all that it shows, and says no more of
any of them than a look-up of its own would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from outbox.contract import Listing, Sought, Vendor
from outbox.outcomes import Unreadable
from outbox.store import settlements
from resolvers import looking, together
from resolvers.looking import Looker
from tests.workers.doubles import Stalled
from tests.workers.floor import CARD, PRODUCTION, READS, Floor, new_account, open_floor
from vendors import stripe_lookup
from vendors.sandbox.client import Sandbox

LIST, EVENTS = "/v1/payment_intents", "/v1/events"
BACK_IN_S = 6


def lose(floor: Floor, count: int, fault: str = "lost_ack", **args: Any) -> list[UUID]:
    """Charges whose first answer was lost."""
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    ids = floor.enqueue(count, **args)
    floor.drain()
    floor.sandbox.clear_faults(floor.account)
    return ids


def asked(floor: Floor, account: str = "") -> Counter[str]:
    """How often each path was read."""
    rows = floor.sandbox.requests(account or floor.account)
    return Counter(r["path"] for r in rows if r["method"] == "GET" and r["path"] != "/v1/account")


def owners(floor: Floor, ids: list[UUID], account: str = "") -> list[str]:
    """Whose marks the object bears that each intent has for its receipt."""
    objects = floor.sandbox.objects(account or floor.account, "payment_intents")
    by_id = {one["id"]: one["metadata"].get("outbox_id", "") for one in objects}
    return [by_id[floor.row(intent_id)["receipt_id"]] for intent_id in ids]


def plant(floor: Floor, count: int, **metadata: str) -> None:
    for _ in range(count):
        params = {**CARD, "metadata": metadata}
        floor.sandbox.plant(floor.account, "payment_intents.create", params)


class _Meanwhile(Stalled):
    """Something happens once a list has been read, and before anybody knows what it showed."""

    floor: Floor
    happens = ""

    def read_list(self, sought: Sought) -> Listing | Unreadable:
        seen = super().read_list(sought)
        if self.happens:
            self.floor.sql(self.happens)
        return seen


@pytest.fixture
def meanwhile(database: str, sandbox: Sandbox) -> Iterator[_Meanwhile]:
    made: list[_Meanwhile] = []

    def wrap(vendor: Vendor) -> Vendor:
        made.append(_Meanwhile(vendor))
        return made[0]

    with open_floor(database, sandbox, PRODUCTION, vendor=wrap) as floor:
        made[0].floor = floor
        yield made[0]


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


def test_an_account_with_more_due_is_read_once_at_a_time(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many readings at once as there are threads would read the same pages as often."""
    monkeypatch.setattr(looking, "MOST_ROWS", 30)
    floor = meanwhile.floor
    lose(floor, 100)
    floor.advance(BACK_IN_S)
    at_once: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        at_once.append(1)
        seen = read_list(sought)
        (held,) = floor.sql(
            "SELECT count(*) AS n FROM outbox.intents WHERE resolver_until > outbox.clock()"
        )
        assert held["n"] <= 30, "another reading of the same list has begun"
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 100
    assert len(at_once) == 4
    assert floor.statuses() == {"succeeded": 100}


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


def test_what_a_reading_said_of_a_row_that_moved_meanwhile_is_dropped(
    meanwhile: _Meanwhile,
) -> None:
    floor = meanwhile.floor
    ids = lose(floor, 4, "lost_request")
    meanwhile.happens = (
        "UPDATE outbox.intents SET version = version + 1, resolver_token = NULL, "
        f"resolver_until = NULL, due_at = outbox.clock() + INTERVAL '1 s' WHERE id = '{ids[1]}'"
    )
    floor.advance(BACK_IN_S)
    floor.look()
    assert [floor.row(i)["looks"] for i in ids] == [1, 0, 1, 1]


def test_no_row_is_looked_at_twice_while_a_reading_lasts(meanwhile: _Meanwhile) -> None:
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    others: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        others.append(floor.new_looker().once())
        return read_list(sought)

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 40
    assert others == [0]


def test_a_reading_that_lasts_longer_than_a_hold_keeps_its_rows(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    passed_s = 0.0
    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=lambda: passed_s))
    others: list[int] = []
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        nonlocal passed_s
        seen = read_list(sought)
        for _ in range(2):
            passed_s += 50
            floor.advance(50)
            others.append(floor.new_looker().once())
            read_list(sought)  # one page more
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert floor.look() == 40
    assert others == [0, 0]
    assert floor.statuses() == {"succeeded": 40}


def test_a_process_that_ends_leaves_the_rest_of_a_reading_to_another(
    meanwhile: _Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not take as long as very many rows do."""
    monkeypatch.setattr(together, "_PIECE", 10)
    floor = meanwhile.floor
    lose(floor, 40)
    floor.advance(BACK_IN_S)
    ending = floor.new_looker()
    read_list = meanwhile.read_list

    def read(sought: Sought) -> Listing | Unreadable:
        seen = read_list(sought)
        ending._looking.stop()
        return seen

    meanwhile.read_list = read  # type: ignore[method-assign]
    assert ending.once() == 40
    assert floor.statuses() == {"unknown": 40}
    floor.advance(floor.settings.policy.look_hold_s())
    meanwhile.read_list = read_list  # type: ignore[method-assign]
    assert floor.look() == 40
    assert floor.statuses() == {"succeeded": 40}


def test_rows_of_a_resolver_that_died_are_looked_at_by_another(floor: Floor) -> None:
    lose(floor, 20)
    floor.advance(BACK_IN_S)
    dead = Looker(floor.store, floor.directory)
    for due in dead._all_due():
        dead._claim(due)
    dead.close()
    assert floor.look() == 0
    floor.advance(floor.settings.policy.look_hold_s())
    assert floor.look() == 20
    assert floor.statuses() == {"succeeded": 20}


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

"""Look-ups: what evidence a read can bring, when it is asked for, and what it may not conclude."""

from __future__ import annotations

import itertools
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outbox import WriteTool
from outbox.errors import Unreachable
from outbox.store.connection import Store
from resolvers.looking import Looker
from tests.workers.floor import CARD, FAST, PRODUCTION, READS, Floor, open_floor, wait_until
from tests.workers.proxy import PostgresProxy
from vendors.sandbox.client import Sandbox
from workers.servers import Servers

LIST = "/v1/payment_intents"


def _lists(floor: Floor) -> list[dict[str, Any]]:
    return [r for r in floor.reads() if r["path"] == LIST]


def _lost(floor: Floor, fault: str, **args: Any) -> UUID:
    """A charge whose first answer was lost."""
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    intent_id = floor.one(**args)
    floor.drain()
    assert floor.status(intent_id) == "unknown"
    return intent_id


def test_a_landed_charge_is_found_by_the_first_look_and_not_sent_again(floor: Floor) -> None:
    intent_id = _lost(floor, "lost_ack")
    assert floor.look() == 0, "not due yet"
    floor.advance(6)
    assert floor.look() == 1
    row = floor.row(intent_id)
    assert (row["status"], row["settled_by"], row["doubt"]) == ("succeeded", "lookup", 0)
    assert row["business_status"] == "paid"
    assert len(floor.posts()) == 1


def test_search_is_never_asked_and_its_lag_hides_nothing(floor: Floor) -> None:
    """B17: search shows nothing for a minute, or for an hour; the list shows it at once."""
    floor.sandbox.set_account(floor.account, search_lag_s=3600)
    intent_id = _lost(floor, "lost_ack")
    floor.advance(6)
    floor.look()
    assert floor.status(intent_id) == "succeeded"
    assert [r for r in floor.reads() if "search" in r["path"]] == []
    assert len(floor.posts()) == 1


def test_an_operation_on_an_object_is_found_by_the_event_it_caused(floor: Floor) -> None:
    planted = floor.sandbox.plant(
        floor.account, "payment_intents.create", {**CARD, "capture_method": "manual"}
    )
    capture = WriteTool(
        "capture",
        vendor="stripe",
        operation="payment_intents.capture",
        side_effect="write",
        identity=("payment_intent",),
        request=lambda args: {"payment_intent": args["payment_intent"]},
    )
    intent_id = _lost(floor, "lost_ack", tool=capture, payment_intent=planted["id"])
    floor.advance(6)
    floor.look()
    row = floor.row(intent_id)
    assert (row["status"], row["receipt_id"]) == ("succeeded", planted["id"])
    assert [r["path"] for r in floor.reads() if r["path"] == "/v1/events"]
    assert len(floor.posts()) == 1


def test_an_object_behind_more_than_a_page_of_others_is_found(floor: Floor) -> None:
    intent_id = _lost(floor, "lost_ack")
    for _ in range(130):
        floor.sandbox.plant(floor.account, "payment_intents.create", dict(CARD))
    floor.advance(6)
    floor.look()
    assert floor.status(intent_id) == "succeeded"
    assert len(_lists(floor)) == 2


def test_a_page_that_cannot_be_read_is_no_absence(floor: Floor) -> None:
    intent_id = _lost(floor, "lost_ack")
    for _ in range(130):
        floor.sandbox.plant(floor.account, "payment_intents.create", dict(CARD))
    floor.sandbox.fault(
        "unavailable_503", account=floor.account, endpoint=f"GET {LIST}", attempts=[2]
    )
    floor.advance(6)
    floor.look()
    row = floor.row(intent_id)
    assert (row["status"], row["looks"], row["absent_looks"]) == ("unknown", 1, 0)


def test_a_late_landing_is_found_though_the_first_looks_missed_it(floor: Floor) -> None:
    """The request was in the network when we looked: absence then proves nothing."""
    floor.sandbox.fault("late_commit", account=floor.account, attempts=[1], after_s=3600)
    intent_id = floor.one()
    floor.drain()
    floor.advance(6)
    floor.look()
    row = floor.row(intent_id)
    assert (row["status"], row["absent_looks"], row["absent_first_at"]) == ("unknown", 1, None)
    floor.sandbox.release(floor.account)
    floor.jump(intent_id)
    floor.look()
    assert floor.status(intent_id) == "succeeded"
    assert floor.effects(intent_id) == 1


def test_same_key_re_sends_keep_their_schedule_and_their_cap(floor: Floor) -> None:
    floor.sandbox.fault("lost_request", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    passed = 0.0
    while passed < 3 * 3600:
        passed += floor.jump(intent_id)
        floor.expire()
        floor.look()
        floor.drain()
    sent = [a["started_at"] for a in floor.attempts(intent_id)]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(sent)]
    assert len(gaps) == floor.settings.policy.max_resends == 8
    for gap, least in zip(gaps, (10, 60, 300, 900, 900, 900, 900, 900), strict=True):
        assert least <= gap < 2 * least + 30
    row = floor.row(intent_id)
    assert (row["status"], row["doubt"], row["resends"]) == ("unknown", 9, 8)


@pytest.mark.parametrize("zone", ["Europe/Paris", "UTC"])
def test_re_sends_keep_their_schedule_on_the_night_of_a_clock_change(
    floor: Floor, zone: str
) -> None:
    """B43: at 03:00 summer time it is 02:00 again, and no wait is an hour longer for it."""
    floor.in_zone(zone, "2026-10-25 00:59:55+00")
    intent_id = _lost(floor, "lost_request")
    floor.until(11, intent_id)
    floor.look()
    assert floor.status(intent_id) == "retryable"
    floor.drain()
    assert floor.status(intent_id) == "succeeded"


def test_a_re_send_goes_only_after_a_look(floor: Floor) -> None:
    """Even where every read fails: the row is looked at first, and then sent with its key."""
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = _lost(floor, "lost_request")
    floor.advance(11)
    floor.drain()
    assert len(floor.posts()) == 1
    floor.look()
    assert floor.reads()
    floor.drain()
    assert floor.status(intent_id) == "succeeded"


@pytest.mark.parametrize("after_s", [24 * 3600 + 300, 24 * 3600 - 120, 22 * 3600 + 1])
@pytest.mark.parametrize(
    ("fault", "ends"), [("lost_ack", "succeeded"), ("lost_request", "unknown")]
)
def test_nothing_is_sent_once_the_vendor_may_have_forgotten_the_key(
    floor: Floor, after_s: float, fault: str, ends: str
) -> None:
    """B04: everything was down until the window (less its margin) had closed."""
    intent_id = _lost(floor, fault)
    floor.until(after_s, intent_id)
    for _ in range(4):
        floor.round()
        floor.advance(60)
    assert floor.status(intent_id) == ends
    assert len(floor.posts()) == 1
    open_now = [e["reasons"] for e in floor.escalations() if e["closed_at"] is None]
    assert open_now == ([] if ends == "succeeded" else [["ttl", "window"]])


def test_inside_the_window_a_write_that_never_arrived_is_sent_again(floor: Floor) -> None:
    """B04, the other edge: the window counts from the first send, and its margin is kept."""
    intent_id = _lost(floor, "lost_request")
    floor.until(22 * 3600 - 600, intent_id)
    floor.round()
    assert floor.status(intent_id) == "succeeded"
    assert len(floor.posts()) == 2
    assert floor.effects(intent_id) == 1


def test_the_window_counts_from_the_first_send_and_not_from_the_last(floor: Floor) -> None:
    """B04."""
    floor.sandbox.fault("lost_request", account=floor.account)
    intent_id = floor.one()
    floor.drain()
    ends = floor.row(intent_id)["window_ends_at"]
    floor.until(3600, intent_id)
    floor.round()
    assert len(floor.posts()) == 2
    assert floor.row(intent_id)["window_ends_at"] == ends


def test_a_stored_500_is_closed_by_the_object_that_appears_later(floor: Floor) -> None:
    """B10."""
    floor.sandbox.fault(
        "stored_500_object_later", account=floor.account, attempts=[1], after_s=9000
    )
    intent_id = floor.one()
    floor.drain()
    floor.until(5 * 3600, intent_id)
    floor.round()
    (question,) = floor.escalations()
    assert (question["reasons"], question["closed_at"]) == (["ttl"], None)
    floor.sandbox.release(floor.account)
    floor.advance(3600)
    floor.round()
    assert floor.status(intent_id) == "succeeded"
    (question,) = floor.escalations()
    assert question["verdict"] == "settled:succeeded"
    assert len(floor.posts()) == 1
    assert floor.effects(intent_id) == 1


def test_a_replayed_500_stops_the_re_sends(floor: Floor) -> None:
    """B10: it says nothing the first time; the replay is what shows that it is stored."""
    floor.sandbox.fault("lost_ack", account=floor.account, attempts=[1])
    floor.sandbox.fault("stored_500_no_object", account=floor.account, attempts=[1])
    intent_id = floor.one()
    floor.drain()
    for _ in range(12):
        floor.jump(intent_id)
        floor.round()
    assert floor.row(intent_id)["veto"] == "stored_500"
    assert floor.status(intent_id) == "unknown"
    # The oracle shows it too: no POST after the stored answer was told.
    assert len(floor.posts()) == 2


def test_a_body_the_vendor_calls_changed_is_doubt_and_never_a_failure(floor: Floor) -> None:
    """B09: a deploy added a parameter between the lost answer and the re-send."""
    floor.provoked.add("body_changed")
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    intent_id = _lost(floor, "lost_ack")
    floor.sql(
        "UPDATE outbox.intents SET request = replace(request, '\"params\":{', "
        '\'"params":{"description":"from a newer build",\') WHERE id = %(id)s',
        {"id": intent_id},
    )
    floor.until(15, intent_id)
    floor.round()
    assert [p["status"] for p in floor.posts()] == [None, 400]
    row = floor.row(intent_id)
    assert (row["status"], row["veto"], row["failure_code"]) == ("unknown", "key_mismatch", None)
    floor.sandbox.clear_faults(floor.account)
    floor.jump(intent_id)
    floor.round()
    assert floor.status(intent_id) == "succeeded"
    assert floor.escalations() == []
    assert len(floor.posts()) == 2


def test_two_objects_of_one_intent_are_for_a_person_and_told_once(floor: Floor) -> None:
    """B35 (b): never pick the first."""
    intent_id = _lost(floor, "lost_ack")
    row = floor.row(intent_id)
    marks = {"outbox_id": str(intent_id), "outbox_key": bytes(row["key"]).hex()}
    second = floor.sandbox.plant(
        floor.account, "payment_intents.create", {**CARD, "metadata": marks}
    )
    for _ in range(3):
        floor.jump(intent_id)
        floor.look()
    row = floor.row(intent_id)
    assert (row["status"], row["receipt_id"]) == ("unknown", None)
    assert row["contradicted_at"] is not None
    (question,) = floor.escalations()
    assert question["reasons"] == ["duplicate"]
    assert len(question["detail"]["objects"]) == 2
    assert second["id"] in question["detail"]["objects"]
    told = floor.sql("SELECT kind, told FROM outbox.settlements")
    assert told == [{"kind": "contradiction", "told": "unknown"}]
    assert len(floor.posts()) == 1


def test_an_object_with_another_amount_is_for_a_person(floor: Floor) -> None:
    """B35 (c)."""
    intent_id = _lost(floor, "lost_request")
    row = floor.row(intent_id)
    marks = {"outbox_id": str(intent_id), "outbox_key": bytes(row["key"]).hex()}
    floor.sandbox.plant(
        floor.account, "payment_intents.create", {**CARD, "amount": 1, "metadata": marks}
    )
    floor.jump(intent_id)
    floor.round()
    assert floor.status(intent_id) == "unknown"
    assert [e["reasons"] for e in floor.escalations()] == [["another_amount"]]
    assert len(floor.posts()) == 1


def test_while_a_person_looks_nothing_is_sent_again(floor: Floor) -> None:
    intent_id = _lost(floor, "lost_request")
    floor.sandbox.fault("unavailable_503", account=floor.account, endpoint=READS)
    floor.until(5 * 3600, intent_id)
    floor.escalate()
    floor.sql("UPDATE outbox.escalations SET acked_until = outbox.clock() + INTERVAL '1 hour'")
    floor.round()
    assert floor.status(intent_id) == "unknown"
    floor.advance(3700)
    floor.round()
    assert floor.status(intent_id) == "succeeded"


def test_two_resolvers_at_once_look_each_row_up_once(floor: Floor) -> None:
    """B57: two beats during a deploy; 20 stale rows, 3 of them past their TTL."""
    floor.sandbox.fault("lost_ack", account=floor.account)
    floor.sandbox.fault("slow", account=floor.account, endpoint=READS, after_s=0.2)
    ids = floor.enqueue(20)
    floor.drain()
    floor.sql(
        "UPDATE outbox.intents SET escalate_at = outbox.clock(), ttl_at = outbox.clock() "
        "WHERE id = ANY(%(ids)s)",
        {"ids": ids[:3]},
    )
    floor.advance(6)
    barrier = threading.Barrier(2)

    def resolve(looker: Looker) -> None:
        barrier.wait()
        floor.escalate()
        looker.once()

    threads = [
        threading.Thread(target=resolve, args=(floor.new_looker(),), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert floor.statuses() == {"succeeded": 20}
    assert 1 <= len(_lists(floor)) <= 2, "each reads the list for what it holds"
    assert len(floor.escalations()) == 3
    assert len([p for p in floor.pages() if p["action"] == "trigger"]) == 3


def test_three_hundred_ticks_in_a_row_look_each_row_up_once(
    database: str, sandbox: Sandbox
) -> None:
    """B58: what is not due is not looked at, however often the tick comes."""
    rarely = {**PRODUCTION, "OUTBOX_LOOKS_S": "5,36000", "OUTBOX_RESENDS_S": "36000"}
    with open_floor(database, sandbox, rarely) as floor:
        floor.sandbox.fault("lost_request", account=floor.account)
        floor.enqueue(10)
        floor.drain()
        floor.advance(6)
        for _ in range(300):
            floor.looker.tick(0.1)
        floor.looker.close()
        assert {row["looks"] for row in floor.sql("SELECT looks FROM outbox.intents")} == {1}
        assert len(_lists(floor)) == 1


def test_look_ups_go_on_after_the_database_was_away(floor: Floor, servers: Servers) -> None:
    """Its places must not get lost with the connections."""
    intent_id = _lost(floor, "lost_ack")
    floor.advance(6)
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as proxy,
    ):
        address = proxy.url(floor.settings.database_url)
        store = Store(replace(floor.settings, database_url=address))
        looker = Looker(store, floor.directory, threads=4)
        proxy.what, proxy.lose_commit = b"resolver_token", 10**6
        for _ in range(8):
            with pytest.raises(Unreachable):
                looker.once()
        proxy.lose_commit = 0
        # A server that has not seen yet that its connection is gone keeps the row locked.
        wait_until(lambda: looker.once() == 1)
        looker.close()
        store.close()
    assert floor.status(intent_id) == "succeeded"


def test_a_read_that_is_refused_pauses_the_account(floor: Floor) -> None:
    floor.sandbox.fault("unauthorized_401", account=floor.account, endpoint=READS)
    intent_id = _lost(floor, "lost_request")
    floor.advance(30)
    floor.look()
    assert floor.status(intent_id) == "unknown", "no re-send while the account is refused"
    assert [e["reasons"] for e in floor.escalations()] == [["paused"]]


def test_a_vendor_that_hangs_holds_its_own_look_ups_and_no_tick(
    database: str, sandbox: Sandbox
) -> None:
    with open_floor(database, sandbox, FAST) as floor:
        sandbox.fault("lost_request", account=floor.account)
        sandbox.fault("hang", account=floor.account, endpoint=READS)
        floor.enqueue(40)
        floor.drain()
        floor.advance(1)
        # What no list shows for all: each waits for an answer of its own.
        floor.sql("UPDATE outbox.intents SET veto = 'stored_500'")
        begun = floor.looker.tick(0.2)
        assert 0 < begun <= 16
        floor.sql("UPDATE outbox.intents SET veto = NULL")
        # The tick came back; what hangs ends at its own limit and proves nothing.
        floor.look()
        rows = floor.sql("SELECT DISTINCT absent_looks FROM outbox.intents")
        assert rows == [{"absent_looks": 0}]


def test_a_read_that_drips_for_ever_is_cut_and_proves_nothing(
    database: str, sandbox: Sandbox
) -> None:
    """No pause between two bytes is long enough for a time-out of the socket."""
    with open_floor(database, sandbox, FAST) as floor:
        # Twenty pieces, each within the socket's own time-out.
        sandbox.fault("drip", account=floor.account, endpoint=READS, after_s=16, attempts=[1])
        intent_id = _lost(floor, "lost_ack")
        floor.advance(1)
        look = threading.Thread(target=floor.look, daemon=True)
        look.start()
        wait_until(lambda: not look.is_alive())
        assert [r["answered_at"] for r in floor.reads()] == [None]
        assert floor.row(intent_id)["absent_looks"] == 0
        floor.settle()
        assert floor.effects(intent_id) == 1

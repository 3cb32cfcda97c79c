"""One reading of a recipe's list for many intents: where it is asked for times alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outbox.contract import Call, Sought, VendorContract
from outbox.outcomes import Absent, Found, LookUp, Unreadable
from tests.vendors.raw_server import RawServer
from tests.vendors.recipe_calls import PAY, at, call_of, contract_of, payment
from tests.vendors.test_http_json_lookup import NO_WHOAMI, Listed, Lists, _vendor

BY_TIME = {
    **NO_WHOAMI,
    'idempotency_key = "{key}", created_after = "{since}"': 'created_after = "{since}", '
    'created_before = "{until}"',
}
SHARED = contract_of("payments", BY_TIME)


def payments(count: int) -> list[Call]:
    return [call_of(SHARED, {**PAY, "memo": f"for {n}"}) for n in range(count)]


def read(
    contract: VendorContract, calls: Sequence[Call], listed: Listed
) -> tuple[list[LookUp], list[tuple[str, dict[str, str]]]]:
    lists = Lists(listed)
    with _vendor(contract) as vendor, RawServer(lists) as server:
        placed = [replace(call, account=at(f"{server.url}/api")) for call in calls]
        sought = replace(
            Sought.of(placed[0], 1795953600, 1795960800),
            owners={str(call.intent_id): call.intent_id for call in placed},
            keys={call.key.hex(): call.intent_id for call in placed},
        )
        listing = vendor.read_list(sought)
        if isinstance(listing, Unreadable):
            return [listing for _ in placed], lists.asked
        return [listing.look_up(call) for call in placed], lists.asked


def page(*items: Any, after: Any = None) -> tuple[Any]:
    return ({"data": list(items), "next_cursor": after},)


def test_each_gets_its_own_out_of_one_reading_of_the_span() -> None:
    calls = payments(4)

    def listed(_: str, query: Mapping[str, str]) -> tuple[Any, ...]:
        if "cursor" in query:
            return page(payment(calls[2], id="pay_3"), payment(calls[0], id="pay_4"))
        made = [payment(call, id=f"pay_{n}") for n, call in enumerate(calls[:2])]
        return page(*made, after="more")

    seen, asked = read(SHARED, calls, listed)
    found = [[r.receipt_id for r in one.readings] for one in seen[:3] if isinstance(one, Found)]
    assert found == [["pay_0", "pay_4"], ["pay_1"], ["pay_3"]]
    assert seen[3] == Absent(vendor_now=1795955400)
    times = {"created_after": "2026-11-29T12:00:00Z", "created_before": "2026-11-29T14:00:00Z"}
    first = {**times, "limit": "50"}
    assert asked == [("/api/payments", first), ("/api/payments", {**first, "cursor": "more"})]


def test_a_page_that_breaks_in_the_middle_is_nobodys_absence() -> None:
    calls = payments(2)

    def listed(_: str, query: Mapping[str, str]) -> tuple[Any, ...]:
        return ({}, "503 x") if "cursor" in query else page(payment(calls[0]), after="more")

    seen, _ = read(SHARED, calls, listed)
    assert seen == [Unreadable("http_503")] * 2


def test_an_object_of_the_other_mode_is_unreadable_for_its_own_intent_alone() -> None:
    calls = payments(2)
    seen, _ = read(SHARED, calls, lambda *_: page(payment(calls[0], livemode=True)))
    assert seen[0] == Unreadable("an object of the other mode")
    assert isinstance(seen[1], Absent)


def test_a_source_that_is_not_consistent_finds_and_never_proves() -> None:
    loose = 'parameter = "cursor" }\nconsistent = '
    contract = contract_of("payments", {**BY_TIME, f"{loose}true": f"{loose}false"})
    calls = payments(2)
    seen, _ = read(contract, calls, lambda *_: page(payment(calls[0])))
    assert isinstance(seen[0], Found)
    assert isinstance(seen[1], Unreadable)


def test_only_a_list_that_is_asked_for_times_alone_is_shared() -> None:
    def shares(contract: VendorContract, operation: str = "payments.create") -> bool:
        with _vendor(contract) as vendor:
            return vendor.shares_list(operation)

    assert shares(SHARED)
    assert not shares(contract_of("payments", NO_WHOAMI)), "it is asked by the key"
    assert not shares(SHARED, "payments.cancel"), "one object, by its id"
    assert not shares(SHARED, "nobody.knows")
    assert not shares(contract_of("tickets"), "tickets.create"), "it is asked by our mark"
    assert not shares(contract_of("contacts"), "contacts.create"), "by the external id"

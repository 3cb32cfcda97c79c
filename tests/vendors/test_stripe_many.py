"""One reading of Stripe's list and events for many intents: each gets its own, and none is called
absent that could not be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import Account, Call, Listing, Sought
from outbox.outcomes import Absent, Found, LookUp, Receipt, Unreadable
from tests.vendors.raw_server import Pages, RawServer, page
from tests.vendors.stripe_calls import CHARGE, at, call_of, payment_intent, since
from vendors import stripe_lookup
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

SPAN = {"created[gte]", "created[lte]", "customer"}
Listed = Callable[[str, Mapping[str, str]], tuple[str, Any]]


def sought(calls: Sequence[Call], since_s: int = 0, until_s: int | None = None) -> Sought:
    return replace(
        Sought.of(calls[0], since_s, until_s),
        owners={str(call.intent_id): call.intent_id for call in calls},
        keys={call.key.hex(): call.intent_id for call in calls},
    )


def ids(seen: LookUp) -> list[str]:
    assert isinstance(seen, Found), seen
    return [reading.receipt_id for reading in seen.readings]


def read(
    vendor: StripeVendor, calls: Sequence[Call], listed: Listed
) -> tuple[Listing | Unreadable, list[LookUp], list[str]]:
    """What one reading of such pages says of each call, and which paths were read."""
    pages = Pages(listed)
    with RawServer(pages) as server:
        placed = [replace(call, account=at(server.url)) for call in calls]
        listing = vendor.read_list(sought(placed))
        seen = [] if isinstance(listing, Unreadable) else [listing.look_up(c) for c in placed]
    return listing, seen, [path for path, _ in pages.queries]


def by_list(*objects: Mapping[str, Any]) -> Listed:
    return lambda path, _: page(*objects) if path == "/v1/payment_intents" else page()


def by_event(*events: Mapping[str, Any]) -> Listed:
    return lambda path, _: page(*events) if path == "/v1/events" else page()


def test_a_hundred_writes_of_as_many_customers_are_looked_up_by_two_pages(
    vendor: StripeVendor, sandbox: Sandbox, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_lookup, "_PAGE_SIZE", 25)
    calls = [call_of(params={**CHARGE, "customer": f"cus_{n}"}, account=account) for n in range(40)]
    sandbox.set_account(account.vendor_account, any_customer=True)
    landed = []
    for call in calls:
        outcome = vendor.perform(call)
        assert isinstance(outcome, Receipt)
        landed.append(outcome.reading.receipt_id)
    listing = vendor.read_list(sought(calls, since(sandbox, account)))
    assert not isinstance(listing, Unreadable)
    assert [ids(listing.look_up(call)) for call in calls] == [[one] for one in landed]
    reads = [r["path"] for r in sandbox.requests(account.vendor_account) if r["method"] == "GET"]
    assert [reads.count(path) for path in ("/v1/payment_intents", "/v1/events")] == [2, 2]


def test_each_object_goes_to_the_intent_that_it_bears_the_mark_of(vendor: StripeVendor) -> None:
    by_id, by_key, none, foreign = (call_of() for _ in range(4))
    objects = [
        payment_intent(by_id, id="pi_1", metadata={"outbox_id": str(by_id.intent_id)}),
        payment_intent(by_key, id="pi_2", metadata={"outbox_key": by_key.key.hex()}),
        payment_intent(none, id="pi_3", metadata={"outbox_id": by_key.key.hex(), "order": "7"}),
        payment_intent(none, id="pi_4", metadata=None),
        payment_intent(foreign, id="pi_5"),
    ]
    _, (first, second, third), _ = read(vendor, [by_id, by_key, none], by_list(*objects))
    assert (ids(first), ids(second)) == (["pi_1"], ["pi_2"])
    assert isinstance(third, Absent)


def test_an_object_with_the_id_of_one_and_the_key_of_another_is_shown_to_both(
    vendor: StripeVendor,
) -> None:
    one, other = call_of(), call_of()
    marks = {"outbox_id": str(one.intent_id), "outbox_key": other.key.hex()}
    _, seen, _ = read(vendor, [one, other], by_list(payment_intent(one, metadata=marks)))
    assert [ids(each) for each in seen] == [["pi_1"], ["pi_1"]]


def test_two_objects_of_one_intent_are_both_told(vendor: StripeVendor) -> None:
    one, other = call_of(), call_of()
    objects = [payment_intent(one, id=f"pi_{n}") for n in (1, 2)]
    _, seen, _ = read(vendor, [one, other], by_list(*objects))
    assert ids(seen[0]) == ["pi_1", "pi_2"]
    assert isinstance(seen[1], Absent)


def test_what_only_an_event_shows_is_found_by_the_key_that_caused_it(vendor: StripeVendor) -> None:
    one, other = call_of(), call_of()
    bare = {**payment_intent(one, status="processing"), "metadata": {}}
    event = {
        "id": "evt_1",
        "created": 7,
        "data": {"object": bare},
        "request": {"id": "req_1", "idempotency_key": one.key.hex()},
    }
    single = payment_intent(one, status="succeeded")

    def listed(path: str, query: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/payment_intents/pi_1":
            return "200 OK", single
        return by_event(event)(path, query)

    _, (mine, others), paths = read(vendor, [one, other], listed)
    assert ids(mine) == ["pi_1"]
    assert isinstance(others, Absent)
    assert paths == ["/v1/payment_intents", "/v1/events", "/v1/payment_intents/pi_1"]


def test_a_snapshot_of_an_object_that_the_list_has_is_not_read_again(vendor: StripeVendor) -> None:
    call = call_of()
    event = {"id": "evt_1", "created": 7, "data": {"object": payment_intent(call)}}

    def listed(path: str, query: Mapping[str, str]) -> tuple[str, Any]:
        return page(event if path == "/v1/events" else payment_intent(call))

    _, (seen,), paths = read(vendor, [call], listed)
    assert ids(seen) == ["pi_1"]
    assert paths == ["/v1/payment_intents", "/v1/events"]


@pytest.mark.parametrize(
    "spoilt", [{"status": None}, {"amount": 2**70}, {"livemode": True}], ids=str
)
@pytest.mark.parametrize("shown", ["by its list", "by an event as well"])
def test_an_object_that_cannot_be_read_is_unreadable_for_its_own_intent_alone(
    vendor: StripeVendor, spoilt: Mapping[str, Any], shown: str
) -> None:
    one, other = call_of(), call_of()
    whole, broken = payment_intent(one), payment_intent(one, **spoilt)
    event = {"id": "evt_1", "created": 7, "data": {"object": broken}}

    def listed(path: str, _: Mapping[str, str]) -> tuple[str, Any]:
        if shown == "by its list":
            return page(broken) if path == "/v1/payment_intents" else page()
        return page(whole if path == "/v1/payment_intents" else event)

    _, (mine, others), _ = read(vendor, [one, other], listed)
    assert isinstance(mine, Unreadable)
    assert isinstance(others, Absent)


@pytest.mark.parametrize("odd", [None, 7, "pi_9", [], {}, {"id": "pi_9", "metadata": "?"}], ids=str)
def test_beside_an_object_that_may_be_anybodys_ours_is_found_and_nothing_is_absent(
    vendor: StripeVendor, odd: Any
) -> None:
    one, other = call_of(), call_of()
    _, (mine, others), _ = read(vendor, [one, other], by_list(payment_intent(one), odd))
    assert ids(mine) == ["pi_1"]
    assert others == Unreadable("an object that does not tell whose it is")


def test_a_list_goes_on_after_an_object_without_an_id(vendor: StripeVendor) -> None:
    """The last of a page names the next page, and it may be the one that cannot be read."""
    one, other, third = (call_of() for _ in range(3))
    nameless = payment_intent(call_of(), id=None)

    def listed(path: str, query: Mapping[str, str]) -> tuple[str, Any]:
        if path == "/v1/events":
            return page()
        if "starting_after" in query:
            assert query["starting_after"] == "pi_1"
            return page(nameless, payment_intent(other, id="pi_2"))
        return page(payment_intent(one, id="pi_1"), nameless, more=True)

    _, seen, paths = read(vendor, [one, other, third], listed)
    assert [ids(each) for each in seen[:2]] == [["pi_1"], ["pi_2"]]
    assert isinstance(seen[2], Absent), "it bears the mark of somebody else"
    assert paths == ["/v1/payment_intents"] * 2 + ["/v1/events"]


@pytest.mark.parametrize("shown", [None, {}, 7, {"id": "pi_1", "object": None}], ids=str)
def test_an_event_that_our_key_caused_is_never_absence_whatever_it_shows(
    vendor: StripeVendor, shown: Any
) -> None:
    one, other = call_of(), call_of()
    request = {"idempotency_key": one.key.hex()}
    event = {"id": "evt_1", "created": 7, "data": {"object": shown}, "request": request}
    _, (mine, others), _ = read(vendor, [one, other], by_event(event))
    assert mine == Unreadable("an object of ours that cannot be read")
    assert isinstance(others, Absent)


@pytest.mark.parametrize("broken", ["/v1/payment_intents", "/v1/events"])
def test_a_page_that_breaks_in_the_middle_is_nobodys_absence(
    vendor: StripeVendor, broken: str
) -> None:
    calls = [call_of() for _ in range(3)]
    first = [payment_intent(calls[0], id="pi_1")]

    def listed(path: str, query: Mapping[str, str]) -> tuple[str, Any]:
        if path != broken:
            return page()
        if "starting_after" in query:
            return "502 Bad Gateway", {}
        return "200 OK", {"data": first, "has_more": True}

    listing, _, _ = read(vendor, calls, listed)
    assert listing == Unreadable("http_502")


def test_a_reading_for_many_may_be_as_long_as_so_many_looks(
    vendor: StripeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripe_lookup, "MAX_PAGES", 2)
    calls = [call_of() for _ in range(3)]

    def listed(path: str, query: Mapping[str, str]) -> tuple[str, Any]:
        number = int(query.get("starting_after", "pi_0")[3:]) + 1
        object_ = payment_intent(calls[0], id=f"pi_{number}")
        return "200 OK", {"data": [object_], "has_more": number < 6 and path != "/v1/events"}

    for looks, whole in ((3, True), (2, False)):
        with RawServer(Pages(listed)) as server:
            placed = [replace(call, account=at(server.url)) for call in calls]
            seen = vendor.read_list(replace(sought(placed), looks=looks))
        assert isinstance(seen, Unreadable) != whole


def test_the_list_of_many_is_the_accounts_and_of_their_time(vendor: StripeVendor) -> None:
    pages = Pages(by_list())
    with RawServer(pages) as server:
        params = {**CHARGE, "customer": "cus_7"}
        placed = [call_of(params=params, account=at(server.url)) for _ in range(2)]
        vendor.read_list(sought(placed, 1234, 5678))
    shown = [{n: v for n, v in query.items() if n in SPAN} for _, query in pages.queries]
    assert shown == [{"created[gte]": "1234", "created[lte]": "5678"}] * 2


def test_a_change_of_an_object_shares_no_list(vendor: StripeVendor) -> None:
    assert vendor.shares_list("payment_intents.create")
    assert not vendor.shares_list("payment_intents.capture")
    assert not vendor.shares_list("nobody.knows")


def test_a_credential_of_the_other_mode_reads_nothing(vendor: StripeVendor) -> None:
    pages = Pages(by_list())
    with RawServer(pages) as server:
        live = replace(at(server.url), mode="live")
        seen = vendor.read_list(sought([call_of(account=live)]))
    assert isinstance(seen, Unreadable)
    assert seen.pause
    assert pages.queries == []

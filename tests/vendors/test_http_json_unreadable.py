"""An object that cannot be read on a recipe's list: it takes away the proof that ours is not there,
and nothing of what the list shows under our marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outbox.contract import Call
from outbox.outcomes import Absent, Found, LookUp, Unreadable
from tests.vendors.recipe_calls import call_of, contract_of, payment
from tests.vendors.test_http_json_hardened import TICKET, UNFILTERED
from tests.vendors.test_http_json_lookup import PAYMENTS, TICKETS, Listed, _look
from tests.vendors.test_http_json_many import SHARED, page, payments, read

NO_OBJECT = "an object that cannot be read"
NO_MARK = "an object holds something else where our mark must be"
# Of an account's list, who cannot be told whose they are.
ANYBODYS: list[tuple[Any, str]] = [
    ({"id": None, "status": "succeeded"}, NO_OBJECT),
    ({"id": "pay_9"}, NO_OBJECT),
    ({"id": "pay_9", "status": "succeeded", "amount": "12.50"}, NO_OBJECT),
    ({"id": None, "status": "succeeded", "idempotency_key": "their order 7"}, NO_OBJECT),
    ({"id": "pay_9", "status": "succeeded", "idempotency_key": "their order 7"}, NO_MARK),
    ({"id": "pay_9", "status": "succeeded", "idempotency_key": None}, NO_MARK),
    ({"id": "pay_9", "status": "succeeded", "idempotency_key": 7.5}, NO_MARK),
    ({"status": "succeeded"}, NO_OBJECT),
    ([], NO_OBJECT),
    (None, NO_OBJECT),
    ("pay_9", NO_OBJECT),
]
# What makes a payment one that cannot be read.
SPOILT: list[dict[str, Any]] = [{"id": None}, {"status": None}, {"amount": "12.50"}]


def _ids(seen: LookUp) -> list[str]:
    assert isinstance(seen, Found), seen
    return [reading.receipt_id for reading in seen.readings]


def _alone(call: Call, *items: Any) -> LookUp:
    """What a look-up of its own says, at a list that is asked for times alone."""
    seen, _ = _look(SHARED, call, lambda *_: page(*items))
    return seen


@pytest.mark.parametrize(("odd", "why"), ANYBODYS, ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_beside_an_object_that_may_be_anybodys_nothing_is_absent(
    odd: Any, why: str, first: bool
) -> None:
    mine, *others = payments(3)
    items = [odd, payment(mine)] if first else [payment(mine), odd]
    seen, _ = read(SHARED, [mine, *others], lambda *_: page(*items))
    assert seen[1:] == [Unreadable(why)] * 2
    assert [_alone(call, *items) for call in others] == [Unreadable(why)] * 2


@pytest.mark.parametrize(("odd", "why"), ANYBODYS, ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_beside_an_object_that_may_be_anybodys_ours_is_found(
    odd: Any, why: str, first: bool
) -> None:
    mine, other = payments(2)
    made = [payment(mine), payment(other, id="pay_2")]
    items = [odd, *made] if first else [*made, odd]
    seen, _ = read(SHARED, [mine, other], lambda *_: page(*items))
    assert [_ids(one) for one in seen] == [["pay_1"], ["pay_2"]]
    assert [_ids(_alone(call, *items)) for call in (mine, other)] == [["pay_1"], ["pay_2"]]


def test_what_comes_on_pages_after_it_is_read_too() -> None:
    mine, other = payments(2)

    def listed(_: str, query: Mapping[str, str]) -> tuple[Any, ...]:
        return page(payment(mine)) if "cursor" in query else page({"id": None}, after="more")

    seen, asked = read(SHARED, [mine, other], listed)
    assert (_ids(seen[0]), seen[1]) == (["pay_1"], Unreadable(NO_OBJECT))
    assert len(asked) == 2


def test_it_does_not_make_up_for_a_page_that_breaks() -> None:
    calls = payments(2)

    def listed(_: str, query: Mapping[str, str]) -> tuple[Any, ...]:
        return ({}, "503 x") if "cursor" in query else page({"id": None}, after="more")

    seen, _ = read(SHARED, calls, listed)
    assert seen == [Unreadable("http_503")] * 2


@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
@pytest.mark.parametrize("beside", [[], [{}]], ids=["alone", "beside one that can"])
def test_under_our_mark_it_is_unreadable_for_that_intent_alone(
    spoilt: dict[str, Any], beside: list[dict[str, Any]]
) -> None:
    """Not settled by another object of the same mark either: two of them are a contradiction."""
    mine, landed, absent = payments(3)
    items = [payment(mine, **spoilt), payment(landed, id="pay_2")]
    items += [payment(mine, id="pay_3", **one) for one in beside]
    seen, _ = read(SHARED, [mine, landed, absent], lambda *_: page(*items))
    assert (seen[0], _ids(seen[1])) == (Unreadable(NO_OBJECT), ["pay_2"])
    assert isinstance(seen[2], Absent)
    assert _alone(mine, *items) == Unreadable(NO_OBJECT)
    assert _ids(_alone(landed, *items)) == ["pay_2"]
    assert isinstance(_alone(absent, *items), Absent)


@pytest.mark.parametrize("spelled", [str.upper, lambda key: f" {key} "])
def test_our_mark_is_ours_on_it_in_any_spelling(spelled: Any) -> None:
    mine, other = payments(2)
    odd = payment(mine, id=None, idempotency_key=spelled(mine.key.hex()))
    seen, _ = read(SHARED, [mine, other], lambda *_: page(odd))
    assert seen[0] == Unreadable(NO_OBJECT)
    assert isinstance(seen[1], Absent)


@pytest.mark.parametrize("odd", [{"id": None}, {"id": "pay_9", "status": "succeeded"}], ids=str)
def test_what_comes_under_our_key_and_cannot_be_told_may_be_a_second_one_of_ours(odd: Any) -> None:
    """A list that was asked by our key shows what is ours: what is found beside it settles
    nothing."""
    call = call_of(PAYMENTS)
    listed: Listed = lambda *_: page(payment(call), odd)  # noqa: E731
    seen, _ = _look(PAYMENTS, call, listed)
    assert isinstance(seen, Unreadable)


def test_what_comes_under_our_key_with_the_mark_of_another_is_passed_over() -> None:
    call, other = call_of(PAYMENTS), call_of(PAYMENTS, {"amount": 1})
    seen, _ = _look(PAYMENTS, call, lambda *_: page(payment(other, id=None)))
    assert isinstance(seen, Absent)


def test_a_receipt_that_the_list_does_not_show_is_not_absent_beside_it() -> None:
    """Where an object has no address of its own, the list is asked for it."""
    contract = contract_of("tickets", {**UNFILTERED, '[retrieve]\npath = "/tickets/{id}"\n': ""})
    call = call_of(contract, TICKET)
    mine = {"id": 7, "reference": str(call.intent_id), "state": "open"}
    pages: dict[str, list[Any]] = {"1": [mine, {"id": None, "state": "open"}], "2": []}
    listed: Listed = lambda _, query: ({"tickets": pages[query["page"]]},)  # noqa: E731
    assert _ids(_look(contract, call, listed, "7")[0]) == ["7"]
    assert _look(contract, call, listed, "8")[0] == Unreadable(NO_OBJECT)
    pages["1"].pop()
    assert _look(contract, call, listed, "8")[0] == Absent("retrieve")


def test_one_object_that_was_asked_for_and_cannot_be_read_is_no_absence() -> None:
    call = call_of(PAYMENTS, {"payment_id": "pay_1"}, operation="payments.cancel")
    shown: list[Any] = [{"id": None, "status": "canceled"}, {"id": "pay_1"}, [], None]
    for document in shown:
        seen, _ = _look(PAYMENTS, call, lambda *_, d=document: (d,))
        assert seen == Unreadable(NO_OBJECT)


def test_a_source_that_is_not_consistent_proves_no_more_for_what_it_holds() -> None:
    contract = contract_of("tickets", {**UNFILTERED, "consistent = true": "consistent = false"})
    mine = call_of(contract, TICKET)
    shown = {"id": 7, "reference": str(mine.intent_id), "state": "open"}
    pages = {"1": [shown, {"id": None}], "2": []}
    listed: Listed = lambda _, query: ({"tickets": pages[query["page"]]},)  # noqa: E731
    assert _ids(_look(contract, mine, listed)[0]) == ["7"]
    other = replace(mine, intent_id=call_of(TICKETS, {"title": "b"}).intent_id)
    assert isinstance(_look(contract, other, listed)[0], Unreadable)

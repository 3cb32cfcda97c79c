"""Lanes end to end: one at a time, the oldest unsettled first, whatever its status."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from tests.workers.floor import Floor, in_lane, wait_until


def _keys(floor: Floor, ids: list[UUID]) -> list[str]:
    return [bytes(floor.row(intent_id)["key"]).hex() for intent_id in ids]


def _lane(
    floor: Floor, customer: str, count: int, on_doubt: Literal["hold", "continue"] = "hold"
) -> list[UUID]:
    tool = in_lane(on_doubt)
    return [floor.one(tool=tool, customer=customer) for _ in range(count)]


def test_a_lane_goes_out_in_order_one_at_a_time(floor: Floor) -> None:
    ids = _lane(floor, "cus_a", 6)
    floor.drain()
    posts = floor.posts()
    assert [p["key"] for p in posts] == _keys(floor, ids)
    ends = [p["answered_at"] for p in posts]
    begins = [p["arrived_at"] for p in posts]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


def test_two_lanes_go_side_by_side(floor: Floor) -> None:
    floor.sandbox.fault("slow", account=floor.account, after_s=0.4)
    for customer in ("cus_a", "cus_b", "cus_c"):
        _lane(floor, customer, 2)
    floor.drain()
    posts = floor.posts()
    assert len(posts) == 6
    # The first of each began before the first of any had its answer.
    assert max(p["arrived_at"] for p in posts[:3]) < min(p["answered_at"] for p in posts)


def test_a_head_in_doubt_holds_its_lane_and_lets_go_once_it_is_settled(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    head, *waiting = _lane(floor, "cus_a", 3)
    (other,) = _lane(floor, "cus_b", 1)
    floor.drain()
    unknown = [i for i in (head, other) if floor.status(i) == "unknown"]
    assert len(unknown) == 1
    if unknown == [head]:
        assert [floor.status(i) for i in waiting] == ["pending", "pending"]
    floor.settle()
    assert {floor.status(i) for i in (head, *waiting, other)} == {"succeeded"}
    in_lane_a = [p["key"] for p in floor.posts() if p["key"] in _keys(floor, [head, *waiting])]
    assert in_lane_a == _keys(floor, [head, *waiting])


def test_a_head_in_doubt_that_may_be_passed_does_not_hold_its_lane(floor: Floor) -> None:
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    head, *rest = _lane(floor, "cus_a", 3, on_doubt="continue")
    floor.drain()
    assert floor.status(head) == "unknown"
    assert [floor.status(i) for i in rest] == ["succeeded", "succeeded"]
    floor.settle()
    assert floor.effects(head) == 1


def test_a_head_that_waits_for_its_back_off_is_not_overtaken(floor: Floor) -> None:
    floor.sandbox.fault("rate_limited_429", account=floor.account, times=1, after_s=1)
    ids = _lane(floor, "cus_a", 3)
    floor.drain()
    assert [floor.status(i) for i in ids] == ["pending"] * 3

    def settled() -> bool:
        floor.drain()
        return floor.statuses() == {"succeeded": 3}

    wait_until(settled)
    assert [p["key"] for p in floor.posts()][1:] == _keys(floor, ids)

"""The LIMBO vendor: what each fault shows and what it hides, under both contracts, on its clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3

from vendors.sandbox.limbo_client import Limbo, LimboRefused
from vendors.sandbox.limbo_faults import MODES
from vendors.sandbox.limbo_paths import EVERY, PATHS

Seen = tuple[int, dict[str, Any]] | None


@pytest.fixture(scope="module")
def limbo() -> Iterator[Limbo]:
    with Limbo.start() as started:
        yield started


@pytest.fixture
def wire() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False) as pool:
        yield pool


class Caller:
    """One call's client; None is a lost connection."""

    def __init__(self, limbo: Limbo, wire: urllib3.PoolManager, name: str) -> None:
        self.limbo, self.wire, self.name = limbo, wire, name

    def write(
        self,
        contract: str = "native",
        url: str = "/tickets",
        body: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> Seen:
        sent = {"title": "hello", "reference": self.name} if body is None else dict(body)
        headers = {"Idempotency-Key": key} if key else {}
        return self._ask("POST", contract + url, json.dumps(sent), headers)

    def listed(self, contract: str = "native", url: str = "/tickets") -> list[dict[str, Any]]:
        seen = self._ask("GET", f"{contract}{url}?{urlencode({'reference': self.name})}", None, {})
        assert seen is not None
        assert seen[0] == 200
        items: list[dict[str, Any]] = seen[1]["items"]
        return items

    def effects(self) -> int:
        return sum(effect["call"] == self.name for effect in self.limbo.effects())

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Seen:
        try:
            answer = self.wire.request(
                method, f"{self.limbo.url}/{path}", body=body, headers=headers
            )
        except urllib3.exceptions.HTTPError:
            return None
        return answer.status, {**answer.json(), "headers": dict(answer.headers)}


@pytest.fixture
def caller(limbo: Limbo, wire: urllib3.PoolManager, request: pytest.FixtureRequest) -> Caller:
    return Caller(limbo, wire, request.node.name)


def status(seen: Seen) -> int | None:
    return None if seen is None else seen[0]


@pytest.mark.parametrize(
    ("mode", "seen", "effects"),
    [
        ("timeout_before", None, 0),
        ("timeout_after", None, 1),
        ("timeout_late", None, 0),
        ("timeout_late_tail", None, 0),
        ("500_before", 500, 0),
        ("500_after", 500, 1),
        ("duplicate_delivery", 201, 2),
        ("503_transient", 503, 0),
        ("429", 429, 0),
        ("outage", 503, 0),
        ("schema_drift", 400, 0),
    ],
)
def test_what_the_caller_sees_and_what_happened(
    limbo: Limbo, caller: Caller, mode: str, seen: int | None, effects: int
) -> None:
    limbo.plan({caller.name: {"mode": mode, "after_s": 3600}})
    assert status(caller.write()) == seen
    assert caller.effects() == effects
    # Only an outage and a changed schema last; the call's next write is taken.
    lasts = mode in ("outage", "schema_drift")
    assert status(caller.write()) == (seen if lasts else 201)
    assert caller.effects() == effects + (0 if lasts else 1)


def test_a_500_looks_the_same_whatever_it_hides(limbo: Limbo, wire: urllib3.PoolManager) -> None:
    bodies = []
    for mode in ("500_before", "500_after"):
        limbo.plan({mode: {"mode": mode}})
        body = json.dumps({"title": "a", "reference": mode})
        answer = wire.request("POST", limbo.address("native") + "/tickets", body=body)
        bodies.append(answer.data)
    assert bodies[0] == bodies[1]


def test_a_late_write_happens_at_its_time_and_no_sooner(limbo: Limbo, caller: Caller) -> None:
    limbo.plan({caller.name: {"mode": "timeout_late", "after_s": 90}})
    caller.write()
    limbo.advance(85)
    assert caller.effects() == 0
    limbo.advance(10)
    assert caller.effects() == 1
    first = next(e["at"] for e in limbo.effects() if e["call"] == caller.name)
    assert caller.listed()[0]["created_at"] == first


@pytest.mark.parametrize(
    ("contract", "url"), [("keys", "/tickets"), ("native", "/billing/charges")]
)
def test_under_its_key_a_write_is_done_once_and_replayed(
    limbo: Limbo, caller: Caller, contract: str, url: str
) -> None:
    limbo.plan({caller.name: {"mode": "timeout_late", "after_s": 90}})
    assert caller.write(contract, url, key=caller.name) is None
    made = caller.write(contract, url, key=caller.name)
    again = caller.write(contract, url, key=caller.name)
    assert made is not None
    assert again is not None
    assert (made[0], made[1]["id"]) == (again[0], again[1]["id"])
    assert "Idempotent-Replayed" not in made[1]["headers"]
    assert again[1]["headers"]["Idempotent-Replayed"] == "true"
    limbo.advance(100)  # the late one comes under the same key
    assert caller.effects() == 1
    other = {"title": "another", "reference": caller.name}
    assert status(caller.write(contract, url, other, key=caller.name)) == 409


def test_a_key_means_nothing_where_the_contract_has_none(caller: Caller) -> None:
    for _ in range(2):
        assert status(caller.write(key="one")) == 201
    assert caller.effects() == 2


def test_two_of_eleven_paths_take_a_key_natively_and_all_do_everywhere() -> None:
    assert len(PATHS) == 11
    assert [p.name for p in PATHS if p.takes_key("native")] == ["social.mastodon", "billing.charge"]
    assert all(path.takes_key("keys") for path in PATHS)
    assert {path.read_lag_s for path in PATHS} == {0.0, 120.0, 180.0, None}
    assert len(MODES) == 12


def test_a_batch_cut_short_is_half_done_and_goes_on_under_its_key(
    limbo: Limbo, caller: Caller
) -> None:
    url, body = "/data/batches", {"rows": ["a", "b", "c", "d"], "reference": caller.name}
    limbo.plan({caller.name: {"mode": "partial_batch"}})
    assert caller.write("keys", url, body, key="batch") is None
    assert caller.effects() == 2
    assert [one["state"] for one in caller.listed("keys", url)] == ["partial"]
    assert status(caller.write("keys", url, body, key="batch")) == 201
    rows = [e["row"] for e in limbo.effects() if e["call"] == caller.name]
    assert rows == [0, 1, 2, 3]
    assert [one["state"] for one in caller.listed("keys", url)] == ["complete"]


@pytest.mark.parametrize(
    ("url", "lag_s"),
    [("/social/weibo/posts", 180), ("/mail/messages", 120), ("/social/linkedin/posts", 0)],
)
def test_a_list_lags_as_far_behind_as_its_contract_says(
    limbo: Limbo, caller: Caller, url: str, lag_s: int
) -> None:
    caller.write(url=url)
    assert len(caller.listed(url=url)) == (0 if lag_s else 1)
    limbo.advance(lag_s)
    assert len(caller.listed(url=url)) == 1


def test_what_cannot_be_read_back_has_no_list(caller: Caller, wire: urllib3.PoolManager) -> None:
    assert status(caller.write(url="/social/x/posts")) == 201
    url = f"{caller.limbo.address('native')}/social/x/posts?reference={caller.name}"
    assert wire.request("GET", url).status == 404


def test_a_write_that_is_safe_by_nature_is_not_done_twice(
    limbo: Limbo, wire: urllib3.PoolManager
) -> None:
    for path in EVERY:
        if not path.by_target:
            continue
        url = limbo.address("native") + path.url.replace("{target}", path.name)
        assert wire.request("GET", url).json()["state"] == "as_it_was"
        answers = [wire.request(path.method, url, body="{}").status for _ in range(2)]
        assert answers == ([200, 200] if path.method == "PUT" else [200, 409])
        assert wire.request("GET", url).json()["state"] == path.shows
        assert [e["call"] for e in limbo.effects()].count(path.name) == 1


def test_a_renamed_field_is_taken_under_its_new_name(limbo: Limbo, caller: Caller) -> None:
    limbo.plan({caller.name: {"mode": "schema_drift"}})
    assert status(caller.write()) == 400
    assert status(caller.write(body={"title_v2": "hello", "reference": caller.name})) == 201
    assert caller.effects() == 1


def test_a_timeline_names_the_fate_of_each_request_reads_included(
    limbo: Limbo, caller: Caller
) -> None:
    fates = ["request_lost", "reply_lost", "request_lost", "delivered"]
    limbo.plan({caller.name: {"fates": fates}})
    assert caller.write("keys", key=caller.name) is None
    assert caller.effects() == 0
    assert caller.write("keys", key=caller.name) is None
    assert caller.effects() == 1
    with pytest.raises(AssertionError):
        caller.listed("keys")
    assert status(caller.write("keys", key=caller.name)) == 201
    assert len(caller.listed("keys")) == 1
    assert caller.effects() == 1
    assert limbo.sent()[caller.name] == 3


@pytest.mark.parametrize(("vendor", "seen"), [("refuses", 402), ("is_out", 503)])
def test_a_vendor_that_never_takes_a_call_does_nothing(
    limbo: Limbo, caller: Caller, vendor: str, seen: int
) -> None:
    limbo.plan({caller.name: {"fates": ["reply_lost"], "vendor": vendor}})
    assert caller.write("keys", key=caller.name) is None
    for _ in range(2):
        assert status(caller.write("keys", key=caller.name)) == seen
    assert caller.effects() == 0


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"mode": "timeout"}, "mode: no such mode"),
        ({"fates": ["lost"]}, "fates: one of"),
        ({"vendor": "sleeps"}, "vendor: one of"),
        ({"often": 2}, "often: a plan has"),
    ],
)
def test_what_is_no_plan_is_refused_by_its_name(
    limbo: Limbo, caller: Caller, plan: dict[str, Any], problem: str
) -> None:
    with pytest.raises(LimboRefused, match=problem):
        limbo.plan({caller.name: plan})
    assert status(caller.write()) == 201

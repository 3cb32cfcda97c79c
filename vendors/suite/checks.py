"""The checks. Each raises ``AssertionError`` with what it saw; none knows a vendor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from outbox.contract import Sought, TooLate
from outbox.outcomes import Absent, Found, NotSent, Receipt, Refused, Unreadable
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from vendors.suite import webhooks
from vendors.suite.bench import Bench, Check
from vendors.suite.face import Face, Row
from vendors.suite.faces import faces, rows_of

_LAG_S = 3600.0


# ---- writes


def outcome(row: Row) -> Check:
    """One row of the outcome table: what is seen, how often it took effect, and one request."""

    def check(b: Bench) -> None:
        if row.fault != "none":
            b.sandbox.fault(row.fault, account=b.account.name, **row.fields)
        call = b.face.call(b.account, row.params)
        seen = b.vendor.perform(call)
        assert type(seen).__name__ == row.outcome, f"came back as {seen}"
        if row.covers_key is not None:
            assert isinstance(seen, Refused)
            assert seen.covers_key == row.covers_key, f"covers_key is {seen.covers_key}"
        assert bool(getattr(seen, "veto", "")) == row.veto, f"the veto is wrong: {seen}"
        if isinstance(seen, NotSent):
            assert (seen.pause, seen.throttled) == (row.pause, row.throttled), f"came as {seen}"
        if isinstance(seen, Receipt):
            assert seen.reading.owner in ("", str(call.intent_id)), "another intent's object"
        b.sandbox.release(b.account.name)
        applied = [e for e in b.sandbox.effects(b.account.name) if e["outcome"] == "applied"]
        assert len(applied) == row.effects, f"it took effect {len(applied)} times"
        assert len(b.writes()) == 1, f"{len(b.writes())} requests for one perform"

    return check


def key_is_in_its_slot(b: Bench) -> None:
    call, _ = b.landed()
    (write,) = b.writes()
    assert write["key"] == b.face.wire_key(call), f"the key on the wire is {write['key']}"


def body_is_the_same_at_every_try(b: Bench) -> None:
    call = b.face.call(b.account)
    b.vendor.perform(call)
    with Bench.of(b.face, b.sandbox) as other:  # as another process would
        other.vendor.perform(replace(call))
    first, second = b.writes()
    assert first["body_sha256"] == second["body_sha256"] is not None, "the bodies differ"
    assert first["key"] == second["key"], "the keys differ"


def nothing_is_sent_where_nobody_listens(b: Bench) -> None:
    scheme = b.account.base_url.partition(":")[0]
    nowhere = replace(b.account, name="nowhere", base_url=f"{scheme}://127.0.0.1:9")
    seen = b.vendor.perform(b.face.call(nowhere))
    assert isinstance(seen, NotSent), f"came back as {seen}"


class _TooLate:
    def attach(self, _sock: Any) -> None:
        raise TooLate


def nothing_is_sent_after_the_claims_own_time(b: Bench) -> None:
    b.landed()
    seen = b.vendor.perform(b.face.call(b.account, cutoff=_TooLate()))
    assert isinstance(seen, NotSent), f"came back as {seen}"
    assert len(b.writes()) == 1, "a request left"


def account_is_named(b: Bench) -> None:
    if b.face.contract.tells_owner:
        seen = b.vendor.whoami(b.account)
        assert isinstance(seen, str), f"came back as {seen}"
        assert seen, "no name"


# ---- reads


def look_up_finds_what_landed(b: Bench) -> None:
    b.sandbox.fault("lost_ack", account=b.account.name)
    call = b.face.call(b.account)
    b.vendor.perform(call)
    seen = b.vendor.look_up(call, b.since())
    assert isinstance(seen, Found), f"came back as {seen}"
    assert [r.owner for r in seen.readings] == [str(call.intent_id)], "another intent's object"


def look_up_of_nothing_proves_absence(b: Bench) -> None:
    b.landed()
    seen = b.vendor.look_up(b.face.call(b.account), b.since())
    assert isinstance(seen, Absent), f"came back as {seen}"


def look_up_reads_every_page(b: Bench) -> None:
    assert b.face.many is not None
    call, landed = b.landed()
    b.face.many(b.sandbox, b.account.name)
    seen = b.vendor.look_up(call, b.since())
    assert isinstance(seen, Found), f"came back as {seen}"
    assert [r.receipt_id for r in seen.readings] == [landed.reading.receipt_id]


def look_up_that_lags_is_no_proof(b: Bench) -> None:
    """Either it finds the object, or the contract's lag says that nothing is proved yet."""
    b.sandbox.set_account(b.account.name, **{b.face.lag: _LAG_S})
    call, _ = b.landed()
    seen = b.vendor.look_up(call, b.since())
    found = isinstance(seen, Found | Unreadable)
    assert found or b.face.contract.read_lag_s > 0, f"came back as {seen}"


def look_up_that_fails_says_nothing(b: Bench) -> None:
    call, _ = b.landed()
    for fault in ("bad_gateway_before", "half_body", "lost_request", "unauthorized_401"):
        b.sandbox.clear_faults(b.account.name)
        b.sandbox.fault(fault, account=b.account.name, endpoint="GET *")
        seen = b.vendor.look_up(call, b.since())
        assert isinstance(seen, Unreadable), f"{fault}: came back as {seen}"


def one_reading_looks_up_many(b: Bench) -> None:
    """Each with its own object, the absent one absent; a page that fails is nobody's absence."""
    landed = [b.landed() for _ in range(3)]
    calls = [call for call, _ in landed] + [b.face.call(b.account)]
    sought = replace(
        Sought.of(calls[0], b.since(), None),
        owners={str(call.intent_id): call.intent_id for call in calls},
        keys={call.key.hex(): call.intent_id for call in calls},
    )
    listing = b.vendor.read_list(sought)
    assert not isinstance(listing, Unreadable), f"came back as {listing}"
    for call, receipt in landed:
        seen = listing.look_up(call)
        assert isinstance(seen, Found), f"came back as {seen}"
        assert [r.receipt_id for r in seen.readings] == [receipt.reading.receipt_id]
    assert isinstance(listing.look_up(calls[-1]), Absent), "it was never sent"
    b.sandbox.fault("bad_gateway_before", account=b.account.name, endpoint="GET *")
    failed = b.vendor.read_list(sought)
    assert isinstance(failed, Unreadable), f"came back as {failed}"


def retrieve_tells_own_from_foreign(b: Bench) -> None:
    call, landed = b.landed()
    _, other = b.landed()
    own = b.vendor.retrieve(call, landed.reading.receipt_id)
    assert isinstance(own, Found), f"came back as {own}"
    foreign = b.vendor.retrieve(call, other.reading.receipt_id)
    assert not isinstance(foreign, Found) or all(
        r.owner != str(call.intent_id) for r in foreign.readings
    ), "another intent's object is taken for its own"
    missing = b.vendor.retrieve(call, "missing_1")
    assert isinstance(missing, Absent), f"came back as {missing}"


def what_cannot_be_read_is_never_absent(b: Bench) -> None:
    call, _ = b.landed()
    for seen in (b.vendor.look_up(call, b.since()), b.vendor.retrieve(call, "any")):
        assert isinstance(seen, Unreadable), f"came back as {seen}"


# ---- secrets


def no_secret_or_argument_is_shown(b: Bench) -> None:
    """Neither in what comes back, nor in what any library logs meanwhile."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    root, ear = logging.getLogger(), Ear(logging.DEBUG)
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    try:
        for row in rows_of(b.face)[:8]:
            b.sandbox.clear_faults(b.account.name)
            if row.fault != "none":
                b.sandbox.fault(row.fault, account=b.account.name, **row.fields)
            call = b.face.call(b.account, row.params)
            heard += [repr(b.vendor.perform(call)), repr(call)]
            heard.append(repr(b.vendor.look_up(call, b.since())))
    finally:
        root.removeHandler(ear)
        root.setLevel(level)
    password = b.account.credential.partition(":")[2] or b.account.credential
    values = [v for v in b.face.params.values() if isinstance(v, str) and len(v) > 8]
    for marker in (password, *values):
        shown = [line[:80] for line in heard if marker in line]
        assert not shown, f"it is shown: {shown[0]}"


def checks_of(face: Face) -> Mapping[str, Check]:
    """Every check that applies to the face, by name; what a vendor does not promise is not
    checked, and that it is not promised is."""
    contract = face.contract
    found: dict[str, Check] = {}
    for row in rows_of(face):
        detail = "".join(f" {name}={value}" for name, value in row.params.items())
        found[f"outcome: {row.fault}{detail}"] = outcome(row)
    named: list[Check] = [
        key_is_in_its_slot,
        body_is_the_same_at_every_try,
        nothing_is_sent_where_nobody_listens,
        nothing_is_sent_after_the_claims_own_time,
        account_is_named,
        no_secret_or_argument_is_shown,
    ]
    if contract.can_look_up:
        named += [
            look_up_finds_what_landed,
            look_up_of_nothing_proves_absence,
            look_up_that_fails_says_nothing,
            retrieve_tells_own_from_foreign,
        ]
        named += [look_up_reads_every_page] if face.many is not None else []
        named += [look_up_that_lags_is_no_proof] if face.lag else []
        named += [one_reading_looks_up_many] if _shares_list(face) else []
    else:
        named.append(what_cannot_be_read_is_never_absent)
    if contract.has_webhooks:
        named += [
            webhooks.webhook_joins_its_intent,
            webhooks.forged_webhook_is_refused,
            webhooks.secrets_may_be_rotated,
        ]
        named += [webhooks.old_and_future_webhooks_are_refused] if face.stamps else []
    return found | {check.__name__.replace("_", " "): check for check in named}


def _shares_list(face: Face) -> bool:
    vendor = build(face.name, contract=face.contract, connect_s=5.0, read_s=5.0)
    try:
        return vendor.shares_list(face.operation)
    finally:
        vendor.close()


def run(sandbox: Sandbox) -> Iterator[tuple[str, str, str]]:
    """Every check of every face as (vendor, check, problem); an empty problem is a check kept."""
    for face in faces().values():
        for name, check in checks_of(face).items():
            problem = ""
            with Bench.of(face, sandbox) as bench:
                try:
                    check(bench)
                except AssertionError as seen:
                    problem = str(seen) or "it does not hold"
            yield face.name, name, problem

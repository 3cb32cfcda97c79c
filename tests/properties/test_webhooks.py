"""Deliveries of any kind: refused as documented or genuine, stored, and never in anybody's way."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import event as seen
from hypothesis import given, note
from hypothesis import strategies as st

from outbox.outcomes import WebhookFact, WebhookRefused
from outbox.states import Status
from resolvers.joining import join_once
from resolvers.receiving import OK, REFUSED, UNKNOWN, receive
from tests.properties.odd_events import (
    ODD,
    SCHEMES,
    Headers,
    Scheme,
    body_of,
    event,
    headers_of,
    spoilt,
)
from tests.properties.picks import Picks, picked
from tests.properties.profiles import bounded
from tests.properties.scene import SECRET, Scene
from tests.properties.webhook_signing import genuine

NOW = 1_795_953_600
MARKS = {"outbox_id": "4f1a9c00-0000-8000-8000-000000000001", "outbox_key": "ab" * 32}
_numbers = itertools.count()


@dataclass(frozen=True)
class Delivery:
    """What comes over the wire, and whether every byte of it is as it was signed."""

    scheme: Scheme
    headers: Headers
    body: bytes
    at: int
    untouched: bool


def _delivery(picks: Picks) -> Delivery:
    scheme = picks.of(SCHEMES)
    body = body_of(picks, event("1", MARKS, "ab" * 32))
    at = NOW + picks.of([0, 0, -300, -301, 60, 61])
    good = scheme.sign(at, body)
    headers = headers_of(picks, good)
    other = body + picks.of([b"", b"", b"", b" "])
    return Delivery(scheme, headers, other, at, headers == good and other == body)


@given(picked(_delivery, 40))
@bounded(350)
def test_only_what_was_signed_is_read_and_all_else_is_refused_as_documented(
    delivery: Delivery,
) -> None:
    scheme = delivery.scheme
    try:
        facts = scheme.vendor.read_webhook(scheme.account, delivery.headers, delivery.body, NOW)
    except WebhookRefused as refused:
        said = str(refused)
        assert said
        assert said.isprintable()
        assert SECRET not in said
        in_time = -300 <= delivery.at - NOW <= 60 or scheme.sign is SCHEMES[-1].sign
        text = scheme.name != "standard_webhooks" or _is_text(delivery.body)
        assert not (delivery.untouched and in_time and text), said
        seen("refused")
        return
    seen("read")
    values = " ".join(delivery.headers.values())
    assert any(mac in values for mac in scheme.macs(delivery.at, delivery.body))
    assert facts or scheme.name == "several_events"
    check_facts(scheme, facts, delivery.body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_facts(scheme: Scheme, facts: list[WebhookFact], body: bytes) -> None:
    """Every fact fits its columns, is told again by the same bytes, and breaks no reader."""
    again = scheme.vendor.reread_webhook(scheme.account, body)
    assert [fact.event_id for fact in again] == [fact.event_id for fact in facts]
    for fact in facts:
        assert fact.event_id
        texts = (fact.event_id, fact.kind, fact.object_id, fact.request_key, fact.owner)
        for text in (*texts, fact.owner_key, fact.vendor_account or "", *fact.receipt_ids):
            assert text.isprintable()
            assert len(text) <= 255
        assert 0 <= fact.vendor_time < 253_402_300_800
        for operation in scheme.vendor.contract.operations if fact.snapshot is not None else ():
            try:
                reading = scheme.vendor.classify(operation, fact.snapshot or {}, {"confirm": True})
            except (KeyError, TypeError, ValueError):
                continue  # what joining takes for no reading
            if reading is not None:
                assert reading.receipt_id.isprintable()
                assert reading.receipt_id
                reading.document.encode()
                assert reading.amount_minor is None or abs(reading.amount_minor) < 2**63


@given(
    st.sampled_from(SCHEMES),
    st.binary(max_size=40)
    | st.recursive(
        st.sampled_from(ODD),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "data", "object", "events", "event", "metadata", "type"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    ).map(lambda document: json.dumps(document).encode()),
)
@bounded(250)
def test_any_genuine_bytes_give_facts_that_can_be_kept(scheme: Scheme, body: bytes) -> None:
    check_facts(scheme, scheme.vendor.reread_webhook(scheme.account, body), body)


# -- at the door, and in the ledger --------------------------------------------------------------


def deliver(
    scene: Scene, headers: Headers, body: bytes, vendor: str = "stripe", account: str = "default"
) -> int:
    status, said = receive(
        scene.store,
        scene.directory,
        vendor=vendor,
        account=account,
        headers=headers,
        body=body,
    )
    assert SECRET not in said
    said.encode()
    return status


def stored(scene: Scene) -> int:
    return int(scene.sql("SELECT count(*) AS n FROM outbox.webhook_inbox")[0]["n"])


@given(st.binary(min_size=40, max_size=40))
@bounded(60)
def test_what_is_not_verified_is_never_acknowledged_and_leaves_nothing(
    scene: Scene, raw: bytes
) -> None:
    picks = Picks(raw)
    body = body_of(picks, event(f"x{next(_numbers)}", MARKS))
    good = genuine(body, scene.now() - picks.of([0, 0, 400]))
    headers = headers_of(picks, good)
    where = picks.of(
        [("stripe", "default")] * 3 + [(str(n), str(m)) for n in ODD for m in ("default", n)][:90]
    )
    before = stored(scene)
    status = deliver(scene, headers, body, *where)
    if where != ("stripe", "default"):
        assert status == UNKNOWN
    if status == OK:
        assert good["Stripe-Signature"].split("v1=")[1] in "".join(headers.values())
        assert stored(scene) == before + 1
    else:
        assert status in (REFUSED, UNKNOWN)
        assert stored(scene) == before


@pytest.fixture(scope="module")
def doubts(scene: Scene) -> list[UUID]:
    """A few intents in doubt, for events to be about."""
    return [scene.lost().id for _ in range(3)]


@given(st.binary(min_size=30, max_size=30))
@bounded(70)
def test_a_genuine_delivery_of_anything_is_kept_and_holds_nobody_up(
    scene: Scene, doubts: list[UUID], raw: bytes
) -> None:
    picks = Picks(raw)
    number = f"g{next(_numbers)}"
    target = picks.of([*range(len(doubts)), None])
    row = None if target is None else scene.row(doubts[target])
    marks, key = (
        ({}, None)
        if row is None
        else ({"outbox_id": str(row.id), "outbox_key": row.key.hex()}, row.key.hex())
    )
    document = event(number, marks, key)
    body = (
        json.dumps(spoilt(picks, document)).encode()
        if picks.flag()
        else body_of(picks, spoilt(picks, document))
    )
    assert deliver(scene, genuine(body, scene.now()), body) == OK
    if join_once(scene.store, scene.directory) == 0:
        seen("a redelivery")
    waiting = scene.sql(
        "SELECT id, state, detail FROM outbox.webhook_inbox "
        "WHERE state = 'new' OR detail LIKE 'could not be joined%'"
    )
    note(repr(body[:2000]))
    assert waiting == []
    if row is not None and row.settled_at is None and scene.row(row.id).settled_at is not None:
        seen("settled")
        doubts[target] = scene.lost().id
        assert scene.row(row.id).state is Status.SUCCEEDED, "no event alone says refused"
    assert scene.broken() == []

"""Finding an intent's objects at Stripe: top-level lists and events, both read to their end.

Search is left out: it lags by a minute or an hour, and a miss there proves nothing. An operation
on an object that exists is settled by events under its own key, else by the state of its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outbox.contract import Call
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing, Unreadable
from vendors.reads import Unread, check, date_of, wrong_mode
from vendors.stripe_answers import is_ours, parsed, target_of
from vendors.stripe_reading import KINDS, classify, mapping, text
from vendors.wire import Answer

MAX_PAGES = 200
_PAGE_SIZE = 100

Get = Callable[[str, Mapping[str, Any]], Answer]


@dataclass(frozen=True, slots=True)
class Source:
    """Where objects of one type are read. ``parents`` are request fields that the list can be
    narrowed by, so that a busy account is read by customer and not as a whole."""

    path: str
    parents: tuple[str, ...] = ()
    always: tuple[tuple[str, Any], ...] = ()
    expand: tuple[str, ...] = ()


SOURCES: Mapping[str, Source] = {
    "customer": Source("/v1/customers"),
    # Only the charge tells that a payment was refunded later.
    "payment_intent": Source("/v1/payment_intents", ("customer",), expand=("latest_charge",)),
    "setup_intent": Source("/v1/setup_intents", ("customer",)),
    "invoice": Source("/v1/invoices", ("customer",)),
    "invoiceitem": Source("/v1/invoiceitems", ("customer",)),
    # Without it the list leaves out cancelled ones.
    "subscription": Source("/v1/subscriptions", ("customer",), (("status", "all"),)),
    "checkout.session": Source("/v1/checkout/sessions", ("customer",)),
    "refund": Source("/v1/refunds", ("payment_intent", "charge")),
    "transfer": Source("/v1/transfers", ("destination",)),
}

# Events whose cause is the write itself; Stripe takes up to twenty types in one list.
EVENTS: Mapping[str, tuple[str, ...]] = {
    "customers.create": ("customer.created",),
    "payment_intents.create": ("payment_intent.created",),
    "payment_intents.confirm": (
        "payment_intent.amount_capturable_updated",
        "payment_intent.payment_failed",
        "payment_intent.processing",
        "payment_intent.requires_action",
        "payment_intent.succeeded",
    ),
    "payment_intents.capture": ("payment_intent.succeeded",),
    "payment_intents.cancel": ("payment_intent.canceled",),
    "setup_intents.create": ("setup_intent.created",),
    "setup_intents.confirm": (
        "setup_intent.requires_action",
        "setup_intent.setup_failed",
        "setup_intent.succeeded",
    ),
    "setup_intents.cancel": ("setup_intent.canceled",),
    "invoices.create": ("invoice.created",),
    "invoices.finalize": ("invoice.finalized",),
    "invoices.pay": ("invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded"),
    "invoice_items.create": ("invoiceitem.created",),
    "subscriptions.create": ("customer.subscription.created",),
    # Stripe tells nothing of a session that is merely open: its list does.
    "checkout.sessions.create": ("checkout.session.completed", "checkout.session.expired"),
    "refunds.create": ("refund.created",),
    "transfers.create": ("transfer.created",),
}


@dataclass(frozen=True, slots=True)
class Span:
    """When the objects that are sought were created, in Stripe's seconds."""

    since_epoch_s: int
    until_epoch_s: int | None = None

    def as_query(self) -> dict[str, int]:
        """The ``created`` filter of a list."""
        end = {} if self.until_epoch_s is None else {"lte": self.until_epoch_s}
        return {"gte": self.since_epoch_s, **end}


def look_up(get: Get, call: Call, span: Span) -> LookUp:
    """All objects of the intent created then. ``Absent`` only if every page was read."""
    dates: list[int] = []

    def dated(path: str, query: Mapping[str, Any]) -> Answer:
        answer = get(path, query)
        dates.append(date_of(answer.headers))
        return answer

    seen = _look_up(dated, call, span)
    if isinstance(seen, Unreadable):
        return seen
    return replace(seen, vendor_now=dates[0])


def _look_up(get: Get, call: Call, span: Span) -> LookUp:
    try:
        if target_of(call):
            return _target(get, call, span)
        found = {reading.receipt_id: reading for reading in _listed(get, call, span)}
        for reading in _caused(get, call, span):
            if reading.receipt_id not in found:
                # An event shows the object as it was; one that has been deleted shows no more.
                found[reading.receipt_id] = _one(get, call, reading.receipt_id) or reading
    except Unread as unread:
        return unread.told()
    return Found(tuple(found.values())) if found else Absent()


def retrieve(get: Get, call: Call, receipt_id: str) -> LookUp:
    """The one object, if it exists and is this intent's."""
    try:
        reading = _one(get, call, receipt_id)
    except Unread as unread:
        return unread.told()
    if reading is None or not is_ours(call, reading):
        return Absent("retrieve")
    return Found((reading,), "retrieve")


def _target(get: Get, call: Call, span: Span) -> LookUp:
    """By the state of the object that the call was to change.

    A decline counts only if an event names our key as its cause: the object may have been declined
    before. An object that does not show the effect is ``Absent``: nothing landed so far.
    """
    caused = list(_caused(get, call, span))
    reading = _one(get, call, target_of(call))
    if reading is None:
        return Absent()
    if reading.standing is Standing.LANDED or (caused and reading.standing is Standing.DECLINED):
        return Found((reading,))
    landed = [event for event in caused if event.standing is not Standing.OPEN]
    return Found((landed[0],), "events") if landed else Absent()


def _listed(get: Get, call: Call, span: Span) -> Iterator[Reading]:
    source = SOURCES[KINDS[call.operation].object]
    query: dict[str, Any] = {"created": span.as_query(), **dict(source.always)}
    for name in source.parents:
        value = call.params.get(name)
        if isinstance(value, str) and value:
            query[name] = value
            break
    if source.expand:
        query["expand"] = [f"data.{name}" for name in source.expand]
    for document, seen_at in _pages(get, source.path, query):
        if _marked(call, document):
            yield _read(call, document, seen_at)


def _caused(get: Get, call: Call, span: Span) -> Iterator[Reading]:
    """Snapshots out of events that name our key as their cause or whose object bears our mark."""
    query = {"created": span.as_query(), "types": list(EVENTS[call.operation])}
    for event, _ in _pages(get, "/v1/events", query):
        document = mapping(mapping(event.get("data")).get("object"))
        key = text(mapping(event.get("request")).get("idempotency_key"))
        by_key = key == call.key.hex()
        if not by_key and not _marked(call, document):
            continue
        if document.get("object") != KINDS[call.operation].object:
            continue
        if target_of(call) and text(document.get("id")) != target_of(call):
            continue
        created = event.get("created")
        yield _read(call, document, created if isinstance(created, int) else 0)


def _marked(call: Call, document: Mapping[str, Any]) -> bool:
    """Whether the object bears this intent's id or key; never so where operations leave none."""
    if target_of(call):
        return False
    marks = mapping(document.get("metadata"))
    return (
        marks.get("outbox_id") == str(call.intent_id) or marks.get("outbox_key") == call.key.hex()
    )


def _read(call: Call, document: Mapping[str, Any], seen_at: int) -> Reading:
    reading = classify(call.operation, document, call.asked, seen_at=seen_at)
    if reading is None:
        raise Unread("an object of ours that cannot be read")
    if wrong_mode(call.account, reading.livemode):
        raise Unread("an object of the other mode")
    if not target_of(call) and not reading.owner:
        # Its cause is our key: the mark was taken off by somebody since.
        return replace(reading, owner=str(call.intent_id))
    return reading


def _one(get: Get, call: Call, object_id: str) -> Reading | None:
    """The object as it is now; None where Stripe has no such object."""
    source = SOURCES[KINDS[call.operation].object]
    if not object_id.replace("_", "").isalnum() or not object_id.isascii():
        return None
    query = {"expand": list(source.expand)} if source.expand else {}
    answer = get(f"{source.path}/{object_id}", query)
    document = parsed(answer.body or b"")
    if answer.status == 404 and "error" in mapping(document):
        return None
    check(answer, readable=document is not None)
    return _read_retrieved(call, mapping(document), date_of(answer.headers))


def _read_retrieved(call: Call, document: Mapping[str, Any], seen_at: int) -> Reading:
    reading = classify(call.operation, document, call.asked, seen_at=seen_at)
    if reading is None:
        raise Unread("an object that cannot be read")
    if wrong_mode(call.account, reading.livemode):
        raise Unread("an object of the other mode")
    return reading


def _pages(
    get: Get, path: str, query: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Every object of a list with Stripe's time of its page; raises before the end if it must."""
    after = ""
    for _ in range(MAX_PAGES):
        page = {**query, "limit": _PAGE_SIZE, **({"starting_after": after} if after else {})}
        answer = get(path, page)
        document = parsed(answer.body or b"")
        check(answer, readable=document is not None)
        listed, more = mapping(document).get("data"), mapping(document).get("has_more")
        if not isinstance(listed, list) or not isinstance(more, bool):
            raise Unread("a list that cannot be read")
        for item in listed:
            yield mapping(item), date_of(answer.headers)
        if not more:
            return
        last = text(mapping(listed[-1]).get("id")) if listed else ""
        if not last or last == after:
            raise Unread("a list that does not go on")
        after = last
    raise Unread("too many pages")

"""Finding intents' objects at Stripe: top-level lists and events, both read to their end, for one
intent or for many at once.

Search is left out: it lags by a minute or an hour, and a miss there proves nothing. An operation
on an object that exists is settled by events under its own key, else by the state of its target.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from outbox.contract import Call, Sought
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing, Unreadable
from vendors.reads import Unread, check, date_of, told, wrong_mode
from vendors.stripe_answers import is_ours, parsed, target_of
from vendors.stripe_reading import KINDS, classify, mapping, text
from vendors.stripe_sources import EVENTS, SOURCES
from vendors.wire import Answer

MAX_PAGES = 200
_PAGE_SIZE = 100
_NOBODYS = "an object that does not tell whose it is"

Get = Callable[[str, Mapping[str, Any]], Answer]


@dataclass(frozen=True, slots=True)
class Span:
    """When the objects that are sought were created, in Stripe's seconds."""

    since_epoch_s: int
    until_epoch_s: int | None = None

    def as_query(self) -> dict[str, int]:
        """The ``created`` filter of a list."""
        end = {} if self.until_epoch_s is None else {"lte": self.until_epoch_s}
        return {"gte": self.since_epoch_s, **end}


class _Clocked:
    """Reads, and Stripe's time at the first of them; 0 where it does not say."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.began: int | None = None

    def __call__(self, path: str, query: Mapping[str, Any]) -> Answer:
        answer = self._get(path, query)
        if self.began is None:
            self.began = date_of(answer.headers)
        return answer


# An object as it was seen: its id, itself as JSON text, and Stripe's time then. Many intents have
# many, and a parsed object takes several times as much memory.
_Seen = tuple[str, str, int]


class Listing:
    """What a list and the events of its span showed, of each intent that was sought. ``doubt``: why
    finding nothing proves nothing; empty where it proves."""

    def __init__(
        self,
        getter: Callable[[Call], Get],
        listed: Mapping[UUID, list[_Seen]],
        caused: Mapping[UUID, list[_Seen]],
        began: int,
        doubt: str,
    ) -> None:
        self._getter = getter
        self._listed = listed
        self._caused = caused
        self._began = began
        self._doubt = doubt

    def look_up(self, call: Call) -> LookUp:
        """The objects of one of them. One that only an event shows is read as it is now."""
        return told(lambda: self._of(call))

    def _of(self, call: Call) -> LookUp:
        found: dict[str, Reading] = {}
        for _, document, seen_at in self._listed.get(call.intent_id, ()):
            reading = _read(call, json.loads(document), seen_at)
            found[reading.receipt_id] = reading
        for _, document, seen_at in self._caused.get(call.intent_id, ()):
            reading = _read(call, json.loads(document), seen_at)
            if reading.receipt_id not in found:
                # An event shows the object as it was; one that has been deleted shows no more.
                now = _one(self._getter(call), call, reading.receipt_id)
                found[reading.receipt_id] = now or reading
        if not found:
            return Unreadable(self._doubt) if self._doubt else Absent(vendor_now=self._began)
        return Found(tuple(found.values()), vendor_now=self._began)


def look_up(get: Get, call: Call, span: Span) -> LookUp:
    """All objects of the intent created then. ``Absent`` only if every page was read."""
    if not target_of(call):
        sought = Sought.of(call, span.since_epoch_s, span.until_epoch_s)
        return read_list(get, sought, lambda _: get, narrowed=_narrowed(call)).look_up(call)
    clocked = _Clocked(get)
    seen = _target(clocked, call, span)
    return seen if isinstance(seen, Unreadable) else replace(seen, vendor_now=clocked.began or 0)


def shares_list(operation: str) -> bool:
    """Whether the operation makes objects that bear our mark, in a list by time."""
    kind = KINDS.get(operation)
    return kind is not None and not kind.target


def read_list(
    get: Get,
    sought: Sought,
    getter: Callable[[Call], Get],
    *,
    narrowed: Mapping[str, str] | None = None,
) -> Listing:
    """The list and the events of the span, to their end: all of the account's (``narrowed``: the
    list of one parent). ``getter`` reads single objects later. Raises ``Unread`` for the first page
    that fails: what is on the pages after it is nobody's absence."""
    clocked = _Clocked(get)
    span = Span(sought.since_epoch_s, sought.until_epoch_s)
    most = MAX_PAGES * sought.looks
    source = SOURCES[KINDS[sought.operation].object]
    query: dict[str, Any] = {
        "created": span.as_query(),
        **dict(source.always),
        **(narrowed or {}),
    }
    if source.expand:
        query["expand"] = [f"data.{name}" for name in source.expand]
    listed: dict[UUID, list[_Seen]] = defaultdict(list)
    caused: dict[UUID, list[_Seen]] = defaultdict(list)
    doubt = ""
    for document, seen_at in _pages(clocked, source.path, query, most):
        if not _tells_owner(document):
            doubt = _NOBODYS
        for owner in _owners(document, sought):
            listed[owner].append((text(document.get("id")), json.dumps(document), seen_at))
    for key, document, seen_at in _events(clocked, sought.operation, span, most):
        owners = _owners(document, sought)
        if key in sought.keys:
            owners.add(sought.keys[key])
        for owner in owners:
            if not _adds_nothing(sought, document, listed.get(owner, [])):
                caused[owner].append((text(document.get("id")), json.dumps(document), seen_at))
    return Listing(getter, listed, caused, clocked.began or 0, doubt)


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
    caused = [
        _read(call, document, seen_at)
        for key, document, seen_at in _events(get, call.operation, span, MAX_PAGES)
        if key == call.key.hex() and text(document.get("id")) == target_of(call)
    ]
    reading = _one(get, call, target_of(call))
    if reading is None:
        return Absent()
    if reading.standing is Standing.LANDED or (caused and reading.standing is Standing.DECLINED):
        return Found((reading,))
    landed = [event for event in caused if event.standing is not Standing.OPEN]
    return Found((landed[0],), "events") if landed else Absent()


def _narrowed(call: Call) -> dict[str, str]:
    """What the list of one intent is narrowed by: the parent that it was made for."""
    for name in SOURCES[KINDS[call.operation].object].parents:
        value = call.params.get(name)
        if isinstance(value, str) and value:
            return {name: value}
    return {}


def _events(
    get: Get, operation: str, span: Span, most: int
) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Snapshots of the operation's objects out of its events: the key that the event names as its
    cause, the object, and when it was so."""
    query = {"created": span.as_query(), "types": list(EVENTS[operation])}
    for event, _ in _pages(get, "/v1/events", query, most):
        document = mapping(mapping(event.get("data")).get("object"))
        if text(document.get("object")) not in ("", KINDS[operation].object):
            continue  # one that is of no kind cannot be read: where our key caused it, that is said
        created = event.get("created")
        key = text(mapping(event.get("request")).get("idempotency_key"))
        yield key, document, created if isinstance(created, int) else 0


def _owners(document: Mapping[str, Any], sought: Sought) -> set[UUID]:
    """Whose id or key an object bears; two intents' where it bears the id of one and the key of
    another."""
    marks = mapping(document.get("metadata"))
    by_id = sought.owners.get(text(marks.get("outbox_id")))
    by_key = sought.keys.get(text(marks.get("outbox_key")))
    return {owner for owner in (by_id, by_key) if owner is not None}


def _tells_owner(document: Mapping[str, Any]) -> bool:
    """Whether an object of a list is one, and has its marks where they can be seen, if any."""
    return bool(document) and isinstance(document.get("metadata"), Mapping | None)


def _adds_nothing(sought: Sought, document: Mapping[str, Any], listed: list[_Seen]) -> bool:
    """Whether a snapshot can be read and is of an object that the list showed of its intent."""
    reading = classify(sought.operation, document, None)
    if reading is None or wrong_mode(sought.account, reading.livemode):
        return False
    return any(reading.receipt_id == object_id for object_id, _, _ in listed)


def _read(call: Call, document: Mapping[str, Any], seen_at: int) -> Reading:
    reading = _read_as_it_is(call, document, seen_at, "an object of ours that cannot be read")
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
    seen_at = date_of(answer.headers)
    return _read_as_it_is(call, mapping(document), seen_at, "an object that cannot be read")


def _read_as_it_is(call: Call, document: Mapping[str, Any], seen_at: int, unread: str) -> Reading:
    reading = classify(call.operation, document, call.asked, seen_at=seen_at)
    if reading is None:
        raise Unread(unread)
    if wrong_mode(call.account, reading.livemode):
        raise Unread("an object of the other mode")
    return reading


def _pages(
    get: Get, path: str, query: Mapping[str, Any], most: int
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Every object of a list with Stripe's time of its page; raises before the end if it must."""
    after = ""
    for _ in range(most):
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
        # One without an id may be the last: it is shown again, with what comes after it.
        ids = [text(mapping(one).get("id")) for one in listed]
        last = next((each for each in reversed(ids) if each), "")
        if not last or last == after:
            raise Unread("a list that does not go on")
        after = last
    raise Unread("too many pages")

"""Finding an intent's objects at a recipe's vendor: one object, or a list read to its end.

A look-up proves absence only where the recipe calls its source consistent, every page was read,
and each object that came under our key could be told to be ours or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

from outbox.contract import Account, Call, VendorContract
from outbox.contracts.keys import rendered
from outbox.contracts.recipe import LookUpSpec, OperationRecipe, Paging, Recipe
from outbox.contracts.recipe_parts import PLACEHOLDER
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing, Unreadable
from vendors.http_json_links import next_link
from vendors.http_json_reading import (
    NOT_JSON,
    at,
    hides_owner,
    id_at,
    is_ours,
    parsed,
    parts_of_path,
    reading_of,
    text_at,
)
from vendors.reads import Unread, check, date_of, wrong_mode
from vendors.wire import Answer

MAX_PAGES = 200
# The year 2100: later than anything was created.
_NO_END = 4_102_444_800
_NO_MARK = "an object holds something else where our mark must be"

Query = list[tuple[str, str]]
Get = Callable[[str, Query], Answer]


def look_up(
    get: Get,
    contract: VendorContract,
    call: Call,
    since_epoch_s: int,
    until_epoch_s: int | None = None,
) -> LookUp:
    """All objects of the intent that the recipe's look-up shows, created then as far as the recipe
    asks for that."""
    recipe = _recipe_of(contract, call)
    if recipe.look_up is None:
        return Unreadable("the vendor's file has no look-up", never=True)
    dates: list[int] = []

    def dated(path: str, query: Query) -> Answer:
        answer = get(path, query)
        dates.append(date_of(answer.headers))
        return answer

    try:
        span = (since_epoch_s, _NO_END if until_epoch_s is None else until_epoch_s)
        look = _Look(dated, contract, call, recipe, recipe.look_up, span)
        found = {reading.receipt_id: reading for reading in look.readings()}
    except Unread as unread:
        return unread.told()
    if found:
        return Found(tuple(found.values()), vendor_now=dates[0])
    if not recipe.look_up.consistent:
        return Unreadable("finding nothing proves nothing: the source is not consistent")
    return Absent(vendor_now=dates[0])


def retrieve(get: Get, contract: VendorContract, call: Call, receipt_id: str) -> LookUp:
    """The one object, if it exists and is this intent's."""
    recipe = _recipe_of(contract, call)
    if recipe.retrieve is None:
        return _among(look_up(get, contract, call, 0), receipt_id)
    path = _filled(recipe.retrieve.path, {"path": call.path, "id": receipt_id})
    try:
        answer = get(path, [])
        document = parsed(answer.body or b"")
        if answer.status in recipe.retrieve.missing and document is not NOT_JSON:
            return Absent("retrieve")
        check(answer, readable=document is not NOT_JSON)
        spec = recipe.receipt
        seen_at = date_of(answer.headers)
        reading = reading_of(spec, at(document, spec.object), seen_at=seen_at)
        if reading is None:
            raise Unread("an object that cannot be read")
        if reading.receipt_id != receipt_id:
            raise Unread("another object than was asked for")
        if wrong_mode(call.account, reading.livemode):
            raise Unread("an object of the other mode")
    except Unread as unread:
        return unread.told()
    if not is_ours(call, contract.operations[call.operation], spec, reading):
        return Absent("retrieve")
    return Found((reading,), "retrieve")


def whose(get: Get, recipe: Recipe) -> str:
    """The vendor's id of the account behind the credential. Raises ``Unread``."""
    assert recipe.whoami is not None
    answer = get(recipe.whoami.path, [])
    document = parsed(answer.body or b"")
    check(answer, readable=document is not NOT_JSON)
    found = id_at(document, recipe.whoami.id)
    if not found or not found.isprintable():
        raise Unread("unreadable_answer")
    return found


class _Look:
    """One look-up of one call."""

    def __init__(
        self,
        get: Get,
        contract: VendorContract,
        call: Call,
        recipe: OperationRecipe,
        spec: LookUpSpec,
        span: tuple[int, int],
    ) -> None:
        self._get = get
        self._call = call
        self._operation = contract.operations[call.operation]
        self._receipt = recipe.receipt
        self._base_url = base_url(contract.recipe, call.account)
        self._spec = spec
        values = _values(call, spec, span)
        values.update(parts_of_path(self._operation, call.path))
        self._path = _filled(spec.path, values)
        self._query = [
            (name, PLACEHOLDER.sub(lambda found: values.get(found[1], ""), text))
            for name, text in spec.query.items()
        ]
        asked = {name for text in (spec.path, *spec.query.values())
                 for name in PLACEHOLDER.findall(text)}  # fmt: skip
        if asked & {"key", "external_id"} and call.key_slot is None:
            raise Unread("the request was recorded without the key that the look-up asks for")
        self._asks_for_ours = bool(asked & {"key", "external_id", "owner"})

    def readings(self) -> Iterator[Reading]:
        """The intent's own objects; for a change of an object, that object once it shows it."""
        for document, seen_at in self._documents():
            reading = reading_of(self._receipt, document, seen_at=seen_at)
            if reading is None:
                raise Unread("an object that cannot be read")
            if self._receipt.target:
                if self._is_target(reading) and reading.standing is Standing.LANDED:
                    yield reading
                continue
            if not reading.owner and self._asks_for_ours:
                raise Unread("an object came under our key and does not tell whose it is")
            if hides_owner(self._receipt, document, reading):
                raise Unread(_NO_MARK)
            if not is_ours(self._call, self._operation, self._receipt, reading):
                continue
            if wrong_mode(self._call.account, reading.livemode):
                raise Unread("an object of the other mode")
            yield reading

    def _is_target(self, reading: Reading) -> bool:
        if wrong_mode(self._call.account, reading.livemode):
            raise Unread("an object of the other mode")
        return is_ours(self._call, self._operation, self._receipt, reading)

    def _documents(self) -> Iterator[tuple[Any, int]]:
        if self._spec.items is not None:
            yield from self._listed(self._spec.items)
            return
        answer = self._get(self._path, self._query)
        document = parsed(answer.body or b"")
        if answer.status in self._spec.missing and document is not NOT_JSON:
            return
        check(answer, readable=document is not NOT_JSON)
        yield at(document, self._receipt.object), date_of(answer.headers)

    def _listed(self, items: tuple[str, ...]) -> Iterator[tuple[Any, int]]:
        paging = self._spec.paging
        path, extra = self._path, _first_page(paging)
        before: Any = None
        for number in range(MAX_PAGES):
            query = extra if paging and paging.link and number else [*self._query, *extra]
            answer = self._get(path, query)
            document = parsed(answer.body or b"")
            check(answer, readable=document is not NOT_JSON)
            found = at(document, items)
            if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
                raise Unread("a list that cannot be read")
            for one in found:
                yield one, date_of(answer.headers)
            if paging is None:
                return
            following = self._following(paging, number, answer, document, found)
            if following is None:
                return
            # A list that pays no heed to its cursor or number would be read in circles.
            seen = following if paging.first is None else found
            if seen == before:
                raise Unread("a list that does not go on")
            before = seen
            path, extra = following
        raise Unread("too many pages")

    def _following(
        self, paging: Paging, number: int, answer: Answer, document: Any, found: list[Any]
    ) -> tuple[str, Query] | None:
        if paging.link:
            return _linked(answer, self._base_url, self._path)
        if paging.first is not None:
            after = str(paging.first + number + 1) if found else ""
        else:
            after = text_at(document, paging.cursor)
        return (self._path, [(paging.parameter, after)]) if after else None


def base_url(recipe: Recipe, account: Account) -> str:
    """The vendor's address: the account's own, or the recipe's."""
    return account.base_url.rstrip("/") or recipe.base_url


def _recipe_of(contract: VendorContract, call: Call) -> OperationRecipe:
    recipe: OperationRecipe = contract.recipe.operations[call.operation]
    return recipe


def _values(call: Call, spec: LookUpSpec, span: tuple[int, int]) -> dict[str, str]:
    slot = call.key_slot
    key = rendered(call.key, slot.rendering) if slot is not None else ""
    since, until = map(str, span)
    if spec.since == "iso":
        since, until = (
            datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in span
        )
    return {
        "key": key,
        "external_id": key,
        "owner": str(call.intent_id),
        "since": since,
        "until": until,
        "path": call.path,
    }


def _filled(template: str, values: Mapping[str, str]) -> str:
    """A path with its names filled in, each as one segment; ``{path}`` is a path already."""

    def value(found: Any) -> str:
        name = found[1]
        return values[name] if name == "path" else quote(values.get(name, ""), safe="")

    return PLACEHOLDER.sub(value, template)


def _first_page(paging: Paging | None) -> Query:
    if paging is None or paging.first is None:
        return []
    return [(paging.parameter, str(paging.first))]


def _linked(answer: Answer, base: str, path: str) -> tuple[str, Query] | None:
    try:
        link = next_link(answer.headers.get("Link") or "")
        if link is None:
            return None
        ours, parts = urlsplit(base), urlsplit(urljoin(base + path, link))
    except ValueError:
        raise Unread("a Link header that cannot be read") from None
    if (parts.scheme, parts.netloc) != (ours.scheme, ours.netloc) or not parts.path.startswith(
        ours.path + "/"
    ):
        # The credential goes to the vendor's address and to no other.
        raise Unread("a list that goes on elsewhere")
    return parts.path.removeprefix(ours.path), parse_qsl(parts.query, keep_blank_values=True)


def _among(seen: LookUp, receipt_id: str) -> LookUp:
    if not isinstance(seen, Found):
        return replace(seen, source="retrieve") if isinstance(seen, Absent) else seen
    found = tuple(one for one in seen.readings if one.receipt_id == receipt_id)
    return replace(seen, readings=found) if found else Absent("retrieve")

"""Finding intents' objects at a recipe's vendor: one object, or a list read to its end, for one
intent or for many at once.

A look-up proves absence only where the recipe calls its source consistent, every page was read,
and each object on them could be told to be ours or not. One that could not takes nothing away from
what was found under our marks, unless the source was asked for ours alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

from outbox.contract import Account, Call, Sought, VendorContract
from outbox.contracts.keys import rendered
from outbox.contracts.recipe import LookUpSpec, OperationRecipe, Recipe
from outbox.contracts.recipe_parts import PLACEHOLDER
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing, Unreadable
from vendors.http_json_listing import Listing
from vendors.http_json_pages import MAX_PAGES, Get, Query, documents
from vendors.http_json_reading import (
    NOT_JSON,
    at,
    hides_owner,
    id_at,
    is_ours,
    mark_at,
    parsed,
    parts_of_path,
    reading_of,
)
from vendors.reads import Unread, check, date_of, wrong_mode
from vendors.wire import Answer

# The year 2100: later than anything was created.
_NO_END = 4_102_444_800
_UNREAD = "an object that cannot be read"
_NO_MARK = "an object holds something else where our mark must be"
_NO_OWNER = "an object came under our key and does not tell whose it is"
_LOOSE = "finding nothing proves nothing: the source is not consistent"
# What a list may be asked for and be the same for all intents.
_SHARED = frozenset({"since", "until"})


def look_up(
    get: Get,
    contract: VendorContract,
    call: Call,
    since_epoch_s: int,
    until_epoch_s: int | None = None,
) -> LookUp:
    """All objects of the intent that the recipe's look-up shows, created then as far as the recipe
    asks for that."""
    span = since_epoch_s, until_epoch_s
    return _shown(get, contract, call, span, lambda its: its.look_up(call))


def shares_list(contract: VendorContract, operation: str) -> bool:
    """Whether the operation's look-up is a list that is asked for nothing but times, of objects
    that show whose they are."""
    recipe: OperationRecipe | None = contract.recipe.operations.get(operation)
    if recipe is None or recipe.look_up is None or recipe.look_up.items is None:
        return False
    marked = recipe.receipt.owner is not None and not recipe.receipt.target
    return marked and asked_of(recipe.look_up) <= _SHARED


def read_list(get: Get, contract: VendorContract, sought: Sought) -> Listing:
    """That list, to its end, for all that are sought. Raises ``Unread`` for the first page that
    fails."""
    recipe: OperationRecipe = contract.recipe.operations[sought.operation]
    assert recipe.look_up is not None, "a list that is shared"
    look = _Look(get, contract, sought.account, recipe, recipe.look_up)
    look.ask(_times(recipe.look_up, sought.since_epoch_s, sought.until_epoch_s))
    owners = sought.owners
    return look.read(lambda reading: owners.get(reading.owner), owners, MAX_PAGES * sought.looks)


def asked_of(spec: LookUpSpec) -> set[str]:
    """The names that a look-up is asked by."""
    texts = (spec.path, *spec.query.values())
    return {name for text in texts for name in PLACEHOLDER.findall(text)}


def retrieve(get: Get, contract: VendorContract, call: Call, receipt_id: str) -> LookUp:
    """The one object, if it exists and is this intent's."""
    recipe = _recipe_of(contract, call)
    if recipe.retrieve is None:
        return _shown(get, contract, call, (0, None), lambda its: its.retrieve(call, receipt_id))
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
            raise Unread(_UNREAD)
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
    """One reading of an operation's source."""

    def __init__(
        self,
        get: Get,
        contract: VendorContract,
        account: Account,
        recipe: OperationRecipe,
        spec: LookUpSpec,
    ) -> None:
        self._get = get
        self._receipt = recipe.receipt
        self._base_url = base_url(contract.recipe, account)
        self._spec = spec
        self._path = ""
        self._query: Query = []
        self._began: int | None = None
        asked = asked_of(spec)
        self.asks_for_key = bool(asked & {"key", "external_id"})
        self._asks_for_ours = bool(asked & {"key", "external_id", "owner"})

    def ask(self, values: Mapping[str, str]) -> None:
        """Fills in what the source is asked by."""
        self._path = _filled(self._spec.path, values)
        self._query = [
            (name, PLACEHOLDER.sub(lambda found: values.get(found[1], ""), text))
            for name, text in self._spec.query.items()
        ]

    def read(
        self,
        owner_of: Callable[[Reading], UUID | None],
        owners: Mapping[str, UUID],
        most: int,
    ) -> Listing:
        """Everything that it shows, by whose it is; for a change of an object, that object once it
        shows the change. ``owners``: who is sought, by the mark."""
        found: dict[UUID, list[Reading]] = defaultdict(list)
        unread: dict[UUID, str] = {}
        doubt = ""
        for document, seen_at in self._documents(most):
            reading = reading_of(self._receipt, document, seen_at=seen_at)
            why = self._why_unread(document, reading)
            if reading is not None and not why:
                owner = owner_of(reading)
                if owner is not None:
                    found[owner].append(reading)
                continue
            mark = mark_at(self._receipt, document)
            if mark in owners:
                unread[owners[mark]] = why
            elif not mark and self._asks_for_ours:
                # It may be a second one of ours beside what is found.
                raise Unread(why)
            elif not mark:
                doubt = doubt or why
        loose = "" if self._spec.consistent else _LOOSE
        return Listing(found, unread, doubt or loose, self._began or 0)

    def _why_unread(self, document: Any, reading: Reading | None) -> str:
        if reading is None:
            return _UNREAD
        if self._receipt.target or reading.owner:
            return ""
        if self._asks_for_ours:
            return _NO_OWNER
        return _NO_MARK if hides_owner(self._receipt, document, reading) else ""

    def _dated(self, path: str, query: Query) -> Answer:
        answer = self._get(path, query)
        if self._began is None:
            self._began = date_of(answer.headers)
        return answer

    def _documents(self, most: int) -> Iterator[tuple[Any, int]]:
        if self._spec.items is not None:
            yield from documents(
                self._dated, self._base_url, self._path, self._query, self._spec, most
            )
            return
        answer = self._dated(self._path, self._query)
        document = parsed(answer.body or b"")
        if answer.status in self._spec.missing and document is not NOT_JSON:
            return
        check(answer, readable=document is not NOT_JSON)
        yield at(document, self._receipt.object), date_of(answer.headers)


def _shown(
    get: Get,
    contract: VendorContract,
    call: Call,
    span: tuple[int, int | None],
    told: Callable[[Listing], LookUp],
) -> LookUp:
    """What ``told`` makes of a reading for one intent."""
    recipe = _recipe_of(contract, call)
    if recipe.look_up is None:
        return Unreadable("the vendor's file has no look-up", never=True)
    try:
        look = _Look(get, contract, call.account, recipe, recipe.look_up)
        look.ask(_values(call, recipe.look_up, contract, span))
        if look.asks_for_key and call.key_slot is None:
            raise Unread("the request was recorded without the key that the look-up asks for")
        owner_of, owners = _owner_of(contract, call, recipe), {str(call.intent_id): call.intent_id}
        return told(look.read(owner_of, owners, MAX_PAGES))
    except Unread as unread:
        return unread.told()


def _owner_of(
    contract: VendorContract, call: Call, recipe: OperationRecipe
) -> Callable[[Reading], UUID | None]:
    operation, receipt = contract.operations[call.operation], recipe.receipt

    def owner_of(reading: Reading) -> UUID | None:
        if receipt.target and wrong_mode(call.account, reading.livemode):
            raise Unread("an object of the other mode")
        if not is_ours(call, operation, receipt, reading):
            return None
        shows = not receipt.target or reading.standing is Standing.LANDED
        return call.intent_id if shows else None

    return owner_of


def base_url(recipe: Recipe, account: Account) -> str:
    """The vendor's address: the account's own, or the recipe's."""
    return account.base_url.rstrip("/") or recipe.base_url


def _recipe_of(contract: VendorContract, call: Call) -> OperationRecipe:
    recipe: OperationRecipe = contract.recipe.operations[call.operation]
    return recipe


def _values(
    call: Call, spec: LookUpSpec, contract: VendorContract, span: tuple[int, int | None]
) -> dict[str, str]:
    slot = call.key_slot
    key = rendered(call.key, slot.rendering) if slot is not None else ""
    return {
        **_times(spec, *span),
        "key": key,
        "external_id": key,
        "owner": str(call.intent_id),
        "path": call.path,
        **parts_of_path(contract.operations[call.operation], call.path),
    }


def _times(spec: LookUpSpec, since: int, until: int | None) -> dict[str, str]:
    times = {"since": since, "until": _NO_END if until is None else until}
    if spec.since != "iso":
        return {name: str(at) for name, at in times.items()}
    return {
        name: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, at in times.items()
    }


def _filled(template: str, values: Mapping[str, str]) -> str:
    """A path with its names filled in, each as one segment; ``{path}`` is a path already."""

    def value(found: Any) -> str:
        name = found[1]
        return values[name] if name == "path" else quote(values.get(name, ""), safe="")

    return PLACEHOLDER.sub(value, template)

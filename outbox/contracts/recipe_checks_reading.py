"""What in a recipe's reads contradicts itself: receipts, look-ups and retrieves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outbox.contracts.recipe_faults import Fault, name_of
from outbox.contracts.recipe_parts import PLACEHOLDER, parts_of
from outbox.contracts.toml_lines import Place

Document = Mapping[str, Any]
_NAMES = ("key", "external_id", "owner", "since", "until", "path")
_WORDS = ("business", "landed", "declined", "open")


def check_receipts(document: Document) -> Iterator[Fault]:
    """Every operation says where its object is, once a place."""
    told: set[Place] = set()
    for name, place, receipt in parts_of(document, "receipt"):
        if receipt is None:
            yield place, f"operations.{name} has no [receipt]: where does an answer hold its id?"
            continue
        if place not in told:
            told.add(place)
            yield from _check_receipt(place, receipt)
        target = receipt.get("target")
        if target and f"{{{target}}}" not in document["operations"][name]["path"]:
            yield (*place, "target"), f"{name_of(place)}.target is no part of the path of {name}"


def _check_receipt(at: Place, receipt: Mapping[str, Any]) -> Iterator[Fault]:
    where = name_of(at)
    if "id" not in receipt and "id_header" not in receipt:
        yield at, f"{where}.id is missing: without an id nothing proves that a write landed"
    for name in _WORDS:
        if name in receipt and "status" not in receipt:
            yield (*at, name), f"{where}.{name} names words, and {where}.status is missing"
    words = [word for name in _WORDS[1:] for word in receipt.get(name, ())]
    both = sorted({word for word in words if words.count(word) > 1})
    if both:
        yield at, f"{where} names {', '.join(both)} in two of landed, declined and open"
    if "target" in receipt and ("owner" in receipt or "landed" not in receipt):
        yield (*at, "target"), f"{where}.target goes with landed words, and with no owner"
    if "owner_in_answer" in receipt and "owner" not in receipt:
        yield (*at, "owner_in_answer"), f"{where}.owner_in_answer without {where}.owner"
    if ("amount" in receipt) != ("currency" in receipt):
        yield at, f"{where} needs both amount and currency, or neither"


def check_look_ups(document: Document) -> Iterator[Fault]:
    """A look-up must be able to tell our objects from others', and to find by what was sent."""
    key, by_external_id = document["key"], True
    receipts = {name: (place, part) for name, place, part in parts_of(document, "receipt")}
    told: set[Place] = set()
    looks = list(parts_of(document, "look_up"))
    read_back = next((name for name, _, part in looks if part is not None), None)
    for name, place, look_up in looks:
        if look_up is None:
            by_external_id = False
            if read_back is not None:
                yield (
                    place,
                    f"operations.{name} cannot be looked up, and {read_back} can: there is no "
                    f"[look_up] for all, and no operations.{name}.look_up of its own",
                )
            continue
        texts = [look_up["path"], *look_up.get("query", {}).values()]
        by_external_id = by_external_id and any("{external_id}" in text for text in texts)
        operation = document["operations"][name]
        marked = "mark" in operation or key["slot"] != "none"
        receipt_at, receipt = receipts[name]
        yield from _check_owner(name, receipt_at, receipt or {}, marked=marked)
        if place not in told:
            told.add(place)
            parts = PLACEHOLDER.findall(operation["path"])
            yield from _check_look_up(place, look_up, key["slot"], parts)
    if key["slot"] == "external_id" and not by_external_id:
        yield ("key", "slot"), "key.slot external_id, and a look-up does not use {external_id}"
    for name, place, retrieve in parts_of(document, "retrieve"):
        if retrieve is not None and place not in told:
            told.add(place)
            yield from _check_retrieve(place, retrieve, receipts[name][1] or {})


def _check_owner(
    name: str, at: Place, receipt: Mapping[str, Any], *, marked: bool
) -> Iterator[Fault]:
    if "owner" not in receipt and "target" not in receipt:
        yield at, f"{name_of(at)}.owner is missing: a look-up of {name} could not tell what is ours"
    elif "owner" in receipt and not marked:
        yield (
            (*at, "owner"),
            f"{name_of(at)}.owner reads a mark, and {name} sends none: no operations.{name}.mark "
            "and no key",
        )
    if "id" not in receipt:
        yield at, f"{name_of(at)}.id is missing: a look-up reads it"


def _check_look_up(
    at: Place, look_up: Mapping[str, Any], slot: str, parts: list[str]
) -> Iterator[Fault]:
    where = name_of(at)
    yield from _check_names((*at, "path"), look_up["path"], slot, parts)
    for parameter, text in look_up.get("query", {}).items():
        yield from _check_names((*at, "query", parameter), text, slot, parts)
    if look_up["consistent"] and "lag_s" not in look_up:
        yield (
            (*at, "consistent"),
            f"{where}.consistent without {where}.lag_s: how far may the read lag behind a write?",
        )
    if "items" in look_up and "missing" in look_up:
        yield (*at, "missing"), f"{where}.missing is for one object, and items names a list"
    paging = look_up.get("next")
    if paging is None:
        return
    if "items" not in look_up:
        yield (*at, "next"), f"{where}.next pages a list, and {where}.items is missing"
    kinds = [name for name in ("cursor", "first", "link") if paging.get(name) not in (None, False)]
    if len(kinds) != 1:
        yield (*at, "next"), f"{where}.next needs one of cursor, first and link = true"
    if ("parameter" in paging) != (kinds != ["link"]):
        yield (*at, "next"), f"{where}.next.parameter goes with cursor and first, and needs one"


def _check_names(at: Place, text: str, slot: str, parts: list[str]) -> Iterator[Fault]:
    for name in PLACEHOLDER.findall(text):
        if name == "key" and slot not in ("header", "body"):
            yield at, f"{name_of(at)} holds {{key}}, and no key is sent"
        elif name == "external_id" and slot != "external_id":
            yield at, f"{name_of(at)} holds {{external_id}}, and key.slot is not external_id"
        elif name == "path" and not text.startswith("{path}"):
            yield at, f"{name_of(at)} may hold {{path}} at its begin only"
        elif name not in (*_NAMES, *parts):
            known = ", ".join(f"{{{one}}}" for one in (*_NAMES, *parts))
            yield at, f"{name_of(at)} holds an unknown name; there are {known}"


def _check_retrieve(
    at: Place, retrieve: Mapping[str, Any], receipt: Mapping[str, Any]
) -> Iterator[Fault]:
    where = name_of(at)
    names = PLACEHOLDER.findall(retrieve["path"])
    if "id" not in names or set(names) - {"id", "path"}:
        yield (*at, "path"), f"{where}.path must hold {{id}}, and may begin with {{path}}"
    if "id" not in receipt:
        yield at, f"{where} reads an object, and its receipt.id is missing"

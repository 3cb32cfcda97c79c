"""The request as it will go to the vendor: built once, checked, marked and frozen as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import rfc8785

from outbox.contract import KeySlot
from outbox.contracts.keys import rendered
from outbox.errors import Invalid
from outbox.fingerprint import Limits, cleaned, hexed, in_order, joined, member, within, word
from outbox.tool import Scope, WriteTool, shown

_OBJECT_ID = re.compile(r"[A-Za-z0-9_]{1,255}\Z")
# Of a vendor that only a file describes: one plain segment, and neither "." nor "..".
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.~-]{0,254}\Z")
# What has names in it.
_HOLDING = (dict, list)


def frozen(
    tool: WriteTool,
    scope: Scope,
    arguments: Mapping[str, Any],
    written: Mapping[str, bytes],
    money: tuple[int | None, str | None],
    ours: Mapping[str, str],
    limits: Limits,
) -> str:
    """Canonical JSON of account, API version, method, path and parameters.

    ``written`` are the arguments as canonical members, ``money`` is the guarded amount and
    currency, ``ours`` the marks by which the vendor's object is found again. Raises ``Invalid``
    naming the parameter.
    """
    spec, contract = tool.spec, tool.contract
    params = _params(tool, arguments, limits)
    is_form = contract.body == "form"
    if is_form:
        _check_names(params, "request")
    path = _path(spec.path, params, is_form=is_form)
    if spec.check is not None:
        spec.check(params)
    _check_money(tool, params, money)
    marks = spec.marks_for(params) if spec.marks_for is not None else spec.marks
    for mark in marks:
        if spec.mark_is_text:
            _set(params, mark, ours["outbox_id"])
        else:
            _mark(params, mark, tool, ours)
    if contract.key_slot is not None:
        _put_key(params, contract.key_slot, ours["outbox_key"])
    marked = {name: word(name) + b":" + hexed(digits) for name, digits in ours.items()}
    body = _again(params, {**arguments, **ours}, {**written, **marked})
    # In canonical order: account, api_version, key, method, params, path.
    head = _head(scope.account, contract.api_version, spec.method, contract.key_slot)
    whole = joined((head, b'"params":' + body, b'"path":' + word(path)))
    return within(whole, "request", limits)


def _again(value: dict[str, Any], known: Mapping[str, Any], written: Mapping[str, bytes]) -> bytes:
    """The canonical bytes of an object in which much is ``known``, of which ``written`` are the
    members: what is the very same, under the same name, is not written again."""
    return joined(
        [
            written[name]
            if name in known and value[name] is known[name]
            else word(name) + b":" + _again(value[name], known, written)
            if isinstance(value[name], dict)
            else member(name, value[name])
            for name in in_order(value)
        ]
    )


@lru_cache(maxsize=4096)
def _head(account: str, api_version: str, method: str, slot: KeySlot | None) -> bytes:
    """Of a request's canonical text the members before its parameters."""
    said: dict[str, Any] = {"account": account, "api_version": api_version, "method": method}
    if slot is not None:
        said["key"] = slot.as_json()
    return rfc8785.dumps(said)[1:-1]


def _params(tool: WriteTool, arguments: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The vendor's parameters, before anything of ours is in them."""
    spec = tool.spec
    if tool.request is not None:
        # A copy of its own: what it changes must not reach the recorded arguments.
        built = tool.request(_copied(arguments))
        if not isinstance(built, Mapping):
            raise Invalid("tool.request", "must return an object of vendor parameters")
        named: dict[str, Any] = cleaned(dict(built), "request", limits)
        return named
    passes = arguments.keys() if spec.passes_all else spec.passes
    params = {n: v for n, v in arguments.items() if n in passes}
    identity = tool.identity or tuple(arguments)
    extra = {n: arguments[n] for n in identity if n not in passes}
    if extra and spec.marks and not spec.mark_is_text:
        _map_at(params, spec.marks[0]).update(extra)
    return params


def _copied(value: Any) -> Any:
    """A copy of a cleaned value, which is of objects, lists and what nobody can change."""
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _put_key(params: dict[str, Any], slot: KeySlot, key: str) -> None:
    """A key that the body carries is frozen with it; a header is set from the row at each send."""
    if slot.in_body:
        _set(params, tuple(slot.at.split(".")), rendered(bytes.fromhex(key), slot.rendering))


def _check_names(value: Any, path: str) -> None:
    """The vendor's form encoding writes nesting in square brackets: a name that holds them would
    be sent as another parameter, also as one of our marks."""
    if isinstance(value, dict):
        for name, item in value.items():
            if "[" in name or "]" in name:
                raise Invalid(f"{path}.{shown(name)}", "must have no square brackets in its name")
            if isinstance(item, _HOLDING):
                _check_names(item, f"{path}.{shown(name)}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            if isinstance(item, _HOLDING):
                _check_names(item, f"{path}[{position}]")


def _check_money(
    tool: WriteTool, params: Mapping[str, Any], money: tuple[int | None, str | None]
) -> None:
    """What is guarded, recorded and shown to people must be what is sent."""
    if tool.spec.money is None or not tool.money:
        return
    amount, currency = money
    amount_field, currency_field = tool.spec.money
    if params.get(amount_field) != amount:
        raise Invalid(f"request.{amount_field}", f"is not the guarded {tool.money[0]}")
    # Where the vendor knows the currency (of what a refund gives back), it may be left out.
    sent = params.get(currency_field)
    if sent is not None and str(sent).lower() != currency:
        raise Invalid(f"request.{currency_field}", f"is not the guarded {tool.money[1]}")


def _map_at(params: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The object at a path of the body, made where there is none."""
    at = params
    for name in path:
        at[name] = _object(at.get(name, {}), ".".join(path))
        at = at[name]
    return at


def _set(params: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    holder = _map_at(params, path[:-1])
    if path[-1] in holder:
        raise Invalid(f"request.{'.'.join(path)}", "is where the outbox puts its own mark")
    holder[path[-1]] = value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"request.{name}", "must be an object")
    return dict(value)


def _path(template: str, params: dict[str, Any], *, is_form: bool) -> str:
    path = template
    while "{" in path:
        name = path[path.index("{") + 1 : path.index("}")]
        value = params.pop(name, None)
        if not is_form and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        allowed = _OBJECT_ID if is_form else _SEGMENT
        if not isinstance(value, str) or not allowed.match(value):
            raise Invalid(f"request.{name}", "must be the id of a vendor object")
        path = path.replace("{" + name + "}", value)
    return path


def _mark(
    params: dict[str, Any], path: tuple[str, ...], tool: WriteTool, ours: Mapping[str, str]
) -> None:
    """Puts our id and key into one metadata map and checks the vendor's limits on it."""
    contract = tool.contract
    at = _map_at(params, path)
    where = f"request.{'.'.join(path)}"
    for name, value in at.items():
        entry = f"{where}.{shown(name)}"
        if name in contract.reserved_metadata:
            raise Invalid(entry, "is reserved for the outbox's own marks")
        if len(name) > contract.metadata_key_chars:
            raise Invalid(entry, f"must be at most {contract.metadata_key_chars} characters")
        if isinstance(value, dict | list) or value is None:
            raise Invalid(entry, "must be text or a number")
        if len(str(value)) > contract.metadata_value_chars:
            raise Invalid(entry, f"is longer than {contract.metadata_value_chars} characters")
    if len(at) + len(ours) > contract.metadata_max_keys:
        raise Invalid(where, f"has more than {contract.metadata_max_keys - len(ours)} keys")
    at.update(ours)

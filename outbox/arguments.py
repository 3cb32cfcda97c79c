"""What a caller gives with a write: read, stripped of what is the harness's to set, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.errors import Invalid
from outbox.fingerprint import Limits, cleaned, parse_json
from outbox.tool import WriteTool, is_reserved, listed, shown

_MAX_MONEY = 10**15
_TEXT = (str, bytes)


def arguments_of(
    tool: WriteTool, args: Mapping[str, Any] | str | bytes, limits: Limits
) -> tuple[dict[str, Any], list[str]]:
    """The arguments, cleaned, of a caller's object or JSON text, and notes of what was stripped.
    Raises ``Invalid`` naming the field."""
    raw = parse_json(args) if isinstance(args, _TEXT) else args
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise Invalid("args", f"must be an object, not {type(raw).__name__}")
    stripped: list[str] = []
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(name, str) and is_reserved(name):
            stripped.append(name)
        else:
            kept[name] = value
    if stripped and tool.strict:
        where = f"args.{shown(stripped[0])}"
        raise Invalid(where, "is reserved: the key and the scope are not arguments")
    notes = [f"stripped the reserved argument {listed(stripped)}"] if stripped else []
    arguments = cleaned(kept, "args", limits)
    if tool.validator is not None:
        error = next(iter(tool.validator.iter_errors(arguments)), None)
        if error is not None:
            where = "".join(
                f"[{p}]" if isinstance(p, int) else f".{shown(p)}" for p in error.absolute_path
            )
            # The library's message quotes the value, which may be personal data.
            raise Invalid(f"args{where}", f"breaks the schema's rule {error.validator!r}")
    for name in tool.needed:
        if arguments.get(name) is None:
            lacks = "is null" if name in arguments else "is missing"
            raise Invalid(f"args.{name}", f"{lacks}; {tool.name} declares it")
    return arguments, notes


def money_of(tool: WriteTool, arguments: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """The amount, in the currency's smallest unit, and the currency, where the tool names them."""
    if not tool.money:
        return None, None
    amount_name, currency_name = tool.money
    amount = arguments[amount_name]
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise Invalid(
            f"args.{amount_name}",
            "must be an integer in the currency's smallest unit (1999 for 19.99)",
        )
    if not 0 <= amount <= _MAX_MONEY:
        raise Invalid(f"args.{amount_name}", f"must be an amount from 0 to {_MAX_MONEY}")
    currency = arguments[currency_name]
    if not (isinstance(currency, str) and len(currency) == 3 and currency.isascii()):
        raise Invalid(f"args.{currency_name}", "must be a currency code of three letters")
    return amount, currency.lower()

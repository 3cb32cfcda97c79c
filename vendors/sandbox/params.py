"""Form bodies with bracket nesting, and what each endpoint accepts: read from the SDK's types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from vendors.sandbox.errors import Refusal

METADATA_KEYS, METADATA_NAME_CHARS, METADATA_VALUE_CHARS = 50, 40, 500

# Dropped from the newest parameter types, still sent by clients that pin an older version.
_OLDER = {
    "payment_intent_create": ("payment_method_types",),
    "payment_intent_confirm": ("payment_method_types",),
    "setup_intent_create": ("payment_method_types",),
    "checkout/session_create": ("payment_method_types",),
}
# Optional to the SDK, because one of several would do; here there is no other.
_ALSO_REQUIRED = {
    "transfer_create": ("amount",),
    "invoice_create": ("customer",),
    "invoice_item_create": ("customer",),
    "subscription_create": ("customer", "items"),
    "checkout/session_create": ("mode",),
}
_FIELD = re.compile(r"^    (\w+):\s*(NotRequired\[)?\s*\"?(\w+)(\|?)", re.MULTILINE)
_DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)
_CURRENCY = re.compile(r"^[a-zA-Z]{3}$")
_POSITIVE = {
    "payment_intent_create": "amount",
    "payment_intent_update": "amount",
    "payment_intent_capture": "amount_to_capture",
    "refund_create": "amount",
    "transfer_create": "amount",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """``type`` is the first of its types; ``mixed`` where there are others."""

    required: bool
    type: str
    mixed: bool = False


@cache
def accepted(endpoint: str) -> dict[str, Parameter]:
    """Top-level parameters of `endpoint` (`payment_intent_create`), from the text of stripe/params.

    The text, because importing the SDK to learn names would cost more than the rest of the start.
    """
    spec = find_spec("stripe")
    if spec is None or spec.origin is None:
        raise RuntimeError("the sandbox reads parameter names from the stripe package: install it")
    folder, _, name = endpoint.rpartition("/")
    path = Path(spec.origin).parent / "params" / folder / f"_{name}_params.py"
    title = "".join(word.capitalize() for word in name.split("_")) + "Params"
    text = _DOCSTRING.sub("", path.read_text(encoding="utf-8"))
    _, found, rest = text.partition(f"\nclass {title}(")
    if not found:
        raise RuntimeError(f"{path} has no class {title}")
    fields = {
        match[1]: Parameter(match[2] is None, match[3], mixed=bool(match[4]))
        for match in _FIELD.finditer(rest.partition("\nclass ")[0])
    }
    for older in _OLDER.get(endpoint, ()):
        fields.setdefault(older, Parameter(False, "List"))
    for needed in _ALSO_REQUIRED.get(endpoint, ()):
        fields[needed] = Parameter(True, fields[needed].type)
    return fields


def decode(text: bytes) -> dict[str, Any]:
    """`a[b]=1&c[]=2&d[0][e]=3` as nested dicts; a list is a dict with the keys "0", "1", ..."""
    nested: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise Refusal(400, "The body is not a valid form.", code="parameter_invalid") from None
    for name, value in pairs:
        head, bracket, rest = name.partition("[")
        steps = [head, *rest[:-1].split("][")] if bracket and rest.endswith("]") else [name]
        at = nested
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            place = step or str(len(at))
            if following is None:
                at[place] = value
            else:
                deeper = at.setdefault(place, {})
                if not isinstance(deeper, dict):
                    raise Refusal(400, f"Invalid nesting: {name}", param=name)
                at = deeper
    return nested


def listed(value: Any) -> list[Any]:
    """A decoded list parameter (a dict of "0", "1", ...) as a list; [] for nothing."""
    return list(value.values()) if isinstance(value, dict) else []


def validate(endpoint: str, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters, integers and booleans converted; a Refusal (400, not stored) otherwise."""
    fields = accepted(endpoint)
    for name in given:
        if name not in fields:
            raise Refusal(
                400, f"Received unknown parameter: {name}", code="parameter_unknown", param=name
            )
    for name, parameter in fields.items():
        if parameter.required and given.get(name) in (None, {}):
            raise Refusal(
                400, f"Missing required param: {name}.", code="parameter_missing", param=name
            )
        if parameter.required and given[name] == "":
            raise Refusal(
                400, f"{name} may not be empty.", code="parameter_invalid_empty", param=name
            )
    for name, value in given.items():
        wanted = _shape(fields[name])
        if wanted and isinstance(value, dict) != (wanted in ("array", "object")):
            raise Refusal(400, f"Invalid {wanted}: {name}", param=name)
    converted = {name: _convert(name, fields[name].type, value) for name, value in given.items()}
    positive = _POSITIVE.get(endpoint)
    if positive in converted and converted[positive] < 1:
        raise Refusal(
            400,
            "This value must be greater than or equal to 1.",
            code="parameter_invalid_integer",
            param=positive,
        )
    if "currency" in converted and not _CURRENCY.match(str(converted["currency"])):
        raise Refusal(
            400, f"Invalid currency: {converted['currency']}", code="invalid", param="currency"
        )
    if "metadata" in converted:
        converted["metadata"] = _metadata(converted["metadata"])
    return converted


def _convert(name: str, type_name: str, value: Any) -> Any:
    if type_name == "int":
        if not isinstance(value, str) or not re.fullmatch(r"-?\d{1,18}", value):
            raise Refusal(
                400, f"Invalid integer: {value}", code="parameter_invalid_integer", param=name
            )
        return int(value)
    if type_name == "bool" and value in ("true", "false"):
        return value == "true"
    return value


def _shape(parameter: Parameter) -> str | None:
    """What a form must hold for it, in Stripe's words; None where it may be this or that."""
    if parameter.mixed:
        return None
    if "Params" in parameter.type:
        return "object"
    return {"str": "string", "bool": "boolean", "List": "array"}.get(parameter.type)


def _metadata(value: Any) -> dict[str, str]:
    if value == "":
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise Refusal(400, "Metadata is a set of strings.", param="metadata")
    if len(value) > METADATA_KEYS:
        raise Refusal(400, f"Metadata can have at most {METADATA_KEYS} keys.", param="metadata")
    for name, text in value.items():
        if len(name) > METADATA_NAME_CHARS:
            raise Refusal(
                400,
                f"Metadata names can have up to {METADATA_NAME_CHARS} characters.",
                param=f"metadata[{name}]",
            )
        if len(text) > METADATA_VALUE_CHARS:
            raise Refusal(
                400,
                f"Metadata values can have up to {METADATA_VALUE_CHARS} characters.",
                param=f"metadata[{name}]",
            )
    return value

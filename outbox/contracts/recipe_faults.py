"""What in a recipe breaks the schema, each fault with its place and in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from outbox.contracts.recipe_schema import RECIPE
from outbox.contracts.toml_lines import Place

Fault = tuple[Place, str]

_VALIDATOR = Draft202012Validator(RECIPE)
_NAME_CHARS = 60


def name_of(place: Place) -> str:
    """A place as people write it: ``answers[2].status``."""
    said = ""
    for step in place:
        said += f"[{step + 1}]" if isinstance(step, int) else f".{_shown(step)}"
    return said.removeprefix(".")


def schema_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    """Every unknown name, missing setting and value of a wrong kind."""
    for error in _VALIDATOR.iter_errors(document):
        yield from _faults_of(error)


def _faults_of(error: ValidationError) -> Iterator[Fault]:
    place: Place = tuple(error.absolute_path)
    schema: Any = error.schema
    given: Any = error.instance
    if error.validator == "required":
        # One error a missing name, each naming it in its message only.
        for name in schema["required"]:
            if name not in given and error.message.startswith(repr(name)):
                yield place, f"{name_of((*place, name))} is missing"
    elif error.validator == "additionalProperties" and "properties" in schema:
        known = ", ".join(sorted(schema["properties"]))
        for name in sorted(set(given) - set(schema["properties"])):
            where = name_of(place) or "a recipe"
            yield (*place, name), f"{where} has no setting {_shown(name)}; it has {known}"
    elif error.validator in ("additionalProperties", "propertyNames"):
        yield place, f"{name_of(place)} must be {_says(schema, error)} with names that are allowed"
    else:
        yield place, f"{name_of(place)} must be {_says(schema, error)}"


def _says(schema: Mapping[str, Any], error: ValidationError) -> str:
    said = schema.get("says") or error.validator
    return str(said)


def _shown(name: str) -> str:
    short = name[:_NAME_CHARS]
    return short if short.isprintable() else short.encode("unicode_escape").decode()

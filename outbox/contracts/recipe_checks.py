"""What in a recipe contradicts itself, or promises what nothing in it could keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outbox.contracts.keys import RENDERED_CHARS
from outbox.contracts.recipe_checks_reading import check_look_ups, check_receipts
from outbox.contracts.recipe_checks_webhook import check_webhook
from outbox.contracts.recipe_faults import Fault
from outbox.contracts.recipe_parts import PLACEHOLDER, covers, statuses_of

Document = Mapping[str, Any]
_BUILT_HEADERS = frozenset({"content-type", "content-length", "host", "transfer-encoding"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def contradictions(document: Document, faulty: frozenset[str]) -> Iterator[Fault]:
    """Every contradiction between parts that are well formed; ``faulty`` names those that are not,
    of which nothing can be said."""
    for parts, check in _CHECKS:
        if not faulty & set(parts):
            yield from check(document)


def _check_auth(document: Document) -> Iterator[Fault]:
    auth = document["auth"]
    if auth["scheme"] == "header":
        for name in ("name", "template"):
            if name not in auth:
                yield ("auth",), f"auth.{name} is missing: a header has a name and a template"
    else:
        for name in sorted({"name", "template"} & set(auth)):
            yield ("auth", name), f"auth.{name} is for the scheme header only"


def _check_headers(document: Document) -> Iterator[Fault]:
    taken = set(_BUILT_HEADERS)
    auth, key = document["auth"], document["key"]
    if auth["scheme"] != "none":
        taken.add(auth.get("name", "Authorization").lower())
    if key["slot"] == "header" and "name" in key:
        taken.add(key["name"].lower())
    for name, value in document.get("headers", {}).items():
        if name.lower() in taken:
            yield ("headers", name), f"headers.{name} is set by the outbox itself"
        unknown = [n for n in PLACEHOLDER.findall(value) if n != "api_version"]
        if unknown:
            yield ("headers", name), f"headers.{name} may hold {{api_version}} and no other name"
        elif "{api_version}" in value and "api_version" not in document:
            yield (
                ("headers", name),
                f"headers.{name} needs api_version, which is missing",
            )


def _check_key(document: Document) -> Iterator[Fault]:
    key = document["key"]
    slot = key["slot"]
    wanted = {"header": "name", "body": "path", "external_id": "path"}.get(slot, "")
    if wanted and wanted not in key:
        yield ("key",), f"key.{wanted} is missing: a key in the {slot} needs it"
    for name in sorted({"name", "path"} & set(key) - {wanted}):
        yield ("key", name), f"key.{name} does not go with the slot {slot}"
    if slot == "none":
        for name in sorted(set(key) - {"slot", "name", "path"}):
            yield ("key", name), f"key.{name} without a key: its slot is none"
        return
    if "rendering" not in key:
        yield ("key",), "key.rendering is missing"
    elif RENDERED_CHARS[key["rendering"]] > key.get("max_length", 10**9):
        chars = RENDERED_CHARS[key["rendering"]]
        yield (
            ("key", "rendering"),
            f"key.rendering {key['rendering']} has {chars} characters, more than key.max_length",
        )
    yield from _check_window(key)


def _check_window(key: Mapping[str, Any]) -> Iterator[Fault]:
    if "window_s" in key:
        if "on_duplicate" not in key:
            yield ("key",), "key.on_duplicate is missing: what does a second request under it do?"
        if key.get("margin_s", 0) >= key["window_s"]:
            yield ("key", "margin_s"), "key.margin_s must be shorter than key.window_s"
    elif key["slot"] == "header" or key["slot"] == "body":
        for name in ("margin_s", "on_duplicate", "replay_header"):
            if name in key:
                yield ("key", name), f"key.{name} without key.window_s: no window, not honoured"
    elif "margin_s" in key:
        yield ("key", "margin_s"), "key.margin_s without key.window_s"
    if "replay_header" in key and key.get("on_duplicate") != "replay":
        yield ("key", "replay_header"), 'key.replay_header needs on_duplicate = "replay"'
    if "replay_value" in key and "replay_header" not in key:
        yield ("key", "replay_value"), "key.replay_value without key.replay_header"
    if key.get("on_duplicate") == "exists" and key["slot"] != "external_id":
        yield ("key", "on_duplicate"), "key.on_duplicate exists is for the slot external_id"


def _check_operations(document: Document) -> Iterator[Fault]:
    for name, operation in document["operations"].items():
        at = ("operations", name)
        names = PLACEHOLDER.findall(operation["path"])
        if not all(_NAME.match(n) for n in names) or _braces(operation["path"]) != 2 * len(names):
            yield (*at, "path"), f"operations.{name}.path may hold {{names}} of arguments"
        if "mark_as" in operation and "mark" not in operation:
            yield (*at, "mark_as"), f"operations.{name}.mark_as without a mark"
        allowed = operation.get("fields")
        for money in operation.get("money", ()):
            if allowed is not None and money not in allowed:
                yield (
                    (*at, "money"),
                    f"operations.{name}.money names {money}, no field of it",
                )
        if allowed is not None and "mark" in operation:
            top = operation["mark"].partition(".")[0]
            if operation.get("mark_as") == "text" and top in allowed:
                yield (*at, "mark"), f"operations.{name}.mark is a field that arguments fill too"


def _check_key_place(document: Document) -> Iterator[Fault]:
    key = document["key"]
    if key["slot"] in ("body", "external_id") and "path" in key:
        for name, operation in document["operations"].items():
            if key["path"] in operation.get("fields", ()):
                at = ("operations", name, "fields")
                yield at, f"operations.{name}.fields holds {key['path']}, where the key goes"
            if operation["method"] == "DELETE":
                at = ("operations", name, "method")
                yield at, f"operations.{name}.method has no body for the key"
            if operation.get("mark") == key["path"]:
                yield ("operations", name, "mark"), f"operations.{name}.mark is where the key goes"


def _check_answers(document: Document) -> Iterator[Fault]:
    answers = document["answers"]
    if not any(answer["means"] == "landed" for answer in answers):
        yield ("answers",), "answers has no rule that means landed: nothing could ever succeed"
    for number, answer in enumerate(answers):
        at = ("answers", number)
        if answer.get("stored") and answer["means"] != "refused":
            yield (*at, "stored"), f"answers[{number + 1}].stored is for answers that mean refused"
        if answer.get("never_again") and answer["means"] == "landed":
            yield (*at, "never_again"), f"answers[{number + 1}].never_again of what landed"
        safe = answer["means"] in ("refused", "not_processed", "throttled", "pause", "exists")
        if safe and any(low < 300 for low, _ in statuses_of(answer)) and "where" not in answer:
            # A bare 2xx with no word for it must never read as "not done".
            yield (*at, "means"), f"answers[{number + 1}] lets a bare 2xx mean {answer['means']}"
        earlier = [a for a in answers[:number] if "where" not in a]
        if all(any(covers(a, span) for a in earlier) for span in statuses_of(answer)):
            yield at, f"answers[{number + 1}] is never reached: an earlier rule takes its statuses"


def _check_answers_with_key(document: Document) -> Iterator[Fault]:
    key, answers = document["key"], document["answers"]
    exists = [n for n, answer in enumerate(answers) if answer["means"] == "exists"]
    if key.get("on_duplicate") == "exists" and not exists:
        yield ("key", "on_duplicate"), "key.on_duplicate is exists, and no answer means exists"
    if key["slot"] != "external_id":
        for number in exists:
            at = ("answers", number, "means")
            yield at, f"answers[{number + 1}] means exists, and key.slot is not external_id"
    for number, answer in enumerate(answers):
        if answer.get("stored") and "window_s" not in key:
            at = ("answers", number, "stored")
            yield (
                at,
                f"answers[{number + 1}].stored, and no key is honoured",
            )


def _braces(path: str) -> int:
    return path.count("{") + path.count("}")


Check = Callable[[Document], Iterator[Fault]]
_CHECKS: tuple[tuple[tuple[str, ...], Check], ...] = (
    (("auth",), _check_auth),
    (("auth", "key", "headers", "api_version"), _check_headers),
    (("key",), _check_key),
    (("operations",), _check_operations),
    (("operations", "key"), _check_key_place),
    (("answers",), _check_answers),
    (("answers", "key"), _check_answers_with_key),
    (("operations", "receipt"), check_receipts),
    (("operations", "receipt", "look_up", "retrieve", "key"), check_look_ups),
    (("webhook", "receipt", "operations"), check_webhook),
)

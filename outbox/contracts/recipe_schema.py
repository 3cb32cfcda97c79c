"""What a recipe may hold, as JSON Schema. ``says`` is how a value must be, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.contract import SIDE_EFFECT
from outbox.outcomes import Business

Schema = Mapping[str, Any]


def _text(says: str, pattern: str = r"[\s\S]+") -> Schema:
    return {"type": "string", "pattern": rf"^(?:{pattern})\Z", "says": says}


def _one_of(*words: str) -> Schema:
    return {"enum": list(words), "says": f"one of {', '.join(words)}"}


def _list(of: Schema, says: str) -> Schema:
    return {"type": "array", "minItems": 1, "items": of, "says": says}


def _table(required: str = "", **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
        "says": "a table",
    }


def _tables_by(name: str, of: Schema, says: str) -> Schema:
    return {"type": "object", "patternProperties": {name: of}, "additionalProperties": False,
            "minProperties": 1, "says": says}  # fmt: skip


_STEP = r"[A-Za-z0-9_$@-]+"
_PATH = _text("a dotted path, such as data.id", rf"{_STEP}(?:\.{_STEP})*")
_PATH_OR_ALL = _text("a dotted path, or empty for the whole body", rf"(?:{_STEP}(?:\.{_STEP})*)?")
_HEADER = _text("the name of a header", r"[A-Za-z0-9_-]{1,80}")
# As it goes over the wire: a client would write "..", "//" and % in another way than is recorded.
_SEGMENTS = r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~!$&'()*+,;=:@{}-]+)"
_URL_PATH = _text("a path such as /v1/things, without ?, # and %", rf"{_SEGMENTS}+/?")
_READ_PATH = _text(
    "a path such as /v1/things or {path}/more, without ?, # and %",
    rf"(?:{_SEGMENTS}+|\{{path\}}{_SEGMENTS}*)/?",
)
_WORDS = _list(_text("text"), "a list of the vendor's words")
_BOOL: Schema = {"type": "boolean", "says": "true or false"}
_SECONDS: Schema = {"type": "number", "minimum": 0, "says": "a number of seconds, 0 or more"}
_POSITIVE_S: Schema = {
    "type": "number",
    "exclusiveMinimum": 0,
    "says": "a number of seconds above 0",
}
_STATUS: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 100, "maximum": 599},
        {"type": "string", "pattern": r"^[1-5]xx\Z"},
    ],
    "says": 'an HTTP status such as 409, or a class of them such as "5xx"',
}
_STATUSES: Schema = {
    "anyOf": [_STATUS, {"type": "array", "minItems": 1, "items": _STATUS}],
    "says": 'an HTTP status such as 409, a class such as "5xx", or a list of them',
}
_CODES = _list(
    {"type": "integer", "minimum": 100, "maximum": 599, "says": "an HTTP status"},
    "a list of HTTP statuses",
)
_SCALAR: Schema = {
    "type": ["string", "number", "boolean"],
    "says": "text, a number, true or false",
}
_RECEIPT = _table(
    object=_PATH_OR_ALL,
    id=_PATH,
    id_header=_HEADER,
    owner=_PATH,
    owner_in_answer=_BOOL,
    target=_text("the name of a part of the operation's path", r"[A-Za-z_][A-Za-z0-9_]*"),
    status=_PATH,
    business={
        "type": "object",
        "additionalProperties": _one_of(*(word.value for word in Business)),
        "says": "a table of the vendor's words",
    },
    landed=_WORDS,
    declined=_WORDS,
    open=_WORDS,
    failure_code=_PATH,
    amount=_PATH,
    currency=_PATH,
    livemode=_PATH,
    vendor_account=_PATH,
    time=_PATH,
)
_LOOK_UP = _table(
    "path consistent",
    path=_READ_PATH,
    query={
        "type": "object",
        "additionalProperties": _text("text"),
        "says": "a table of parameters and texts",
    },
    items=_PATH_OR_ALL,
    missing=_CODES,
    consistent=_BOOL,
    lag_s=_SECONDS,
    since=_one_of("epoch", "iso"),
    next=_table(
        cursor=_PATH,
        parameter=_text("the name of a query parameter", r"[^\s&=?#]+"),
        first={"type": "integer", "minimum": 0, "says": "the number of the first page"},
        link=_BOOL,
    ),
)
_RETRIEVE = _table("path", path=_READ_PATH, missing=_CODES)
_OPERATION = _table(
    "method path",
    method=_one_of("POST", "PUT", "PATCH", "DELETE"),
    path=_URL_PATH,
    fields=_list(_text("the name of a body field"), "a list of names of body fields"),
    money={
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": _text("the name of a body field"),
        "says": "two body fields: of the amount in the smallest unit, and of the currency",
    },
    side_effect=_text("a word, such as charge, refund, payout or write", SIDE_EFFECT),
    mark=_PATH,
    mark_as=_one_of("map", "text"),
    receipt=_RECEIPT,
    look_up=_LOOK_UP,
    retrieve=_RETRIEVE,
)
_ANSWER = _table(
    "status means",
    status=_STATUSES,
    means=_one_of("landed", "refused", "not_processed", "throttled", "pause", "exists", "in_doubt"),
    where=_tables_by(
        rf"^{_STEP}(?:\.{_STEP})*\Z", _SCALAR, "a table of quoted dotted paths and their values"
    ),
    stored=_BOOL,
    never_again=_BOOL,
)
_KEY = _table(
    "slot",
    slot=_one_of("header", "body", "external_id", "none"),
    name=_HEADER,
    path=_PATH,
    rendering=_one_of("hex64", "b64url43", "uuid"),
    max_length={"type": "integer", "minimum": 1, "says": "a number of characters above 0"},
    window_s=_POSITIVE_S,
    margin_s=_SECONDS,
    on_duplicate=_one_of("replay", "latest", "exists"),
    replay_header=_HEADER,
    replay_value=_text("text"),
)
_WEBHOOK = _table(
    "scheme",
    scheme=_one_of("stripe_like", "hmac_sha256", "standard_webhooks"),
    header=_HEADER,
    prefix=_text("text"),
    encoding=_one_of("hex", "base64"),
    signed=_text("text that holds {body}"),
    timestamp_header=_HEADER,
    key_encoding=_one_of("text", "hex", "base64"),
    tolerance_s={"type": "integer", "minimum": 1, "says": "whole seconds above 0"},
    events=_PATH_OR_ALL,
    event_id=_PATH,
    kind=_PATH,
    object=_PATH_OR_ALL,
    owner=_PATH,
    key=_PATH,
    receipts=_list(_PATH, "a list of dotted paths"),
    time=_PATH,
    livemode=_PATH,
    vendor_account=_PATH,
)
RECIPE: Schema = _table(
    "vendor base_url auth operations key answers",
    vendor=_text("a name of small letters, digits and _", r"[a-z][a-z0-9_]{0,39}"),
    base_url=_text(
        "an http or https address without ?, # and %",
        rf"https?://[A-Za-z0-9.:\[\]-]+{_SEGMENTS}*/?",
    ),
    api_version=_text("text of at most 100 characters", r"[\x20-\x7e]{1,100}"),
    in_flight_bound_s=_POSITIVE_S,
    error_code=_PATH,
    request_id_header=_HEADER,
    headers={
        "type": "object",
        "propertyNames": _HEADER,
        "additionalProperties": _text("text on one line", r"[\x20-\x7e]+"),
        "says": "a table of header names and texts",
    },
    auth=_table(
        "scheme",
        scheme=_one_of("bearer", "basic", "header", "none"),
        name=_HEADER,
        template=_text("text that holds {credential}", r"[\x20-\x7e]*\{credential\}[\x20-\x7e]*"),
    ),
    operations=_tables_by(
        r"^[A-Za-z][A-Za-z0-9_.-]{0,99}\Z", _OPERATION, "tables, one an operation"
    ),
    key=_KEY,
    answers=_list(_ANSWER, "[[answers]] tables"),
    receipt=_RECEIPT,
    look_up=_LOOK_UP,
    retrieve=_RETRIEVE,
    whoami=_table("path id", path=_URL_PATH, id=_PATH),
    webhook=_WEBHOOK,
)

"""One reading of a vendor's object, as its recipe says; pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from outbox.contract import Call, Operation
from outbox.contracts.keys import owner_in
from outbox.contracts.recipe import Path, ReceiptSpec
from outbox.contracts.recipe_parts import PLACEHOLDER
from outbox.outcomes import Business, Reading, Standing, is_amount, is_plain

NOT_JSON = object()
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
_DIGITS = re.compile(r"-?[0-9]{1,19}")
# Above it a float no longer tells one whole number from the next.
_EXACT = 2**53
# A time in seconds does not get this long in our lives: it is in milliseconds.
_MILLISECONDS_FROM = 10**11


def parsed(body: bytes) -> Any:
    """The JSON document of a body; ``NOT_JSON`` for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return NOT_JSON


def at(document: Any, path: Path | None) -> Any:
    """What lies at a path; None where nothing does."""
    if path is None:
        return None
    for step in path:
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def text_at(document: Any, path: Path | None) -> str:
    """A text or number there, as text; empty for anything else."""
    found = at(document, path)
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, str | int | float) else ""


def id_at(document: Any, path: Path | None) -> str:
    """An id there, as text; empty for anything else. A vendor's ids are text or whole numbers: what
    says only yes or no, or is measured, names nothing."""
    found = at(document, path)
    if isinstance(found, bool) or not isinstance(found, str | int):
        return ""
    return str(found)


def word_at(document: Any, path: Path | None) -> str:
    """A vendor's own word; only what looks like one, because messages quote arguments."""
    word = text_at(document, path)
    return word if _WORD.fullmatch(word) else ""


def seconds_at(document: Any, path: Path | None) -> int:
    """A time in whole seconds since the epoch, out of a number or RFC 3339; 0 where none is."""
    found = at(document, path)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return 0
    try:
        number = float(found)
    except ValueError:
        return _seconds_of(str(found))
    except OverflowError:
        return 0
    if not math.isfinite(number) or number < 0:
        return 0
    return int(number / 1000) if number >= _MILLISECONDS_FROM else int(number)


def _seconds_of(written: str) -> int:
    try:
        moment = datetime.fromisoformat(written)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0


def holds(document: Any, path: Path) -> bool:
    """Whether anything lies at a path, even null."""
    holder = at(document, path[:-1])
    return path[-1] in holder if isinstance(holder, Mapping) else at(document, path) is not None


def amount_at(document: Any, path: Path | None) -> int | None:
    """An amount in the smallest unit: a whole number, or text of digits, as it was meant; None
    where none is told. Raises ``ValueError`` for what is there and is none."""
    found = at(document, path)
    if found is None:
        return None
    digits = isinstance(found, str) and _DIGITS.fullmatch(found) is not None
    whole = isinstance(found, float) and found.is_integer() and abs(found) <= _EXACT
    amount = int(found) if digits or whole else found
    if not is_amount(amount):
        raise ValueError("an amount that is no whole number")
    return int(amount)


def currency_at(document: Any, path: Path | None) -> str | None:
    """A currency in lower case; None where none is told. Raises ``ValueError`` as an amount."""
    found = at(document, path)
    if found is None:
        return None
    if not isinstance(found, str) or not is_plain(found):
        raise ValueError("a currency that cannot be read")
    return found.lower() or None


def tells_money(spec: ReceiptSpec, document: Any) -> bool:
    """Whether what an object says of money, if anything, can be read."""
    try:
        amount_at(document, spec.amount)
        currency_at(document, spec.currency)
    except ValueError:
        return False
    return True


def livemode_at(document: Any, path: Path | None) -> bool | None:
    """The mode of an object: a boolean, or one of the words that vendors use for it."""
    found = at(document, path)
    if isinstance(found, bool):
        return found
    word = found.lower() if isinstance(found, str) else ""
    return {"live": True, "production": True, "test": False, "sandbox": False}.get(word)


def reading_of(
    spec: ReceiptSpec, document: Any, *, seen_at: int = 0, header_id: str = ""
) -> Reading | None:
    """The reading of one object; None where it has no id, lacks the word that would decide, or
    tells money that cannot be read: that must not pass as the right amount. ``seen_at`` stands for
    the object's own time where the recipe names none."""
    receipt_id = id_at(document, spec.id) or header_id
    if not receipt_id or not is_plain(receipt_id) or not tells_money(spec, document):
        return None
    word = word_at(document, spec.status)
    if not word and (spec.landed or spec.declined or spec.open):
        return None
    standing = _standing(spec, word)
    business = Business.FAILED if standing is Standing.DECLINED else Business.OTHER
    return Reading(
        receipt_id=receipt_id,
        standing=standing,
        business=spec.business.get(word, business),
        word=word,
        owner=mark_at(spec, document),
        amount_minor=amount_at(document, spec.amount),
        currency=currency_at(document, spec.currency),
        livemode=livemode_at(document, spec.livemode),
        vendor_account=id_at(document, spec.vendor_account) or None,
        vendor_time=seconds_at(document, spec.time) or seen_at,
        failure_code=word_at(document, spec.failure_code) or "declined",
        document=json.dumps(document if isinstance(document, Mapping) else {}),
    )


def _standing(spec: ReceiptSpec, word: str) -> Standing:
    if word in spec.declined:
        return Standing.DECLINED
    if word in spec.open or (spec.landed and word not in spec.landed):
        return Standing.OPEN
    return Standing.LANDED


def parts_of_path(operation: Operation, path: str) -> dict[str, str]:
    """The values that a recorded path holds for the names in the operation's; empty where the file
    has another path by now."""
    names = PLACEHOLDER.findall(operation.path)
    pattern = "([^/]+)".join(re.escape(piece) for piece in PLACEHOLDER.split(operation.path)[::2])
    match = re.fullmatch(pattern, path)
    return dict(zip(names, match.groups(), strict=True)) if match else {}


def is_ours(call: Call, operation: Operation, spec: ReceiptSpec, reading: Reading) -> bool:
    """Whether a reading is of this intent: by our mark, or being the object it was to change.
    Where a recipe names neither, nothing speaks against it."""
    if spec.target:
        return reading.receipt_id == parts_of_path(operation, call.path).get(spec.target)
    return spec.owner is None or reading.owner == str(call.intent_id)


def mark_at(spec: ReceiptSpec, document: Any) -> str:
    """The id of the intent whose mark an object bears; empty where it bears none."""
    return owner_in(text_at(document, spec.owner))


def hides_owner(spec: ReceiptSpec, document: Any, reading: Reading) -> bool:
    """Whether an object holds something where our mark must be, and it is no mark: it may be ours
    in a spelling that nobody knows."""
    return spec.owner is not None and not reading.owner and holds(document, spec.owner)


def owned(call: Call, spec: ReceiptSpec, reading: Reading) -> Reading:
    """The reading of an answer to this very request, which may leave our mark out."""
    if spec.owner is not None and not spec.owner_in_answer and not reading.owner:
        return replace(reading, owner=str(call.intent_id))
    return reading

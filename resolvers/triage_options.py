"""What each verdict would do to one question right now, found out by trying each: a dry run of the
very function that the verb calls. There is no second copy of the rules."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from outbox.contract import Account, Vendor, VendorContract
from outbox.errors import Denied, Invalid, NotFound, Unreachable
from outbox.outcomes import Absent, Found, LookUp, Reading, Standing, Unreadable
from outbox.store.connection import Store
from outbox.store.switches import holder_of
from resolvers import holding, triage
from resolvers.directory import Directory
from resolvers.triage_case import Case, Ruling
from resolvers.triage_receipt import contract_for, shown_now

Now = Literal["allowed", "refused", "nothing_to_do", "needs_receipt", "not_known"]

_REASON = "--reason '...'"
_MUTE_S = 2 * 3600.0
# More objects than this are a mess of their own; each costs one question to the vendor.
_MOST_RECEIPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One verdict, tried. ``now``: allowed, refused (``code`` says by which rule), nothing_to_do
    (it was done before), needs_receipt, or not_known (the vendor was not asked or did not answer);
    ``becomes`` the status it would leave; ``command`` what to type."""

    verb: str
    now: Now
    said: str
    command: str
    becomes: str | None = None
    code: str | None = None
    receipt_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; always the same names."""
        return {
            "verb": self.verb,
            "now": self.now,
            "becomes": self.becomes,
            "said": self.said,
            "code": self.code,
            "receipt_id": self.receipt_id,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the vendor showed of the intent when it was asked for this. ``answer``: found, absent,
    unreadable or not_asked; ``said`` why nothing was read."""

    answer: Literal["found", "absent", "unreadable", "not_asked"]
    said: str = ""
    readings: tuple[Reading, ...] = ()


class NotAsked(Directory):
    """A directory that reaches nobody: what the ledger alone decides is decided as ever, and what
    the vendor would have to be asked for is not known."""

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory.settings, {})

    def reach(self, vendor: str, account: str) -> tuple[Vendor, Account, VendorContract] | None:
        """Raises ``Unreachable``."""
        raise Unreachable(f"{vendor}/{account} was not asked")


def ask(directory: Directory, case: Case) -> Shown:
    """Asks the vendor what it shows of the intent; never raises for what it answers."""
    if case.intent is None:
        return Shown(answer="not_asked", said="it is not about one write")
    try:
        if not contract_for(directory, case.asked).can_look_up:
            return Shown(answer="not_asked", said=f"{case.asked.vendor} cannot be asked")
        seen: LookUp = shown_now(directory, case)
    except (Denied, Unreachable) as error:
        return Shown(answer="not_asked", said=str(error))
    match seen:
        case Found(readings):
            return Shown(answer="found", readings=readings)
        case Absent():
            return Shown(answer="absent")
        case Unreadable(reason):
            return Shown(answer="unreadable", said=reason)


def options(
    store: Store, directory: Directory, case: Case, shown: Shown, *, by: str
) -> tuple[Option, ...]:
    """Every verb there is for the question, tried. Nothing is changed, and nothing is locked."""
    tried = _of_intent if case.intent is not None else _of_holder
    return tuple(tried(store, directory, case, shown, by))


def _of_intent(
    store: Store, directory: Directory, case: Case, shown: Shown, by: str
) -> Iterator[Option]:
    about = str(case.escalation["id"] if case.escalation else case.asked.id)
    said: dict[str, Any] = {"by": by, "reason": "what would it do", "dry_run": True}
    for receipt_id in _receipts(case, shown) or [""]:
        proof = f" --receipt {shlex.quote(receipt_id)}" if receipt_id else ""
        yield _tried(
            "landed",
            f"outbox escalation landed {about}{proof} {_REASON}",
            partial(triage.landed, store, directory, case, receipt_id, **said),
            receipt_id,
        )
    yield _tried(
        "not-landed",
        f"outbox escalation not-landed {about} {_REASON}",
        lambda: triage.not_landed(store, directory, case, **said),
    )
    yield _tried(
        "resend",
        f"outbox escalation resend {about} {_REASON}",
        lambda: triage.resend(store, directory, case, **said),
    )
    yield _tried(
        "cancel",
        f"outbox intent cancel {case.asked.id} {_REASON}",
        lambda: triage.cancel(store, case, **said),
    )
    yield from _holds(store, directory, case, about, said)


def _of_holder(
    store: Store, directory: Directory, case: Case, _: Shown, by: str
) -> Iterator[Option]:
    assert case.escalation is not None
    about = str(case.escalation["id"])
    said: dict[str, Any] = {"by": by, "reason": "what would it do", "dry_run": True}
    detail = case.escalation["detail"]
    place = (str(detail.get("vendor", "")), str(detail.get("account", "")))
    if case.escalation["holder"] == holder_of(*place):
        yield _tried(
            "resume",
            f"outbox vendor resume {shlex.quote('/'.join(place))} {_REASON}",
            lambda: holding.resume(store, directory, *place, **said),
        )
    yield _tried(
        "close",
        f"outbox escalation close {about} {_REASON}",
        lambda: holding.close(store, case, **said),
    )
    yield from _holds(store, directory, case, about, said)


def _holds(
    store: Store, directory: Directory, case: Case, about: str, said: dict[str, Any]
) -> Iterator[Option]:
    yield _tried(
        "ack",
        f"outbox escalation ack {about} --for 1h {_REASON}",
        lambda: holding.ack(store, directory, case, **said),
    )
    yield _tried(
        "mute",
        f"outbox escalation mute {about} --for 2h {_REASON}",
        lambda: holding.mute(store, case, for_s=_MUTE_S, **said),
    )


def _receipts(case: Case, shown: Shown) -> Sequence[str]:
    """The objects that could prove it, likeliest first: those that landed by the vendor's word
    now, the row's own, those that the question names."""
    readings = sorted(shown.readings, key=lambda r: r.standing is not Standing.LANDED)
    known = [case.asked.receipt_id, *(case.escalation or {}).get("detail", {}).get("objects", [])]
    found = dict.fromkeys([*(r.receipt_id for r in readings), *(str(k) for k in known if k)])
    return list(found)[:_MOST_RECEIPTS]


def _tried(
    verb: str, command: str, attempt: Callable[[], Ruling], receipt_id: str | None = None
) -> Option:
    def told(now: Now, text: str, **more: str | None) -> Option:
        return Option(
            verb=verb,
            now=now,
            said=text,
            command=command,
            receipt_id=receipt_id or None,
            **more,
        )

    try:
        ruling = attempt()
    except Denied as error:
        return told("refused", error.problem, code=error.code)
    except NotFound as error:
        return told("refused", error.problem, code="not_found")
    except Invalid as error:
        if error.field != "receipt":
            return told("refused", f"{error.field}: {error.problem}", code="invalid")
        command = command.replace(_REASON, f"--receipt RECEIPT {_REASON}")
        return told("needs_receipt", f"the receipt {error.problem}")
    except Unreachable as error:
        return told("not_known", str(error))
    if not ruling.dry_run:
        return told("nothing_to_do", ruling.said.removeprefix("nothing to do: "))
    return told("allowed", ruling.said, becomes=ruling.becomes)

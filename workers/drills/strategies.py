"""``outbox drill strategies``: the same charges by five strategies, under faults that lose answers.

What counts as a charge is what the vendor's own ledger has; what was said is what the agent heard
last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outbox import Answer, IntentMismatch
from vendors.sandbox.client import Sandbox
from workers.cli_output import Column
from workers.demo import CHARGE
from workers.demo_faults import parameters
from workers.demo_others import PINNED_KEY, Client
from workers.drills.parts import HELD_S, Parts, ask, open_parts, posts
from workers.drills.report import Progress, Row, Value
from workers.testing import OutboxBox

INTENTS = 10
OUTBOX = "outbox"
ANOTHER_AMOUNT = "the same key with another amount"
# As the table calls them: the strategy of `workers.demo_others`, and whether it sends a key.
OTHERS = {
    "naive retry": ("naive", False),
    "verify-then-retry": ("verify_then_retry", False),
    "new key per attempt": ("new_key_per_attempt", True),
    "pinned key": (PINNED_KEY, True),
}
FAULTS = {
    "none": None,
    "lost-ack": "lost_ack",
    "late-commit": "late_commit",
    "redelivery": "redelivery",
}
# Where every charge of another strategy is made twice.
DOUBLED = frozenset(
    {
        ("naive retry", "lost-ack"),
        ("naive retry", "late-commit"),
        ("naive retry", "redelivery"),
        ("verify-then-retry", "late-commit"),
        ("verify-then-retry", "redelivery"),
        ("new key per attempt", "lost-ack"),
        ("new key per attempt", "late-commit"),
    }
)
COLUMNS = (
    Column("strategy"),
    Column("fault", folds=True),
    Column("intents", rank=3, right=True),
    Column("charges", right=True),
    Column("completed", head="done", right=True),
    Column("failed", rank=1, right=True),
    Column("unknown", rank=1, right=True),
    Column("refused", right=True),
    Column("refused_by", rank=2),
    Column("duplicates", head="dup", right=True),
    Column("duplicates_reported_as_completed", head="dup done", right=True),
)
LEGEND = (
    "charges: in the vendor's own ledger. done (completed), failed, unknown, refused:",
    "what the agent was told. dup: charges beyond one per intent; dup done: of those,",
    "told as completed. late-commit: it lands once its client has given up. redelivery:",
    "the network delivers the request twice. naive and verify send no key, as an HTTP",
    "tool does; a new key per attempt is what Stripe's SDK sends when it is left alone.",
)
# No fault here keeps a client waiting, so a busy machine may take its time.
_TIMEOUT_S = 30.0
_THREADS = 16
_SAID = {"settled": "completed", "failed": "failed", "refused": "refused"}
_WORDS = ("completed", "failed", "unknown", "refused")
_OTHER_AMOUNT = 5900


@dataclass(frozen=True, slots=True)
class Called:
    """One intent when all is over: its charges at the vendor, and what the agent was told last.
    ``wrong`` says what else is not as it must be."""

    charges: int
    said: str
    refused_by: str = ""
    wrong: str = ""


def run(progress: Progress) -> Iterable[Row]:
    """Every strategy under every fault, the outbox last."""
    with open_parts(progress) as parts:
        progress.say(f"{len(OTHERS)} other strategies under {len(FAULTS)} faults")
        rows = [_row(s, f, called) for s, f, called in _others(parts.sandbox)]
        for fault in FAULTS:
            progress.say(f"the outbox: {fault}")
            rows.append(_row(OUTBOX, fault, _ours(parts, fault)))
        progress.say(ANOTHER_AMOUNT)
        rows.append(_row("pinned key", ANOTHER_AMOUNT, _pinned_twice(parts.sandbox)))
        rows.append(_row(OUTBOX, ANOTHER_AMOUNT, _ours_twice(parts)))
    return rows


def charges_of(sandbox: Sandbox, account: str, intent: Answer | None = None) -> int:
    """Charges that stand in the vendor's ledger: of one intent of ours, or of an account."""
    return sum(
        1
        for e in sandbox.effects(account)
        if e["outcome"] == "applied" and (intent is None or e["outbox_id"] == str(intent.intent_id))
    )


# -- the others ----------------------------------------------------------------------------------


def _others(sandbox: Sandbox) -> list[tuple[str, str, list[Called]]]:
    cells = [(strategy, fault) for strategy in OTHERS for fault in FAULTS]
    places = [(s, f, _account(sandbox, s, f, n)) for s, f in cells for n in range(INTENTS)]
    for _, fault, account in places:
        _arm(sandbox, account, fault, times=1)
    with ThreadPoolExecutor(_THREADS) as pool:
        said = list(pool.map(lambda place: _charge(sandbox, place[0], place[2]), places))
    # Only now: no client is there any more that could look.
    sandbox.release(kind="late_commit")
    called: dict[tuple[str, str], list[Called]] = {cell: [] for cell in cells}
    for (strategy, fault, account), word in zip(places, said, strict=True):
        keyless = {p["key"] for p in posts(sandbox, account)} == {None}
        wrong = "" if keyless is not OTHERS[strategy][1] else "keys on the wire are not as said"
        called[strategy, fault].append(Called(charges_of(sandbox, account), word, wrong=wrong))
    return [(strategy, fault, calls) for (strategy, fault), calls in called.items()]


def _account(sandbox: Sandbox, strategy: str, fault: str, number: int) -> str:
    """An account of its own for each charge, so that the fault strikes its first request."""
    name = f"{OTHERS[strategy][0]}-{fault}-{number}".replace(" ", "-")
    sandbox.set_account(name, any_customer=True)
    return name


def _arm(sandbox: Sandbox, account: str, fault: str, **fields: Any) -> None:
    kind = FAULTS[fault]
    if kind is not None:
        after = {"after_s": HELD_S} if kind == "late_commit" else {}
        sandbox.fault(kind, account=account, **after, **fields)


def _client(sandbox: Sandbox, strategy: str, account: str) -> Client:
    return Client(
        sandbox.api_key(account),
        sandbox.url,
        _TIMEOUT_S,
        # What it waits for has happened, or does not happen while it is there.
        lambda _: None,
        keyless=not OTHERS[strategy][1],
    )


def _charge(sandbox: Sandbox, strategy: str, account: str) -> str:
    client = _client(sandbox, strategy, account)
    return _SAID[client.run(OTHERS[strategy][0], parameters("none"), "in_1")]


def _pinned_twice(sandbox: Sandbox) -> list[Called]:
    called = []
    for number in range(INTENTS):
        account = _account(sandbox, "pinned key", "another-amount", number)
        client = _client(sandbox, "pinned key", account)
        first = client.run(PINNED_KEY, parameters("none"), "in_1")
        again = client.run(PINNED_KEY, {**parameters("none"), "amount": _OTHER_AMOUNT}, "in_1")
        wrong = "" if first == "settled" else f"the first was told {first}"
        called.append(Called(charges_of(sandbox, account), _SAID[again], client.refused_by, wrong))
    return called


# -- ours ----------------------------------------------------------------------------------------


def _args(number: int) -> dict[str, Any]:
    return {"invoice_id": f"in_{number}", **parameters("none")}


def _ours(parts: Parts, fault: str) -> list[Called]:
    with parts.box() as box:
        _arm(box.sandbox, box.account, fault, attempts=[1])
        answers = [ask(box, CHARGE, _args(n)) for n in range(INTENTS)]
        _settle(box)
        return [_called(box, answer) for answer in answers]


def _settle(box: OutboxBox) -> None:
    """Until all is settled, and then what is late: it lands, and its events come."""
    box.drain()
    box.settle()
    box.sandbox.release(box.account, "late_commit")
    box.deliver_webhooks()
    box.resolve()


def _ours_twice(parts: Parts) -> list[Called]:
    with parts.box() as box:
        answers = [ask(box, CHARGE, _args(n)) for n in range(INTENTS)]
        refusals = [_refusal(box, {**_args(n), "amount": _OTHER_AMOUNT}) for n in range(INTENTS)]
        _settle(box)
        return [
            Called(c.charges, "refused" if refusal else c.said, refusal, c.wrong)
            for c, refusal in zip((_called(box, a) for a in answers), refusals, strict=True)
        ]


def _refusal(box: OutboxBox, args: dict[str, Any]) -> str:
    try:
        ask(box, CHARGE, args)
    except IntentMismatch as refused:
        return type(refused).__name__
    return ""


def _called(box: OutboxBox, answer: Answer) -> Called:
    said = _SAID.get(box.outbox.wait(answer, timeout_s=0).told, "unknown")
    wrong = ", ".join(v["check"] for v in box.sandbox.oracle(box.account)["violations"])
    return Called(charges_of(box.sandbox, box.account, answer), said, wrong=wrong)


# -- rows ----------------------------------------------------------------------------------------


def _row(strategy: str, fault: str, called: Sequence[Called]) -> Row:
    charges = sum(c.charges for c in called)
    twice = [c for c in called if c.charges > 1]
    said = {word: sum(1 for c in called if c.said == word) for word in _WORDS}
    doubled = (strategy, fault) in DOUBLED
    expected = "refused" if fault == ANOTHER_AMOUNT else "completed"
    ok = (
        len(called) == INTENTS
        and all(c.charges == (2 if doubled else 1) and c.said == expected for c in called)
        and not any(c.wrong for c in called)
    )
    values: dict[str, Value] = {
        "strategy": strategy,
        "fault": fault,
        "intents": len(called),
        "charges": charges,
        **said,
        "refused_by": ", ".join(sorted({c.refused_by for c in called if c.refused_by})),
        "duplicates": sum(c.charges - 1 for c in twice),
        "duplicates_reported_as_completed": sum(
            c.charges - 1 for c in twice if c.said == "completed"
        ),
    }
    return Row(values, ok)

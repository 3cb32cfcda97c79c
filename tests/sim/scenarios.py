"""What is asked of the outbox in a timeline: which vendor, which tool, how many intents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from outbox import Scope, WriteTool

_CARD = {
    "amount": 4900,
    "currency": "usd",
    "customer": "cus_sim",
    "payment_method": "pm_card_visa",
    "confirm": True,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """``asks`` are (scope, arguments) in order, one intent each. ``late_s`` are delays after
    which a request that was lost may still arrive: within what the vendor's contract says, where
    it honours no key. ``again`` is what the next turn's agent would ask; ``cards`` what the
    customer may have in hand; ``hears`` the kinds of events that the vendor was asked to deliver.
    ``rounds`` is how long faults may go on, ``at_once`` how many are asked for before each of
    them; ``steps_clock``: the database's clock may be set meanwhile."""

    name: str
    tool: WriteTool
    asks: tuple[tuple[Scope, Mapping[str, Any]], ...]
    late_s: tuple[float, ...]
    faults: tuple[str, ...]
    vendor: Mapping[str, Any] = field(default_factory=dict)
    again: tuple[Scope, Mapping[str, Any]] | None = None
    hears: tuple[str, ...] = ("*",)
    cards: tuple[str, ...] = ("pm_card_visa", "pm_card_chargeDeclined")
    rounds: int = 5
    at_once: int = 2
    steps_clock: bool = True

    @property
    def honours_keys(self) -> bool:
        """Whether the vendor makes one effect of two requests with one key."""
        return self.tool.vendor == "stripe"

    @property
    def can_look_up(self) -> bool:
        """Whether the vendor shows what it did."""
        return self.tool.vendor != "messages"


def _charge(name: str, **more: Any) -> WriteTool:
    return WriteTool(
        name,
        vendor="stripe",
        operation="payment_intents.create",
        side_effect="charge",
        identity=("invoice_id",),
        guard=("amount", "currency", "customer"),
        money=("amount", "currency"),
        **more,
    )


def _scope(epoch: str = "") -> Scope:
    return Scope(tenant="acme", run_id="run-1", epoch=epoch)


_ANY_FACE = (
    "stored_500_no_object",
    "stored_500_object_later",
    "stored_500_rolled_back",
    "in_use_409",
    "rate_limited_429",
    "unavailable_503",
    "unauthorized_401",
    "forbidden_403",
)
_STRIPE = (
    *_ANY_FACE,
    "lock_timeout_429",
    "do_not_retry",
    "pruned_early",
    "version_changed_replay",
)
_KEYED_LATE_S = (40.0, 600.0, 7200.0)
# A vendor whose requests can arrive later than its contract's bound gets no automatic re-send.
_BOUND_LATE_S = (40.0, 170.0)
# As an endpoint is set up that wants to know what became of a charge; the long histories hear all.
_HEARS = tuple(
    f"payment_intent.{word}" for word in ("succeeded", "payment_failed", "canceled", "processing")
)
_EVENTS_LAG = {"events_lag_s": 60.0}

NAMES = ("keys", "lane", "epochs", "no_keys", "absent", "nothing")
LONG = "long"


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Every scenario; the vendors' recipes must have been read."""
    epochs = _charge("charge_turn", once_per="epoch")
    ticket: Mapping[str, Any] = {"ticket_id": "t1", "title": "The printer is on fire"}
    look: dict[str, Any] = {
        "identity": ("ticket_id",),
        "request": lambda args: {"title": args["title"]},
    }
    return (
        Scenario(
            "keys", _charge("charge"), ((_scope(), {**_CARD, "invoice_id": "in_1"}),),
            _KEYED_LATE_S, _STRIPE, _EVENTS_LAG, hears=_HEARS,
        ),
        Scenario(
            "lane", _charge("charge_in_lane", lane=("customer",)),
            tuple((_scope(), {**_CARD, "invoice_id": f"in_{n}"}) for n in (1, 2)),
            _KEYED_LATE_S, _STRIPE, _EVENTS_LAG, hears=_HEARS,
        ),
        Scenario(
            "epochs", epochs, ((_scope("turn-1"), {**_CARD, "invoice_id": "in_1"}),),
            _KEYED_LATE_S, _STRIPE, _EVENTS_LAG, hears=_HEARS,
            again=(_scope("turn-2"), {**_CARD, "invoice_id": "in_1"}), rounds=3,
        ),
        Scenario(
            "no_keys",
            WriteTool("open_ticket", vendor="tickets", operation="tickets.create", **look),
            ((_scope(), ticket),), _BOUND_LATE_S, _ANY_FACE, {"list_lag_s": 60.0},
        ),
        Scenario(
            "absent",
            WriteTool(
                "open_ticket_again", vendor="tickets", operation="tickets.create",
                resend_when_absent=True, **look,
            ),
            ((_scope(), ticket),), _BOUND_LATE_S, _ANY_FACE, {"list_lag_s": 60.0},
        ),
        Scenario(
            LONG,
            _charge("charge_of_many", lane=("customer",)),
            tuple(
                (_scope(), {**_CARD, "invoice_id": f"in_{n}", "customer": f"cus_{n % 5}"})
                for n in range(30)
            ),
            _KEYED_LATE_S, _STRIPE, _EVENTS_LAG,
            rounds=24, steps_clock=False,
        ),
        Scenario(
            "nothing",
            WriteTool(
                "post_message", vendor="messages", operation="messages.post",
                identity=("text",), request=lambda args: {"channel": "c1", "text": args["text"]},
            ),
            ((_scope(), {"text": "hello"}),), _KEYED_LATE_S, _ANY_FACE,
        ),
    )  # fmt: skip

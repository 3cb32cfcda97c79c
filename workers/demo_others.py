"""Three strategies that look reasonable, on the vendor's own SDK, to set beside ours."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import stripe

_TRIES = 3
_PAUSE_S = 0.5
STRATEGIES = ("naive", "verify_then_retry", "new_key_per_attempt")


class Client:
    """One client of one account: at most three tries of one charge."""

    def __init__(
        self, credential: str, url: str, timeout_s: float, pause: Callable[[float], Any]
    ) -> None:
        self._timeout_s = timeout_s
        self._pause = pause
        self._stripe = stripe.StripeClient(
            credential,
            base_addresses={"api": url},
            max_network_retries=0,
            http_client=stripe.RequestsClient(timeout=timeout_s),
        )

    def run(self, strategy: str, params: dict[str, Any], mark: str) -> str:
        """``settled`` or ``failed``: what the agent is told."""
        marked = {**params, "metadata": {"order": mark}}
        for attempt in range(_TRIES):
            if attempt:
                self._pause(_PAUSE_S * 2**attempt)
                if strategy == "verify_then_retry" and self._is_there(mark):
                    return "settled"
            try:
                self._create(strategy, marked)
            except stripe.CardError:
                return "failed"
            except stripe.InvalidRequestError:
                return "failed"
            except stripe.StripeError:
                continue  # a time-out, a 5xx: to these clients an error like any other
            return "settled"
        return "failed"

    def _create(self, strategy: str, params: dict[str, Any]) -> None:
        options: dict[str, Any] = {"max_network_retries": 0}
        if strategy == "new_key_per_attempt":
            options["idempotency_key"] = str(uuid.uuid4())
        self._stripe.v1.payment_intents.create(params, options)  # type: ignore[arg-type]

    def _is_there(self, mark: str) -> bool:
        with contextlib.suppress(stripe.StripeError):
            listed = self._stripe.v1.payment_intents.list({"limit": 100})
            return any(p.to_dict()["metadata"].get("order") == mark for p in listed.data)
        return False

"""Strategies that look reasonable, on the vendor's own SDK, to set beside ours."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import requests
import stripe

_TRIES = 3
_PAUSE_S = 0.5
STRATEGIES = ("naive", "verify_then_retry", "new_key_per_attempt")
PINNED_KEY = "pinned_key"


class Client:
    """One client of one account: at most three tries of one charge.

    ``keyless``: as an agent's own HTTP tool sends it. The SDK gives each request a key of its own.
    ``refused_by`` is the vendor's word for a key that it knows with other parameters.
    """

    def __init__(
        self,
        credential: str,
        url: str,
        timeout_s: float,
        pause: Callable[[float], Any],
        *,
        keyless: bool = False,
    ) -> None:
        self._pause = pause
        self.refused_by = ""
        self._session = requests.Session()
        # The sandbox is on this machine, and nobody's proxy leads there.
        self._session.trust_env = False
        transport = _Keyless if keyless else stripe.RequestsClient
        self._stripe = stripe.StripeClient(
            credential,
            base_addresses={"api": url},
            max_network_retries=0,
            http_client=transport(timeout=timeout_s, session=self._session),
        )

    def run(self, strategy: str, params: dict[str, Any], mark: str) -> str:
        """``settled``, ``failed`` or ``refused``: what the agent is told."""
        try:
            return self._run(strategy, {**params, "metadata": {"order": mark}}, mark)
        finally:
            self._session.close()

    def _run(self, strategy: str, marked: dict[str, Any], mark: str) -> str:
        for attempt in range(_TRIES):
            if attempt:
                self._pause(_PAUSE_S * 2**attempt)
                if strategy == "verify_then_retry" and self._is_there(mark):
                    return "settled"
            try:
                self._create(strategy, marked, mark)
            except stripe.CardError:
                return "failed"
            except stripe.InvalidRequestError:
                return "failed"
            except stripe.IdempotencyError as error:
                self.refused_by = error.error.type if error.error and error.error.type else "vendor"
                return "refused"
            except stripe.StripeError:
                continue  # a time-out, a 5xx: to these clients an error like any other
            return "settled"
        return "failed"

    def _create(self, strategy: str, params: dict[str, Any], mark: str) -> None:
        options: dict[str, Any] = {"max_network_retries": 0}
        if strategy == "new_key_per_attempt":
            options["idempotency_key"] = str(uuid.uuid4())
        elif strategy == PINNED_KEY:
            options["idempotency_key"] = f"charge-{mark}"
        self._stripe.v1.payment_intents.create(params, options)  # type: ignore[arg-type]

    def _is_there(self, mark: str) -> bool:
        with contextlib.suppress(stripe.StripeError):
            listed = self._stripe.v1.payment_intents.list({"limit": 100})
            return any(p.to_dict()["metadata"].get("order") == mark for p in listed.data)
        return False


class _Keyless(stripe.RequestsClient):
    def request(  # type: ignore[override]
        self, method: str, url: str, headers: Any, post_data: Any = None
    ) -> Any:
        sent = {n: v for n, v in headers.items() if n.lower() != "idempotency-key"}
        return super().request(method, url, sent, post_data)

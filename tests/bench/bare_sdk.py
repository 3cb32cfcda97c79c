"""Stripe's own SDK in a thread pool, without a ledger: `python -m tests.bench.bare_sdk COUNT`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stripe

from tests.bench.enqueuer import charge

_THREADS = 64


def main() -> int:
    """Prints ``began_ns`` and ``ended_ns`` (CLOCK_MONOTONIC)."""
    count = int(sys.argv[1])
    stripe.enable_telemetry = False
    client = stripe.StripeClient(
        "sk_test_bench",
        base_addresses={"api": os.environ["STRIPE_API_BASE"]},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=20),
    )

    def post(number: int) -> None:
        params: Any = charge(number)
        params["metadata"] = {
            "outbox_id": str(uuid.uuid4()),
            "invoice_id": params.pop("invoice_id"),
        }
        key = hashlib.sha256(str(number).encode()).hexdigest()
        client.v1.payment_intents.create(params, {"idempotency_key": key})

    with ThreadPoolExecutor(_THREADS) as pool:
        began = time.monotonic_ns()
        for done in [pool.submit(post, number) for number in range(count)]:
            done.result()
        ended = time.monotonic_ns()
    print(json.dumps({"began_ns": began, "ended_ns": ended}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Stripe's own SDK that reads both lists to their ends, and nothing else:
`python -m tests.bench.bare_lists`."""

from __future__ import annotations

import json
import os
import sys
import time

import stripe


def main() -> int:
    """Prints ``pages``, and ``began_ns`` and ``ended_ns`` (CLOCK_MONOTONIC)."""
    stripe.enable_telemetry = False
    client = stripe.StripeClient(
        "sk_test_bench",
        base_addresses={"api": os.environ["STRIPE_API_BASE"]},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=20),
    )
    pages = 0
    began = time.monotonic_ns()
    for path in ("/v1/payment_intents", "/v1/events"):
        after, more = "", True
        while more:
            query = {"limit": 100, **({"starting_after": after} if after else {})}
            page = json.loads(client.raw_request("get", path, **query).body)
            after, more = page["data"][-1]["id"], page["has_more"]
            pages += 1
    print(json.dumps({"pages": pages, "began_ns": began, "ended_ns": time.monotonic_ns()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

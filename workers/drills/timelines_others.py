"""Three policies that look reasonable, each as a client of the same vendor: what it says of a call,
and how often it tried."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import urllib3

_THREADS = 8
_OK, _REFUSED, _UNAVAILABLE = 300, 400, 500
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Policy:
    """``tries`` at the most, each under the call's key or without one."""

    name: str
    tries: int
    keyed: bool


OTHERS = (
    Policy("no retry", tries=1, keyed=False),
    Policy("three tries", tries=3, keyed=False),
    Policy("three tries with a key", tries=3, keyed=True),
)


def said_of(policy: Policy, url: str, calls: Sequence[str]) -> dict[str, bool]:
    """Whether the policy reports success, for each call. ``calls`` name them at the vendor."""
    with (
        urllib3.PoolManager(maxsize=_THREADS, retries=False, timeout=_TIMEOUT_S) as pool,
        ThreadPoolExecutor(_THREADS) as threads,
    ):
        said = threads.map(lambda call: _reports_success(policy, pool, url, call), calls)
        return dict(zip(calls, said, strict=True))


def _reports_success(policy: Policy, pool: urllib3.PoolManager, url: str, call: str) -> bool:
    body = {"amount": 4900, "currency": "usd", "customer": "ann", "reference": call}
    headers = {"Content-Type": "application/json"}
    if policy.keyed:
        headers["Idempotency-Key"] = call
    for _ in range(policy.tries):
        try:
            answer = pool.request("POST", url, body=json.dumps(body), headers=headers)
        except urllib3.exceptions.HTTPError:
            continue  # to these clients an error like any other
        if answer.status < _OK:
            return True
        if _REFUSED <= answer.status < _UNAVAILABLE:
            return False
    return False

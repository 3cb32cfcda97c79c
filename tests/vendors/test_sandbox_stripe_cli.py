"""A second client that we did not write: the vendor's own command line, against the sandbox.

`make stripe-cli` installs it; OUTBOX_STRIPE_CLI names another copy.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vendors.sandbox_shop import Shop, open_shop
from vendors.sandbox.client import Sandbox

ROOT = Path(__file__).resolve().parents[2]
CLI = Path(os.environ.get("OUTBOX_STRIPE_CLI") or ROOT / "node_modules" / ".bin" / "stripe")

pytestmark = pytest.mark.skipif(
    not CLI.exists(), reason=f"the Stripe CLI is not at {CLI}: run `make stripe-cli`"
)


@pytest.fixture
def shop(sandbox: Sandbox) -> Iterator[Shop]:
    with open_shop(sandbox) as opened:
        yield opened


def cli(shop: Shop, home: Path, *words: str) -> tuple[str, str]:
    command = [str(CLI), *words, "--api-base", shop.sandbox.url]
    done = subprocess.run(
        [*command, "--api-key", shop.sandbox.api_key(shop.name)],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "STRIPE_CLI_TELEMETRY_OPTOUT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def create(shop: Shop, home: Path, key: str, email: str) -> dict[str, Any]:
    words = ("post", "/v1/customers", "--idempotency", key, "-d", f"email={email}", "--confirm")
    found: dict[str, Any] = json.loads(cli(shop, home, *words)[0])
    return found


def test_the_cli_creates_once_per_key_and_reads_it_back(shop: Shop, tmp_path: Path) -> None:
    made = create(shop, tmp_path, "k1", "a@example.com")
    assert create(shop, tmp_path, "k1", "a@example.com") == made
    assert len(shop.effects("k1")) == 1
    assert [row["replayed"] for row in shop.sandbox.requests(shop.name, "k1")] == [0, 1]
    listed = json.loads(cli(shop, tmp_path, "get", "/v1/customers", "-l", "1")[0])
    assert listed["data"] == [made]


def test_the_cli_is_told_that_a_key_was_used_for_something_else(shop: Shop, tmp_path: Path) -> None:
    create(shop, tmp_path, "k1", "a@example.com")
    refused = create(shop, tmp_path, "k1", "b@example.com")
    assert refused["error"]["type"] == "idempotency_error"


@pytest.mark.parametrize(
    ("event", "kinds"),
    [
        ("customer.created", ["customer.create"]),
        ("payment_intent.succeeded", ["payment_intent.create"]),
        ("charge.refunded", ["payment_intent.create", "refund.create"]),
    ],
)
def test_the_fixtures_that_the_cli_ships_run_and_fire_their_event(
    shop: Shop, tmp_path: Path, event: str, kinds: list[str]
) -> None:
    cli(shop, tmp_path, "trigger", event)
    assert [effect["kind"] for effect in shop.effects()] == kinds
    assert event in [found["type"] for found in shop.sandbox.objects(shop.name, "events")]

"""The vendor tests: an account of the test's own, and the adapter."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from outbox.contract import Account
from tests.vendors.stripe_calls import WEBHOOK_SECRET
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from vendors.stripe import StripeVendor

_numbers = itertools.count()


@pytest.fixture
def account(sandbox: Sandbox) -> Account:
    """A test-mode account that no other test uses."""
    name = f"v{os.getpid()}x{next(_numbers)}"
    return Account(
        name=name,
        mode="test",
        vendor_account=f"acct_{name}",
        credential=sandbox.api_key(name),
        webhook_secrets=(WEBHOOK_SECRET,),
        base_url=sandbox.url,
    )


@pytest.fixture
def vendor() -> Iterator[StripeVendor]:
    built = build("stripe", connect_s=2.0, read_s=5.0)
    assert isinstance(built, StripeVendor)
    yield built
    built.close()

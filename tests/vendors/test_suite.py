"""Every adapter keeps the contract against its face: the suite, check by check."""

from __future__ import annotations

import pytest

from vendors.sandbox.client import Sandbox
from vendors.suite.bench import Bench
from vendors.suite.checks import checks_of
from vendors.suite.faces import faces

CHECKS = [(vendor, check) for vendor, face in faces().items() for check in checks_of(face)]


@pytest.mark.parametrize(("vendor", "check"), CHECKS, ids=[f"{v}-{c}" for v, c in CHECKS])
def test_the_contract_is_kept(sandbox: Sandbox, vendor: str, check: str) -> None:
    face = faces()[vendor]
    with Bench.of(face, sandbox) as bench:
        checks_of(face)[check](bench)

"""The vendors' contracts as data, by vendor name: all that ``enqueue`` needs of a vendor."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.contract import VendorContract
from outbox.contracts.stripe import STRIPE
from outbox.errors import Invalid

CONTRACTS: Mapping[str, VendorContract] = {contract.vendor: contract for contract in (STRIPE,)}


def contract_of(vendor: str) -> VendorContract:
    """The contract of a vendor by its name. Raises ``Invalid`` listing the names we know."""
    try:
        return CONTRACTS[vendor]
    except (KeyError, TypeError):
        known = ", ".join(sorted(CONTRACTS))
        raise Invalid("tool.vendor", f"is not a vendor we know; known are {known}") from None

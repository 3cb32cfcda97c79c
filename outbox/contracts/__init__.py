"""The vendors' contracts as data, by vendor name: all that ``enqueue`` needs of a vendor."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.contract import VendorContract
from outbox.contracts.smtp import SMTP
from outbox.contracts.stripe import STRIPE
from outbox.errors import Invalid

_known: dict[str, VendorContract] = {contract.vendor: contract for contract in (STRIPE, SMTP)}
BUILT_IN = frozenset(_known)
# Every contract of this process; a view, because files of the user's add to it.
CONTRACTS: Mapping[str, VendorContract] = _known


def register(contract: VendorContract) -> None:
    """Makes a vendor known to this process, or replaces what an earlier reading of its file said.

    Raises ``Invalid`` for the name of a built-in vendor.
    """
    if contract.vendor in BUILT_IN:
        raise Invalid("vendor", f"{contract.vendor} is built in; give yours another name")
    _known[contract.vendor] = contract


def contract_of(vendor: str) -> VendorContract:
    """The contract of a vendor by its name. Raises ``Invalid`` listing the names we know."""
    try:
        return CONTRACTS[vendor]
    except (KeyError, TypeError):
        known = ", ".join(sorted(CONTRACTS))
        raise Invalid(
            "tool.vendor",
            f"is not a vendor we know; known are {known}; a vendor that a file describes is known "
            "once the settings with its OUTBOX_VENDORS have been read",
        ) from None

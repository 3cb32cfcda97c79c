"""The adapters, one line each. An SDK is imported when its adapter is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outbox.contract import Vendor, VendorContract
from outbox.contracts import contract_of
from outbox.errors import Invalid

Builder = Callable[[VendorContract, float, float], Vendor]


def _stripe(contract: VendorContract, connect_s: float, read_s: float) -> Vendor:
    from vendors.stripe import StripeVendor

    return StripeVendor(contract, connect_s=connect_s, read_s=read_s)


def _smtp(contract: VendorContract, connect_s: float, read_s: float) -> Vendor:
    from vendors.smtp import SmtpVendor

    return SmtpVendor(contract, connect_s=connect_s, read_s=read_s)


def _http_json(contract: VendorContract, connect_s: float, read_s: float) -> Vendor:
    from vendors.http_json import HttpJsonVendor

    return HttpJsonVendor(contract, connect_s=connect_s, read_s=read_s)


ADAPTERS: Mapping[str, Builder] = {
    "stripe": _stripe,
    "http_json": _http_json,
    "smtp": _smtp,
}


def build(
    vendor: str,
    *,
    contract: VendorContract | None = None,
    connect_s: float = 5.0,
    read_s: float = 20.0,
) -> Vendor:
    """The adapter of a vendor. ``contract`` overrides the published one (shorter windows of a
    demo); the time-outs bound single socket operations, the call's cut-off bounds the whole.

    Raises ``Invalid`` for a name that is not registered.
    """
    chosen = contract or contract_of(vendor)
    if chosen.adapter not in ADAPTERS:
        raise Invalid("vendor", f"has no adapter; there are {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[chosen.adapter](chosen, connect_s, read_s)

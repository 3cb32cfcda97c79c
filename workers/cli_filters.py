"""The filters that lists of intents and of questions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from workers.cli_complete import offer


def whose(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whose writes: by vendor, account, tool, tenant."""
    for option in (
        click.option("--tenant", shell_complete=offer("tenant"), help="Only this tenant's."),
        click.option("--tool", shell_complete=offer("tool"), help="Only this tool's."),
        click.option(
            "--account",
            shell_complete=offer("account"),
            help="Only of this account: stripe/default, or a name at any vendor.",
        ),
        click.option("--vendor", shell_complete=offer("vendor"), help="Only this vendor's."),
    ):
        function = option(function)
    return function


def placed(asked: dict[str, Any]) -> dict[str, Any]:
    """The filters with VENDOR/NAME taken apart."""
    vendor, slash, name = (asked["account"] or "").partition("/")
    if not slash:
        return asked
    if not (vendor and name) or asked["vendor"] not in (None, vendor):
        problem = "must be VENDOR/NAME, as in stripe/default, and agree with --vendor"
        raise click.BadParameter(problem, param_hint="--account")
    return {**asked, "vendor": vendor, "account": name}

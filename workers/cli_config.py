"""``outbox config show``: every setting with its value, unit and source; no secret."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from workers.cli_output import Column, show_rows
from workers.cli_run import Noun, current

if TYPE_CHECKING:
    from outbox.settings import Settings

_LIST = (
    Column("name"),
    Column("value", folds=True),
    Column("unit"),
    Column("source"),
)
# The setting, the field it fills, its unit; a unit of "secret" is never shown.
_PLAIN = (
    ("DATABASE_URL", "database_url", "secret"),
    ("REDIS_URL", "redis_url", "secret"),
    ("OUTBOX_HOST", "host", ""),
    ("PORT", "port", ""),
    ("OUTBOX_ENVIRONMENT", "environment", ""),
    ("OUTBOX_ACTOR", "actor", ""),
    ("OUTBOX_PROFILE", "profile", ""),
    ("OUTBOX_PAGERS", "pagers", "secret"),
    ("OUTBOX_PAGER_SECRET", "pager_secret", "secret"),
    ("OUTBOX_STATEMENT_TIMEOUT_S", "statement_timeout_s", "s"),
    ("OUTBOX_LOCK_TIMEOUT_S", "lock_timeout_s", "s"),
    ("OUTBOX_IDLE_TIMEOUT_S", "idle_in_transaction_timeout_s", "s"),
    ("OUTBOX_REDIS_TIMEOUT_S", "redis_timeout_s", "s"),
    ("OUTBOX_WAIT_S", "wait_s", "s"),
    ("OUTBOX_RETENTION", "retention_s", "s"),
    ("OUTBOX_WEBHOOK_MAX_BYTES", "webhook_max_bytes", "bytes"),
    ("OUTBOX_MAX_TENANT_DEPTH", "max_tenant_depth", ""),
    ("OUTBOX_MAX_LANE_DEPTH", "max_lane_depth", ""),
    ("OUTBOX_VENDORS", "vendor_files", ""),
)
_OF_ACCOUNTS = (
    ("OUTBOX_ACCOUNTS", ""),
    ("STRIPE_API_KEY", "secret"),
    ("STRIPE_WEBHOOK_SECRET", "secret"),
    ("STRIPE_ACCOUNT_ID", ""),
    ("STRIPE_API_BASE", ""),
)
_COUNTS = frozenset(
    {
        "batch",
        "threads",
        "children",
        "max_resends",
        "max_crashes",
        "breaker_sample",
        "breaker_failures",
        "page_group_from",
    }
)


@click.group("config", cls=Noun)
def config() -> None:
    """The settings of this process."""


@config.command("show", examples=("outbox config show", "outbox config show --json"))
def show() -> None:
    """Show every setting with its value, unit and source. Secrets are shown as set or not set."""
    run = current()
    show_rows(run, _LIST, list(_settings(run.settings)))


def _settings(settings: Settings) -> Iterator[dict[str, Any]]:
    from outbox.codec import readable

    for name, field, unit in _PLAIN:
        yield _setting(settings, name, getattr(settings, field), unit)
    codec = f"writes {settings.codec.writes}, reads {', '.join(readable(settings.codec))}"
    yield _setting(settings, "OUTBOX_CODEC", codec, "")
    for name, unit in (("OUTBOX_CODEC_KEYS", "secret"), *_OF_ACCOUNTS):
        given = settings.sources.get(name) == "environment"
        yield _setting(settings, name, "set" if given else None, unit)
    for (vendor, account), found in sorted(settings.accounts.items()):
        parts = [
            found.mode,
            found.vendor_account or "vendor account not said",
            f"{len(found.webhook_secrets)} webhook secrets",
            found.base_url or "the vendor's own address",
        ]
        if found.rate_per_s is not None:
            parts.append(f"{found.rate_per_s:g} requests a second, {found.burst} at once")
        yield {
            "name": f"account {vendor}/{account}",
            "value": ", ".join(parts),
            "unit": None,
            "source": "environment",
        }
    for item in fields(settings.policy):
        value = getattr(settings.policy, item.name)
        unit = "s" if item.name.endswith("_s") else "" if item.name in _COUNTS else "s"
        yield _setting(settings, f"OUTBOX_{item.name.upper()}", value, unit)


def _setting(settings: Settings, name: str, value: Any, unit: str) -> dict[str, Any]:
    if unit == "secret":
        value = "not set" if value is None or value == "" else "set"
        unit = ""
    elif isinstance(value, tuple):
        value = ",".join(f"{v:g}" for v in value)
    elif isinstance(value, float):
        value = f"{value:g}" if value < 1e6 else f"{value:.0f}"
    source = settings.sources.get(name, "default")
    if source == "default" and name.startswith("OUTBOX_") and settings.profile == "demo":
        source = "profile demo"
    return {"name": name, "value": value, "unit": unit or None, "source": source}


COMMANDS = (config,)

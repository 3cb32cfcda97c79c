"""What ``doctor`` asks beyond the ledger's own rules: settings, pagers, versions, heartbeats, the
clock, and whether webhooks come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outbox import schema
from outbox.contract import carried
from outbox.contracts import CONTRACTS
from outbox.doorbell import Doorbell
from outbox.fingerprint import RULES
from outbox.store import checks, redaction, switches, vitals
from outbox.store.connection import Transaction
from resolvers.directory import Directory
from resolvers.health import limits_s, release

# While sends succeed, so long without one event of an account means that none come in.
_SILENT_H = 24.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: ``count`` of how many are wrong, ``sample`` of the first of them
    (whole ids), and ``detail``: what to do, or what was looked at. ``rule`` is the design's number
    of the rule, None where it is about the setup."""

    check: str
    rule: int | None
    ok: bool
    count: int
    sample: tuple[str, ...]
    detail: str


Asked = Callable[[Transaction], Iterable[Finding]]


def finding(
    check: str,
    rule: int | None,
    wrong: Sequence[str],
    what: str,
    *,
    count: int | None = None,
    holds: str = "",
) -> Finding:
    """A finding from what is wrong: ok where nothing is, and then ``holds`` is its detail."""
    count = len(wrong) if count is None else count
    sample = tuple(wrong[: checks.SAMPLES])
    return Finding(check, rule, count == 0, count, sample, what if count else holds)


def schema_revision(tx: Transaction) -> Finding:
    """Whether the schema is this release's."""
    current = vitals.revision(tx)
    problem = schema.advice(current)
    wrong = [current or "none"] if problem is not None else []
    return finding("schema_revision", None, wrong, f"the schema {problem}", holds=current or "")


def asked_of(directory: Directory) -> Iterator[tuple[str, int | None, Asked]]:
    """Each check of the setup: its name, its rule, and what asks it."""
    yield "settings", None, partial(_settings, directory)
    yield "broker_away", None, partial(_broker, directory)
    yield "pagers_unset", 9, partial(_pagers, directory)
    yield "settable_clock", 12, _settable_clock
    yield "clock_doubted", 12, _clock_doubted
    yield "timeline_changed", 12, _timeline
    yield "heartbeat_ahead", 12, partial(_ahead, directory)
    yield "heartbeat_stale", 14, partial(_stale, directory)
    yield "releases_differ", None, _releases
    yield "kinds", None, partial(_kinds, directory)
    yield "values_sealed", None, partial(_sealed, directory)
    yield "webhooks_silent", None, partial(_webhooks, directory)


def _settings(directory: Directory, _tx: Transaction) -> Iterator[Finding]:
    problems = list(directory.settings.start_problems())
    what = "; ".join(f"{name} {problem}" for name, problem in problems)
    yield finding("settings", None, [name for name, _ in problems], what)


def _broker(directory: Directory, _tx: Transaction) -> Iterator[Finding]:
    """Without one workers look by themselves, and that is no fault; one that is set and away is."""
    settings, wrong = directory.settings, []
    bell = Doorbell(settings.redis_url, timeout_s=settings.redis_timeout_s)
    if settings.redis_url and not bell.is_there():
        wrong = ["REDIS_URL"]
    what = "it does not answer: no tick and no ring arrives, and workers send by their own polls"
    yield finding("broker_away", None, wrong, what)


def _pagers(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    """That live credentials need pagers is said of the settings."""
    count, ids = checks.open_questions(tx) if directory.settings.pagers is None else (0, [])
    what = "nobody is paged about these: set OUTBOX_PAGERS, or say `none`"
    yield finding("pagers_unset", 9, ids, what, count=count)


def _settable_clock(tx: Transaction) -> Iterator[Finding]:
    wrong = ["outbox.clock()"] if checks.clock_is_settable(tx) else []
    what = "a test's clock is installed: windows and leases mean nothing"
    yield finding("settable_clock", 12, wrong, what)


def _clock_doubted(tx: Transaction) -> Iterator[Finding]:
    doubts = checks.clock_doubts(tx)
    reasons = "; ".join(row["reason"] for row in doubts)
    what = f"{reasons}: re-sends wait for `outbox doctor --accept --reason ...`"
    yield finding("clock_doubted", 12, [row["holder"] for row in doubts], what)


def _timeline(tx: Transaction) -> Iterator[Finding]:
    known, now = checks.timelines(tx)
    wrong = [str(now)] if known is not None and known != now else []
    what = f"the database was on timeline {known}: another history of it was promoted"
    yield finding("timeline_changed", 12, wrong, what, holds=f"timeline {now}")


def _ahead(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    wrong = checks.heartbeats_ahead(tx, directory.policy.clock_step_s)
    what = "these beat in the future: the database's clock was set back"
    yield finding("heartbeat_ahead", 12, wrong, what)


def _stale(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    ages = switches.beat_ages_s(tx)
    limits = limits_s(directory.settings)
    wrong = [r for r, limit_s in limits.items() if ages.get(r) is None or ages[r] > limit_s]
    yield finding("heartbeat_stale", 14, wrong, "no worker runs these jobs: start one")


def _releases(tx: Transaction) -> Iterator[Finding]:
    """Side by side: which release each process that runs is of."""
    running = checks.releases(tx)
    said = "; ".join(f"{name or 'unknown'}: {', '.join(of)}" for name, of in running.items())
    wrong = [name or "unknown" for name in running] if set(running) - {release()} else []
    what = f"this is {release()}; workers run {said}: end the deploy"
    yield finding("releases_differ", None, wrong, what, holds=said)


def _kinds(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    """What this release would leave alone, of the unsettled intents."""
    wrong: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "unknown_vendor": [],
        "unknown_operation": [],
        "unknown_fingerprint_version": [],
        "carried_otherwise": [],
        "account_without_credentials": [],
    }
    for row in checks.kinds(tx):
        vendor, operation, version = row["vendor"], row["operation"], row["fingerprint_version"]
        if vendor not in CONTRACTS:
            wrong["unknown_vendor"].append((vendor, row))
        elif operation not in CONTRACTS[vendor].operations:
            wrong["unknown_operation"].append((f"{vendor} {operation}", row))
        elif version not in RULES:
            wrong["unknown_fingerprint_version"].append((f"version {version}", row))
        elif row["carries"] != carried(CONTRACTS[vendor], operation):
            # Where its key is not in the place that the vendor is said to honour by now.
            wrong["carried_otherwise"].append((f"{vendor} {operation} [{row['carries']}]", row))
        if (vendor, row["account"]) not in directory.accounts:
            wrong["account_without_credentials"].append((f"{vendor}/{row['account']}", row))
    for check, named in wrong.items():
        names = ", ".join(dict.fromkeys(name for name, _ in named))
        ids = [i for _, row in named for i in row["ids"]]
        what = f"{names}: this process leaves these intents alone"
        yield finding(check, None, ids, what, count=sum(row["n"] for _, row in named))


def _sealed(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    """Values whose key is missing here: their rows are neither sent nor joined by this process."""
    rows = redaction.sealed(tx, directory.settings.codec)
    told = "; ".join(f"{row['n']} of {row['column']} by {row['codec']}" for row in rows)
    ids = list(dict.fromkeys(id_ for row in rows for id_ in row["ids"]))
    what = f"sealed by keys that this process lacks: {told}: see OUTBOX_CODEC_KEYS"
    count = sum(row["n"] for row in rows)
    yield finding("values_sealed", None, ids, what, count=count)


def _webhooks(directory: Directory, tx: Transaction) -> Iterator[Finding]:
    silent = [
        f"{vendor}/{name}"
        for (vendor, name), account in sorted(directory.accounts.items())
        if account.webhook_secrets
        and vendor in CONTRACTS
        and CONTRACTS[vendor].has_webhooks
        and (checks.hours_without_webhook(tx, vendor, name) or 0.0) > _SILENT_H
    ]
    what = "sends succeed and no event has come for a day: see the endpoint at the vendor"
    yield finding("webhooks_silent", None, silent, what)

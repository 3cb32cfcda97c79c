"""The targets that a page goes to, built from OUTBOX_PAGERS. One file for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers import (
    pager_alertmanager,
    pager_apprise,
    pager_file,
    pager_incidentio,
    pager_opsgenie,
    pager_pagerduty,
    pager_webhook,
)
from resolvers.page import Pager, Unusable

# How each is written, and what builds it from what stands behind the first colon.
TARGETS: Mapping[str, tuple[str, Callable[[str, Settings], Pager]]] = {
    "pagerduty": (pager_pagerduty.FORM, pager_pagerduty.build),
    "opsgenie": (pager_opsgenie.FORM, pager_opsgenie.build),
    "jsm": (pager_opsgenie.JSM_FORM, pager_opsgenie.build_jsm),
    "incidentio": (pager_incidentio.FORM, pager_incidentio.build),
    "alertmanager": (pager_alertmanager.FORM, pager_alertmanager.build),
    "webhook": (pager_webhook.FORM, pager_webhook.build),
    "file": (pager_file.FORM, pager_file.build),
    "apprise": (pager_apprise.FORM, pager_apprise.build),
}


def parse(settings: Settings) -> tuple[Pager, ...]:
    """The pagers in the order they are tried; empty for ``none`` and where none is set.

    Raises ``SettingsError`` naming OUTBOX_PAGERS (or OUTBOX_PAGER_SECRET), all faults at once.
    """
    found: list[Pager] = []
    problems: list[tuple[str, str]] = []
    for number, spec in enumerate(settings.pagers or (), 1):
        scheme, _, rest = spec.partition(":")
        if scheme not in TARGETS:
            forms = ", ".join(form for form, _ in TARGETS.values())
            problems.append(("OUTBOX_PAGERS", f"no. {number} is none of {forms}"))
            continue
        form, build = TARGETS[scheme]
        try:
            found.append(build(rest, settings))
        except Unusable as error:
            problems.append((error.setting, f"no. {number} ({form}) {error}"))
    names = [pager.name for pager in found]
    if len(set(names)) != len(names):
        problems.append(("OUTBOX_PAGERS", "names one target twice"))
    if problems:
        raise SettingsError(problems)
    return tuple(found)

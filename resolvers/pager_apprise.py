"""Apprise: chat, SMS, e-mail and whatever else it knows. Best effort: it says yes or no, never
why, and most of its services know no dedup key. The extra ``[apprise]`` brings it.

It throttles with sleeps of seconds, runs threads and logs addresses with their tokens. So it
lives in a process of its own, which ends at the deadline whatever it does.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import NO_ACKNOWLEDGE, Failed, Page, Sent, Unusable, digest
from resolvers.pager_apprise_child import NOT_TAKEN, NOT_UNDERSTOOD, TAKEN

FORM = "apprise:URL"
_SCHEMA = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_-]{0,31}")
_CHECK_TIMEOUT_S = 60.0
_TYPE = {"critical": "failure", "error": "failure", "warning": "warning", "info": "info"}


@dataclass(frozen=True, slots=True)
class Apprise:
    """One Apprise address. A resolve is a message of the type success: services that keep alerts
    close theirs on it."""

    url: str = field(repr=False)
    repages = False
    lasts_s = None

    @property
    def name(self) -> str:
        """The address holds tokens, so only its service is shown."""
        return f"apprise:{self.url.partition('://')[0].lower()}#{digest(self.url)}"

    def send(self, page: Page) -> Sent | Failed:
        """Whatever it does not take may have been shown all the same: it does not say."""
        if page.action == "acknowledge":
            return NO_ACKNOWLEDGE
        deadline_s = page_post.SEND_TIMEOUT_S
        word = "resolved" if page.action == "resolve" else page.severity
        message = {
            "title": _sayable(f"{word} {page.source}"),
            "body": _sayable(f"{page.as_text()}\nkey: {page.key()}"),
            "type": "success" if page.action == "resolve" else _TYPE[page.severity],
            "key": page.key(),
        }
        try:
            said = _child({"url": self.url, "deadline_s": deadline_s, **message}, deadline_s)
        except subprocess.TimeoutExpired:
            return Failed(f"not done within {deadline_s:g} s", maybe=True)
        except OSError as error:
            return Failed(f"not started: {type(error).__name__}")
        if said == TAKEN:
            return Sent("apprise says yes")
        if said in (NOT_TAKEN, NOT_UNDERSTOOD):
            return Failed("apprise says no", maybe=said == NOT_TAKEN)
        return Failed(f"apprise ended with {said}", maybe=True)


def build(rest: str, _: Settings) -> Apprise:
    """Raises ``Unusable``."""
    schema, apart, _rest = rest.partition("://")
    if not apart or not _SCHEMA.fullmatch(schema):
        raise Unusable("its address must be one of Apprise's, such as mailto:// or slack://")
    if importlib.util.find_spec("apprise") is None:
        raise Unusable("needs the extra: pip install 'outbox-resolve[apprise]'")
    try:
        said = _child({"url": rest, "deadline_s": _CHECK_TIMEOUT_S}, _CHECK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"could not be checked: {type(error).__name__}") from None
    if said != TAKEN:
        raise Unusable("its address is not understood by Apprise")
    return Apprise(rest)


def _sayable(text: str) -> str:
    """Without lone surrogates, on which services would fail every try."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _child(order: dict[str, Any], deadline_s: float) -> int:
    """Runs one order in a process of its own and returns how it ended. The address goes through
    its standard input: a command line is for everybody to see."""
    return subprocess.run(
        [sys.executable, "-m", "resolvers.pager_apprise_child"],
        input=json.dumps(order).encode("ascii"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=deadline_s,
        check=False,
        # `-m` looks in the current folder first: the package beside this file, wherever we are.
        cwd=Path(__file__).resolve().parents[1],
        start_new_session=True,
    ).returncode

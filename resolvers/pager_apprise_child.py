"""The process that Apprise lives in: one order on its standard input, one answer as exit code.

An order without a body is a question whether the address is understood.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

TAKEN = 0
NOT_UNDERSTOOD = 3
NOT_TAKEN = 4
_SLOT = "dedup"  # what most of Apprise's services that keep alerts call it


def main() -> int:
    order: dict[str, Any] = json.load(sys.stdin.buffer)
    # The kernel ends it at the deadline, asleep or not, even where its parent is gone.
    signal.setitimer(signal.ITIMER_REAL, order["deadline_s"])
    import apprise

    asset = apprise.AppriseAsset(storage_mode=apprise.PersistentStoreMode.MEMORY)
    service = apprise.Apprise.instantiate(order["url"], asset=asset)
    if service is None:
        return NOT_UNDERSTOOD
    if "body" not in order:
        return TAKEN
    # Several receivers of one address would wait seconds for each other.
    service.request_rate_per_sec = 0
    if _SLOT in service.template_args:
        setattr(service, _SLOT, order["key"])
    taken = service.notify(
        title=order["title"],
        body=order["body"],
        notify_type=apprise.NotifyType(order["type"]),
        body_format=apprise.NotifyFormat.TEXT,
        overflow=apprise.OverflowMode.TRUNCATE,
    )
    return TAKEN if taken else NOT_TAKEN


if __name__ == "__main__":
    sys.exit(main())

"""The vendor's events, handed to a floor's receiver as deliveries bring them."""

from __future__ import annotations

from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.resolvers.deliveries import signed
from tests.workers.floor import SECRET, Floor


class Hooks:
    """Each call delivers what has happened since the last one, oldest first, and joins it."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._seen: set[str] = set()

    def __call__(self) -> None:
        floor = self._floor
        (row,) = floor.sql("SELECT EXTRACT(EPOCH FROM outbox.clock())::bigint AS at")
        for event in floor.sandbox.objects(floor.account, "events"):
            if event["id"] not in self._seen:
                self._seen.add(event["id"])
                sent = signed(event, int(row["at"]), SECRET)
                answer = receive(
                    floor.store,
                    floor.directory,
                    vendor="stripe",
                    account="default",
                    headers=sent.headers,
                    body=sent.body,
                )
                assert answer[0] == 200
        join_once(floor.store, floor.directory)

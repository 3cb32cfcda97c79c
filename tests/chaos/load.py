"""Agents that enqueue through everything, each intent once: what failed is not tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from uuid import UUID

import psycopg

from outbox import Outbox, OutboxError, Scope
from tests.chaos.scene import ACCOUNTS, Scene
from tests.workers.floor import CARD, CHARGE

_MOST_AT_ONCE = 16
# A caller that is refused comes with something else a moment later.
_REST_S = 0.2
_FULL_S = 0.05


class Agent(threading.Thread):
    """Enqueues until it is told to end. ``kept`` are the intents whose commit was confirmed;
    ``unsure`` those whose caller heard no word of it; ``refused`` counts the tries that were told
    to have recorded nothing."""

    def __init__(
        self, scene: Scene, number: int, random: Random, is_full: Callable[[], bool]
    ) -> None:
        super().__init__(name=f"agent {number}", daemon=True)
        self._scene, self._number, self._random = scene, number, random
        self._is_full = is_full
        self._ended = threading.Event()
        self._invoices = 0
        self.kept: list[UUID] = []
        self.unsure: list[UUID] = []
        self.refused = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        outbox = Outbox(self._scene.settings)
        try:
            while not self._ended.is_set():
                if self._is_full():
                    self._ended.wait(_FULL_S)
                else:
                    self._enqueue(outbox)
        except BaseException as error:
            self.error = error
        finally:
            outbox.close()

    def end(self) -> None:
        """Returns once it enqueues nothing any more."""
        self._ended.set()
        self.join()

    def _enqueue(self, outbox: Outbox) -> None:
        account = self._random.choice(ACCOUNTS)
        ids: list[UUID] = []
        try:
            with psycopg.connect(self._scene.database_url) as connection:
                answers = outbox.enqueue_many(
                    connection, CHARGE, [self._charge(account) for _ in range(self._count())]
                )
                ids = [answer.intent_id for answer in answers]
        except (psycopg.Error, OutboxError):
            self.unsure += ids  # none where it never came to the commit
            self.refused += not ids
            self._ended.wait(_REST_S)
            return
        self.kept += ids
        outbox.ring()

    def _count(self) -> int:
        return self._random.randint(1, _MOST_AT_ONCE)

    def _charge(self, account: str) -> tuple[Scope, dict[str, object]]:
        self._invoices += 1
        invoice = f"in_{self._number}_{self._invoices}"
        customer = f"cus_{self._random.randrange(1000)}"
        args = {**CARD, "customer": customer, "invoice_id": invoice}
        return Scope(tenant="acme", run_id=f"run-{self._number}", account=account), args
